"""What a reader sees of a team's words: whose, in what form, and which within a budget."""

import pytest

from outrider.orchestra.context import Entry, Eviction, TeamContext, View


def entry(author: str, text: str = "x", *, round: int = 0, visible_to: frozenset[str] | None = None) -> Entry:
    return Entry(
        author=author,
        round=round,
        text=text,
        n_tokens=len(text),
        call_id=f"{author}.{round}.0",
        visible_to=visible_to,
    )


def context(*entries: Entry) -> TeamContext:
    made = TeamContext()
    for each in entries:
        made.append(each)
    return made


def test_an_entry_is_written_with_its_author_and_its_round_counted_from_one():
    made = context(entry("search", "river"), entry("critic", "no"), entry("search", "mountain", round=1))
    view = made.view("critic", count=len)
    assert view.text == "[search, round 1]\nriver\n\n[critic, round 1]\nno\n\n[search, round 2]\nmountain"
    assert view.n_tokens == len(view.text)
    assert view.entries == tuple(made)
    assert view.dropped == ()


def test_nothing_said_is_nothing_to_read():
    assert TeamContext().view("a", count=len, budget=0) == View(entries=(), dropped=(), n_tokens=0)


def test_a_reader_sees_whom_it_reads():
    made = context(entry("a"), entry("b"), entry("c"))
    assert [each.author for each in made.visible("c", reads=("a", "b"))] == ["a", "b"]
    assert [each.author for each in made.visible("c", reads=("b", "c"))] == ["b", "c"]
    assert made.visible("c", reads=()) == ()
    assert made.visible("a", reads=None) == tuple(made)
    assert made.view("c", reads=("a",), count=len).entries == made.visible("c", reads=("a",))


def test_an_entry_is_seen_by_those_it_is_meant_for_and_by_its_author():
    made = context(entry("a", visible_to=frozenset({"b"})), entry("b", visible_to=frozenset()), entry("c"))
    seen = {reader: [each.author for each in made.visible(reader)] for reader in "abcd"}
    assert seen == {"a": ["a", "c"], "b": ["a", "b", "c"], "c": ["c"], "d": ["c"]}
    assert made.visible("a", reads=("b",)) == (), "an agent that does not read itself does not see its own"


def words(*names: str) -> TeamContext:
    """Entries named `author:length`; heading and separator take 10 tokens each."""
    return context(*(entry(name[0], "x" * int(name[2:])) for name in names))


def kept(made: TeamContext, budget: int, eviction: Eviction) -> list[str]:
    view = made.view("z", budget=budget, eviction=eviction, count=lambda text: 10)
    return [f"{each.author}:{each.n_tokens}" for each in view.entries]


@pytest.mark.parametrize(
    ("budget", "expected"), [(65, "a:5 b:9 a:1"), (64, "b:9 a:1"), (40, "b:9 a:1"), (39, "a:1"), (10, "")]
)
def test_the_oldest_goes_first(budget: int, expected: str):
    assert " ".join(kept(words("a:5", "b:9", "a:1"), budget, Eviction.OLDEST)) == expected


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(94, "a:5 b:9 c:9 a:1"), (93, "a:5 c:9 a:1"), (64, "a:5 a:1"), (35, "a:1"), (10, "")],
)
def test_the_longest_goes_first_and_the_older_of_two_as_long(budget: int, expected: str):
    assert " ".join(kept(words("a:5", "b:9", "c:9", "a:1"), budget, Eviction.LONGEST)) == expected


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(87, "b:9 a:5 a:1 c:2"), (86, "b:9 a:1 c:2"), (61, "a:1 c:2"), (32, "c:2"), (11, "")],
)
def test_what_was_followed_up_goes_before_the_newest_of_each(budget: int, expected: str):
    assert " ".join(kept(words("b:9", "a:5", "a:1", "c:2"), budget, Eviction.NEWEST_OF_AUTHOR)) == expected


def test_the_newest_of_an_author_is_the_newest_that_the_reader_sees():
    made = context(entry("b", "first"), entry("a", "second"), entry("a", "secret", visible_to=frozenset({"b"})))
    view = made.view("c", budget=30, eviction=Eviction.NEWEST_OF_AUTHOR, count=lambda text: 10)
    assert [each.text for each in view.entries] == ["second"]


def test_if_nothing_fits_all_is_dropped():
    made = words("a:5", "b:9")
    for eviction in Eviction:
        for budget in (14, 0, -1):
            assert made.view("z", budget=budget, eviction=eviction, count=lambda text: 10) == View(
                entries=(), dropped=tuple(made), n_tokens=0
            )


def test_texts_are_counted_once_when_they_are_said():
    counted: list[str] = []
    made = words("a:5", "b:9")
    made.view("z", budget=30, count=lambda text: counted.append(text) or 1)
    assert set(counted) == {"\n\n", "[a, round 1]\n", "[b, round 1]\n"}


def test_a_copy_goes_its_own_way():
    trunk = context(entry("a"), entry("a"))
    left, right = trunk.copy(), trunk.copy()
    left.append(entry("l"))
    right.append(entry("r"))
    trunk.extend(left.since(trunk))
    trunk.extend(right.since(trunk))
    assert [each.author for each in trunk] == ["a", "a", "l", "r"]
    assert len(left) == len(right) == 3
    assert trunk.since(trunk) == ()
