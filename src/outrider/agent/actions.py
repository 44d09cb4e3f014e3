"""Reading an action out of what a model wrote, in the form of ReAct: tolerant where only one thing can be meant."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from outrider.core.chat import ToolSpec

_LABEL = re.compile(
    r"^[ \t>*_#`-]*(?P<label>thought|action[ _]input|action|final[ _]answer|observation)[ \t*_`]*:[*_]*",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = "```"
_NAME = re.compile(r"[\w.:-]+")
_BARE_KEY = re.compile(r"(?P<before>[{,]\s*)(?P<key>[A-Za-z_][\w-]*)(?P<after>\s*:)")
_BARE_VALUE = re.compile(r"(?P<before>:\s*)(?P<value>[^\s\"'{}\[\],:][^\"'{}\[\],:]*?)(?P<after>\s*[,}])")
_MAX_REPAIR_CHARACTERS = 2_000
"""Beyond this nobody forgets a quote, and looking for it would take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A tool to call. `arguments` is the JSON text of one object; `n_more` actions after it were not read."""

    name: str
    arguments: str
    n_more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalAnswer:
    """What the model answers."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """Not readable: what the model should be told."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A label, the text up to the next label, and where in the message it begins."""

    label: str
    text: str
    begin: int


def read_action(text: str, tools: Sequence[ToolSpec]) -> Action | FinalAnswer | Malformed:
    """The first action or final answer in `text`."""
    parts = _parts(text)
    for i, part in enumerate(parts):
        if part.label == "final answer":
            return FinalAnswer(text=_unopened(part.text))
        if part.label == "action":
            n_more = sum(other.label == "action" for other in parts[i + 1 :])
            has_input = parts[i + 1 : i + 2] and parts[i + 1].label == "action input"
            return _action(part, parts[i + 1] if has_input else None, text, n_more, tools)
    return Malformed(
        reason="there is neither an `Action:` nor a `Final Answer:` in your message; keep to the form you were given"
    )


def _parts(text: str) -> list[_Part]:
    matches = list(_LABEL.finditer(text))
    ends = [match.start() for match in matches] + [len(text)]
    return [
        _Part(
            label=match["label"].lower().replace("_", " "),
            text=text[match.end() : end].strip(),
            begin=match.end(),
        )
        for match, end in zip(matches, ends[1:], strict=True)
    ]


def _action(
    part: _Part, its_input: _Part | None, text: str, n_more: int, tools: Sequence[ToolSpec]
) -> Action | Malformed:
    written = _unfenced(part.text).strip("`*_ \t\n")
    name = _NAME.match(written)
    if name is None:
        return Malformed(reason="`Action:` names no tool; write the name of one tool behind it")
    tool = next((tool for tool in tools if tool.name == name[0]), None)
    if tool is None:
        names = [tool.name for tool in tools]
        near = get_close_matches(name[0], names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        return Malformed(reason=f"there is no tool {name[0]!r}; {hint}")
    if its_input is not None:
        arguments = _arguments(its_input.text, text[its_input.begin :].strip(), tool)
    else:  # some write `Action: name {…}` or `Action: name(…)`
        beside = written[name.end() :].strip()
        if beside.startswith("(") and beside.endswith(")"):
            beside = beside[1:-1]
        arguments = _arguments(beside, beside, tool)
    if arguments is None:
        return Malformed(
            reason=f"the `Action Input:` of {tool.name} is not a JSON object; write one, such as {_sample(tool)}"
        )
    return Action(name=tool.name, arguments=json.dumps(arguments, ensure_ascii=False), n_more=n_more)


def _arguments(text: str, rest: str, tool: ToolSpec) -> dict[str, Any] | None:
    """The object that was meant. `rest` is tried first: a text inside of the JSON may look like a label."""
    whole = _object(rest)
    if whole is not None:
        return whole
    text = _unfenced(text)
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    if not text:
        return None if tool.parameters.get("required") else {}
    if text.startswith("{"):
        return _repaired(text)
    if len(properties) == 1:
        [(name, schema)] = properties.items()
        value = _value(text)
        return {name: text if schema.get("type") == "string" and not isinstance(value, str) else value}
    return None


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` begins with, behind a fence or not; line breaks inside of strings are allowed."""
    begin = re.match(r"(?:```[\w-]*\s*)?(?=\{)", text)
    if begin is None:
        return None
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _repaired(text: str) -> dict[str, Any] | None:
    """An object with quotes missing or single ones, as Python writes it."""
    text = text[: text.rfind("}") + 1]
    if not text or len(text) > _MAX_REPAIR_CHARACTERS:
        return None
    quoted = _BARE_KEY.sub(r'\g<before>"\g<key>"\g<after>', text)
    for candidate in (quoted, _BARE_VALUE.sub(_quoted_value, quoted)):
        if (value := _object(candidate)) is not None:
            return value
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else None


def _quoted_value(match: re.Match[str]) -> str:
    return match["before"] + json.dumps(_value(match["value"])) + match["after"]


def _value(text: str) -> Any:
    """A number, true, false, null or quoted string as JSON has it; anything else is a string."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, dict | list) else value


def _unfenced(text: str) -> str:
    """The text inside of a code fence, where it is in one."""
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE) and "\n" in text:
        text = text.partition("\n")[2].removesuffix(_FENCE)
    return _unopened(text)


def _unopened(text: str) -> str:
    """The text without the end of a fence that was opened before it."""
    return text.removesuffix(_FENCE).strip() if text.count(_FENCE) % 2 else text.strip()


def _sample(tool: ToolSpec) -> str:
    return json.dumps(dict.fromkeys(tool.parameters.get("properties", {}), "…"), ensure_ascii=False)
