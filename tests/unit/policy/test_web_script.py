"""The script for web tasks, on pages that are bundled nowhere."""

import json
import random
from collections.abc import Callable

import pytest

from outrider.core.chat import Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.policy.scripted.web import WebScript

TOOLS = tuple(
    ToolSpec(name=name, description="", parameters={})
    for name in ("open", "click", "type", "select", "scroll", "back", "read", "screenshot")
)


class Pages:
    """A site of trees: each call leads to the page that `links` name for it, if they do."""

    def __init__(self, start: str, trees: dict[str, str], links: dict[tuple[str, str], str]) -> None:
        self.at = start
        self.trees = trees
        self.links = links
        self.calls: list[tuple[str, dict[str, object]]] = []

    def answer(self, call: ToolCall) -> str:
        arguments = json.loads(call.arguments)
        if call.name == "read":
            return self.trees[self.at]
        self.calls.append((call.name, arguments))
        self.at = self.links.get((self.at, arguments.get("ref", "")), self.at)
        return "done"


def play(question: str, pages: Pages, move: Callable[[list[Message]], Message] | None = None) -> str:
    messages = [system("rules"), user(f"{question}\n\nThe browser has a page open:\nsome page")]
    for _ in range(40):
        reply = (move or (lambda so_far: WebScript().solve(so_far, TOOLS)))(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return reply.content
        messages.extend(tool_result(call, pages.answer(call)) for call in reply.tool_calls)
    raise AssertionError("it never answers")


def row(name: str, value: str) -> str:
    return f'[x1] row:\n  [x2] rowheader "{name}"\n  [x3] cell "{value}"'


def test_it_knows_its_domain_by_the_tools():
    script = WebScript()
    assert script.understands([user("?")], TOOLS)
    assert not script.understands([user("?")], [ToolSpec(name="search", description="", parameters={})])


def test_it_follows_links_from_thing_to_thing():
    pages = Pages(
        "home",
        {
            "home": '[e1] heading "Home" [level=1]\n[e2] link "Bridges" → /b\n[e3] link "Cats" → /c',
            "bridges": '[e4] heading "Bridges" [level=1]\n[e5] link "Old Bridge" → /o\n[e2] link "Bridges"',
            "old": f'[e6] heading "Old Bridge" [level=1]\n{row("Span", "12 m")}\n'
            '[e7] row:\n  [e8] rowheader "Builder"\n  [e9] cell:\n    [e10] link "Nan Pell" → /n',
            "nan": f'[e11] heading "Nan Pell" [level=1]\n{row("Trade", "mason")}',
        },
        {("home", "e2"): "bridges", ("bridges", "e5"): "old", ("old", "e10"): "nan"},
    )

    assert play("What is the trade of the builder of the Old Bridge?", pages) == "mason"
    assert [call for call, _ in pages.calls] == ["click"] * 3


def test_it_searches_where_there_is_a_search_box():
    found = f'[e1] heading "Red \\"Star\\" lamp" [level=1]\n{row("Price", "€ 12")}'
    pages = Pages(
        "home",
        {
            "home": '[e1] heading "Lamps" [level=1]\n[e2] searchbox "Find"',
            "list": '[e3] link "Red \\"Star\\" lamp" → /x',
            "lamp": found,
        },
        {("home", "e2"): "list", ("list", "e3"): "lamp"},
    )

    assert play('What is the price of the Red "Star" lamp?', pages) == "€ 12"
    assert pages.calls[0] == ("type", {"ref": "e2", "text": 'Red "Star" lamp', "submit": True})


def test_it_fills_in_the_fields_that_the_question_names():
    form = '[e1] textbox "Your name"\n[e2] combobox "Colour":\n[e3] radio "Large"\n'
    form += '[e4] checkbox "Gift" [checked]\n[e5] button "Send"'
    pages = Pages("form", {"form": form, "end": row("Receipt", "R-7")}, {("form", "e5"): "end"})

    class Ticking(Pages):
        def answer(self, call: ToolCall) -> str:
            answer = super().answer(call)
            if json.loads(call.arguments).get("ref") in ("e3", "e4"):
                self.trees["form"] = form.replace('"Large"', '"Large" [checked]').replace(
                    ' "Gift" [checked]', ' "Gift"'
                )
            return answer

    pages = Ticking("form", pages.trees, pages.links)
    question = "Order with your name: Bo; colour: blue; size: Large; gift: no. What is the receipt?"

    assert play(question, pages) == "R-7"
    assert ("type", {"ref": "e1", "text": "Bo"}) in pages.calls
    assert ("select", {"ref": "e2", "value": "blue"}) in pages.calls
    assert pages.calls[-1] == ("click", {"ref": "e5"})


@pytest.mark.parametrize("question", ["", "What is the price of the Moon?", "Write a poem.", "Apply with x: y."])
def test_what_it_cannot_find_ends_in_an_answer_all_the_same(question: str):
    pages = Pages("home", {"home": '[e1] heading "Empty" [level=1]\n: garbage "\n\x00 ['}, {})

    assert play(question, pages)


def test_it_is_not_confused_by_refused_calls():
    refused = [
        system("rules"),
        user("What is the price of the Lamp?"),
        assistant(tool_calls=(ToolCall(id="1", name="read"),)),
        tool_result(ToolCall(id="1", name="read"), "error: the page crashed"),
    ]
    assert WebScript().solve(refused, TOOLS)


@pytest.mark.parametrize("seed", range(20))
def test_a_guess_keeps_to_the_form_and_ends_soon_with_a_wrong_answer(seed: int):
    rng = random.Random(seed)
    pages = Pages("home", {"home": '[e1] link "A" → /a\n[e2] button "B"\n[e3] textbox "C"'}, {})

    answer = play("What is the price of A?", pages, lambda so_far: WebScript().guess(so_far, TOOLS, rng))

    assert answer.startswith("perhaps")
    assert all(call in ("click", "scroll") for call, _ in pages.calls)
    assert all(arguments.get("ref") in (None, "e1", "e2") for _, arguments in pages.calls)
