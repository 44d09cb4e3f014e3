"""Know-how for web tasks: reads the tree, follows links, searches, fills in forms, and finds the answer on the page.

What is asked is taken from the question's wording; what to do next and what the answer is, from the pages alone.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant

_TOOLS = frozenset({"open", "click", "type", "select", "read"})
_LINE = re.compile(
    r'^ *(?:\[(?P<ref>\w+)\] )?(?P<role>[a-z]+)(?: "(?P<name>(?:[^"\\]|\\.)*)")?(?P<marks>(?: \[[^\]]*\])*)'
    r"(?: → (?P<url>\S+))?:?(?: (?P<text>.*))?$"
)
_TIMES = "\N{MULTIPLICATION SIGN}"
_MAX_GUESSES = 6


@dataclass(frozen=True, slots=True)
class _Element:
    """One line of a tree."""

    role: str
    name: str
    ref: str = ""
    marks: str = ""
    text: str = ""

    @property
    def is_on(self) -> bool:
        return "[checked]" in self.marks


@dataclass(frozen=True, slots=True)
class _Action:
    """A call that was made, with the name of the element it went to."""

    tool: str
    target: str
    value: str = ""


@dataclass(slots=True)
class _Visit:
    """What happened so far: all trees that were read, all actions. `is_read`: nothing was done since the last tree."""

    question: str
    trees: list[list[_Element]] = field(default_factory=list)
    actions: list[_Action] = field(default_factory=list)
    is_read: bool = False

    @property
    def tree(self) -> list[_Element]:
        """The current page."""
        return self.trees[-1] if self.trees else []

    @property
    def heading(self) -> str:
        return _heading(self.tree)

    def find(self, name: str, *roles: str) -> _Element | None:
        """The element of one of these roles whose name is `name`, or begins with it."""
        named = [element for element in self.tree if element.role in roles and element.ref]
        exact = (element for element in named if _plain(element.name) == _plain(name))
        return next(exact, next((one for one in named if _plain(one.name).startswith(_plain(name))), None))

    def has_done(self, tool: str, target: str, value: str | None = None) -> bool:
        return any(
            (one.tool, _plain(one.target)) == (tool, _plain(target)) and value in (None, one.value)
            for one in self.actions
        )

    def fact(self, name: str) -> str | None:
        return _facts(self.tree).get(_plain(name))


class WebScript:
    """Solves tasks of the kinds that are bundled: look something up, fill a cart, fill in a form, find a page."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:  # noqa: ARG002
        return {tool.name for tool in tools} >= _TOOLS

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:  # noqa: ARG002
        visit = _visit(messages)
        if not visit.is_read:
            return _call(messages, "read", mode="tree")
        for pattern, plan in _PLANS:
            if found := pattern.match(visit.question):
                step = plan(visit, found.groupdict())
                return assistant(step) if isinstance(step, str) else _call(messages, step[0], **step[1])
        return assistant("I do not know how to do this")

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:  # noqa: ARG002
        visit = _visit(messages)
        if len(visit.actions) >= _MAX_GUESSES or rng.random() < 1 / _MAX_GUESSES:
            return assistant(f"perhaps {rng.randrange(10**6)}")
        links = [one for one in visit.tree if one.role in ("link", "button", "checkbox") and one.ref]
        if links and rng.random() < 2 / 3:
            return _call(messages, "click", ref=rng.choice(links).ref)
        if rng.random() < 1 / 2:
            return _call(messages, "scroll", direction=rng.choice(["up", "down"]))
        return _call(messages, "read", mode="tree")


_Step = str | tuple[str, Mapping[str, object]]
"""An answer, or a tool and its arguments."""


def _look_up(visit: _Visit, asked: dict[str, str]) -> _Step:
    """`the A of the B of T`: find T, read its B, and if that is not the end, find what it names."""
    *fields, thing = re.split(r" of (?:the )?", asked["what"])
    seen = {_plain(_heading(tree)): _facts(tree) for tree in visit.trees}
    while fields:
        name = fields.pop()
        value = seen.get(_plain(thing), {}).get(_plain(name))
        if value is None:
            return _reach(visit, thing)
        thing = value
    return thing


