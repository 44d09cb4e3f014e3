"""Trees as a model reads them."""

from outrider.env.web.tree import bounded, readable


def test_the_ref_comes_first_and_a_link_shows_where_it_leads():
    snapshot = """\
- generic [active] [ref=e1]:
  - heading "Prices" [level=1] [ref=e2]
  - link "Home" [ref=e3] [cursor=pointer]:
    - /url: /index.html
  - checkbox "Agree" [checked] [ref=e9]
  - text: plain words"""

    assert readable(snapshot).splitlines() == [
        "[e1] generic:",
        '  [e2] heading "Prices" [level=1]',
        '  [e3] link "Home" → /index.html',
        '  [e9] checkbox "Agree" [checked]',
        "  text: plain words",
    ]


def test_quoted_keys_are_unquoted():
    assert readable("""- 'link "It''s: here" [ref=f1e4]':""") == """[f1e4] link "It's: here":"""
    assert readable("""- 'cell "''" [ref=e5]'""") == """[e5] cell "'\""""
    assert readable("""- 'row "a: b" [ref=e6]': some text""") == """[e6] row "a: b": some text"""


def test_what_a_page_writes_is_not_taken_for_a_ref_of_ours():
    assert readable('- button "x [ref=e99] y" [ref=e2]') == '[e2] button "x [ref=e99] y"'
    assert readable('- button "x\\" [ref=e99]" [ref=e2]: [ref=e7]') == '[e2] button "x\\" [ref=e99]": [ref=e7]'
    assert readable("- text: [ref=e99]") == "text: [ref=e99]"


def test_a_whole_text_has_no_note_and_an_empty_page_says_so():
    assert bounded("abc", 0, 3) == "abc"
    assert bounded("", 0, 0) == "(the page is empty)"


def test_a_cut_text_ends_with_a_line_and_says_where_to_read_on():
    text = "one\ntwo\nthree\n"

    assert bounded(text[:10], 0, len(text)) == "one\ntwo\n(characters 0 to 8 of 14; read on with start=8)"
    assert bounded(text[8:], 8, len(text)) == "three\n(characters 8 to 14 of 14)"
    assert bounded("abcdef", 0, 100) == "abcdef\n(characters 0 to 6 of 100; read on with start=6)"
    assert bounded("", 500, 100) == "\n(characters 100 to 500 of 100)"
