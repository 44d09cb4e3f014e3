"""What is told about a page after an action."""

from outrider.env.web.state import PageState, changes

BEFORE = PageState(url="http://shop.test/#top", title="Shop", lines=["one", "two"])


def after(url: str = "http://shop.test/", *lines: str) -> PageState:
    return PageState(url=url, title="Shop", lines=list(lines))


def test_a_page_at_another_address_is_new():
    assert changes(BEFORE, after("http://shop.test/cart.html", "one", "two")) == ["this is a new page"]


def test_of_the_same_page_the_new_lines_are_told_once():
    assert changes(BEFORE, after("http://shop.test/#end", "one", "added", "added")) == ["new on it:", "  added"]


def test_only_the_first_lines_are_told():
    told = changes(BEFORE, after("http://shop.test/", *(f"line {i}" for i in range(100))))

    assert len(told) == 8
    assert told[-1] == "and 94 more lines"


def test_what_is_gone_and_what_is_the_same_is_told_too():
    assert changes(BEFORE, after("http://shop.test/", "one")) == ["1 lines are gone"]
    assert changes(BEFORE, after("http://shop.test/", "two", "one")) == ["nothing on it has changed"]