def _go_to(visit: _Visit, asked: dict[str, str]) -> _Step:
    return "done" if _plain(visit.heading) == _plain(asked["thing"]) else _reach(visit, asked["thing"])


def _reach(visit: _Visit, thing: str) -> _Step:
    """One step towards the page of `thing`: a link to it, a search for it, or a look at a page not seen yet."""
    if link := visit.find(thing, "link"):
        return "click", {"ref": link.ref}
    box = next((one for one in visit.tree if one.role == "searchbox"), None)
    if box and not visit.has_done("type", box.name, thing):
        return "type", {"ref": box.ref, "text": thing, "submit": True}
    links = [one for one in visit.tree if one.role == "link" and not visit.has_done("click", one.name)]
    words = set(_plain(visit.question).split())
    links.sort(key=lambda link: -len(words.intersection(_plain(link.name).split())))
    return ("click", {"ref": links[0].ref}) if links else "I cannot find it"


def _cheapest(visit: _Visit, asked: dict[str, str]) -> _Step:
    """Set the filters as the question says, sort by price, and take the first."""
    if visit.find("Sort by", "combobox") is None:
        return _reach(visit, "All products")
    wanted = {"Category": asked["category"], "Sort by": "Price, low to high"}
    for name, value in wanted.items():
        box = visit.find(name, "combobox")
        if box and not visit.has_done("select", name, value):
            return "select", {"ref": box.ref, "value": value}
    stock = visit.find("In stock only", "checkbox")
    if stock and not stock.is_on:
        return "click", {"ref": stock.ref}
    elements = visit.tree
    first = next((i for i, one in enumerate(elements) if one.role == "listitem"), len(elements))
    return next((one.name for one in elements[first:] if one.role == "link"), "there is none")


def _fill_cart(visit: _Visit, asked: dict[str, str]) -> _Step:
    """Each thing in turn, then the cart, the voucher, and what was asked."""
    for count, thing in re.findall(rf"(\d+) {_TIMES} (.+?)(?= and \d|$)", asked["things"]):
        if not any(f"{count} {_TIMES} {thing}" in notice for tree in visit.trees for notice in _notices(tree)):
            return _order(visit, count, thing)
    if visit.heading != "Cart":
        return _reach(visit, "Cart")
    if code := asked["voucher"]:
        box, button = visit.find("Voucher", "textbox"), visit.find("Apply", "button")
        if box and not visit.has_done("type", "Voucher", code):
            return "type", {"ref": box.ref, "text": code}
        if button and not visit.has_done("click", "Apply"):
            return "click", {"ref": button.ref}
    return visit.fact(asked["asked"]) or "unknown"


def _order(visit: _Visit, count: str, thing: str) -> _Step:
    """Its page, the quantity, the button."""
    if _plain(visit.heading) != _plain(thing):
        return _reach(visit, thing)
    box, button = visit.find("Quantity", "spinbutton"), visit.find("Add to cart", "button")
    if box is None or button is None:
        return "it cannot be ordered"
    if box.text != count:
        return "type", {"ref": box.ref, "text": count}
    return "click", {"ref": button.ref}


def _fill_form(visit: _Visit, asked: dict[str, str]) -> _Step:
    """Fill in every field of the page that the question names, go on, and answer from the last page."""
    if asked["asked"] and (answer := visit.fact(asked["asked"])):
        return answer
    if not asked["asked"] and _notices(visit.tree):
        return "done"
    for name, value in (pair.split(": ", 1) for pair in asked["fields"].split("; ")):
        if step := _fill(visit, name, value):
            return step
    buttons = [one for one in visit.tree if one.role == "button" and "[disabled]" not in one.marks]
    return ("click", {"ref": buttons[-1].ref}) if buttons else _reach(visit, asked["goal"])


def _fill(visit: _Visit, name: str, value: str) -> _Step | None:
    """What it takes to give the field `name` this value; None: nothing, it has it or is not here."""
    if (box := visit.find(name, "textbox", "spinbutton")) and not visit.has_done("type", name, value):
        return "type", {"ref": box.ref, "text": value}
    if (box := visit.find(name, "combobox")) and not visit.has_done("select", name, value):
        return "select", {"ref": box.ref, "value": value}
    if (box := visit.find(name, "checkbox")) and box.is_on != (value == "yes"):
        return "click", {"ref": box.ref}
    if (box := visit.find(value, "radio")) and not box.is_on:
        return "click", {"ref": box.ref}
    return None


_PLANS = (
    (re.compile(r"Which is the cheapest product in the category (?P<category>\w+) that is in stock\?"), _cheapest),
    (
        re.compile(
            r"Put (?P<things>.+?) into the cart(?: and use the voucher (?P<voucher>\w+))?\. "
            r"What is the (?P<asked>[^?]+)\?"
        ),
        _fill_cart,
    ),
    (
        re.compile(r"(?P<goal>.+?) with (?P<fields>[^:]+: .+?)\.(?: What is the (?P<asked>[^?]+)\?)?$"),
        _fill_form,
    ),
    (re.compile(r"(?:Go to|Open|Find) the page about (?:the )?(?P<thing>.+?)(?: and stay there)?\.$"), _go_to),
    (re.compile(r"(?:What|Who|Which) is the (?P<what>[^?]+)\?"), _look_up),
)


def _plain(text: str) -> str:
    """For comparing names: small letters, no article, no number in brackets behind it."""
    text = re.sub(r" \(\d+\)$", "", text.strip().casefold())
    return text.removeprefix("the ")


def _heading(tree: Sequence[_Element]) -> str:
    return next((one.name for one in tree if one.role == "heading" and "[level=1]" in one.marks), "")


def _facts(tree: Sequence[_Element]) -> dict[str, str]:
    """The rows of the page's tables that have a header: its name, and what stands beside it."""
    found = {}
    for index, element in enumerate(tree):
        if element.role == "rowheader":
            found[_plain(element.name)] = next((one.name for one in tree[index + 1 : index + 3] if one.name), "")
    return found


def _notices(tree: Sequence[_Element]) -> list[str]:
    """What the page says about what was done last."""
    return [one.text for one in tree if one.role == "status" and one.text]


def _call(messages: Sequence[Message], tool: str, **arguments: object) -> Message:
    return assistant(tool_calls=(ToolCall(id=f"call_{len(messages)}", name=tool, arguments=json.dumps(arguments)),))


def _elements(tree: str) -> list[_Element]:
    found = (_LINE.match(line) for line in tree.splitlines())
    return [
        _Element(
            role=one["role"],
            name=(one["name"] or "").replace('\\"', '"'),
            ref=one["ref"] or "",
            marks=one["marks"],
            text=(one["text"] or "").strip('"'),
        )
        for one in found
        if one is not None
    ]


def _exchanges(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, str]]:
    """The calls so far, each with its answer."""
    answers = {message.tool_call_id: message.content for message in messages if message.role is Role.TOOL}
    for message in messages:
        for call in message.tool_calls:
            yield call, answers.get(call.id, "")


def _visit(messages: Sequence[Message]) -> _Visit:
    question = next((message.content for message in messages if message.role is Role.USER), "")
    visit = _Visit(question.partition("\n\n")[0])
    names: dict[str, str] = {}
    for call, answer in _exchanges(messages):
        arguments = json.loads(call.arguments)
        visit.is_read = call.name == "read"
        if visit.is_read:
            visit.trees.append(_elements(answer))
            names.update({one.ref: one.name for one in visit.tree if one.ref})
            continue
        value = arguments.get("text", arguments.get("value", ""))
        visit.actions.append(_Action(call.name, names.get(arguments.get("ref", ""), ""), value))
    return visit
