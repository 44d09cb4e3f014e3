"""The script for questions over documents: searches, reads what is found, and searches again if that is not enough."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant
from outrider.core.decoding import from_json

SEARCH = "search"
UNKNOWN = "unknown"

_HEADER = re.compile(r"^\[\d+\] (?P<title>.*) \(id: .*\)$", re.MULTILINE)
_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[\w'-]+")
_NAME = r"[A-Z][\w'-]+(?: [A-Z][\w'-]+)*"
_NUMBER = r"\d[\d,]*|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|hundred"
_COMMON = """
a an and are at been by called did do does for from had has have how in is it its many much of on or that the to was
were what when where which who whose with year
"""
_IDLE = frozenset(_COMMON.split())
_IRREGULAR: Mapping[str, str] = {"wrote": "writt"}
_STEM = 5
"""So many letters tell a word from others: founded and founder begin alike."""

_RELATION = re.compile(
    r"\bthe (?P<role>designer|founder|discoverer|author|builder|captain|keeper) of (?P<thing>.+?)(?= (?:born|die)|\?)"
)
_DEEDS: Mapping[str, str] = {
    "designer": "designed",
    "founder": "founded",
    "discoverer": "discovered",
    "author": "wrote",
    "builder": "built",
}


_FORMS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"^How many ([\w-]+)"), (rf"\b({_NUMBER}) (?:\w+ )?COUNTED\b",)),
    (re.compile(r"^How (?:long|high|tall|deep|heavy|wide|old|far)"), (r"(\d[\d,.]* (?:square )?[a-z]+)",)),
    (re.compile(r"^(?:In which|In what|Which|What) year|^When"), (r"\b(\d{3,4})\b",)),
    (re.compile(r"^Who"), (rf"\bby ({_NAME})", rf"\b(?:was|is) ({_NAME})")),
    (re.compile(r"^Where"), (rf"\b(?:in|at|on) ({_NAME})",)),
    (re.compile(r"called\?$"), (rf"\bcalled ((?:the )?{_NAME})", r"\bcalled ([^,.;]+)")),
)
"""What a question begins or ends with, and how sentences that answer it say so."""


class _Passage(NamedTuple):
    """A passage as the search shows it."""

    title: str
    text: str


class _Search(NamedTuple):
    """What has to be looked for before anything can be said."""

    query: str


class RagScript:
    """Takes the question apart: what kind of answer is wanted, and which words must stand near it."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        return any(tool.name == SEARCH for tool in tools) and bool(_question(messages))

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:  # noqa: ARG002 search is there
        found = _answer(_question(messages), _results(messages))
        if isinstance(found, _Search):
            return _searching(found.query, len(messages))
        return assistant(f"Answer: {found}")

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:  # noqa: ARG002
        """Searches for one word of the question, and answers with another."""
        return _guessed(rng.choice(_guesses(messages)), messages)

    def chance(self, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message) -> float:  # noqa: ARG002
        words = _guesses(messages)
        return sum(_guessed(word, messages) == message for word in words) / len(words)


def _guesses(messages: Sequence[Message]) -> list[str]:
    return [word for word in _WORD.findall(_question(messages)) if word.lower() not in _IDLE] or [UNKNOWN]


def _guessed(word: str, messages: Sequence[Message]) -> Message:
    has_searched = any(message.role is Role.TOOL for message in messages)
    return assistant(f"Answer: {word}") if has_searched else _searching(word, len(messages))


def _question(messages: Sequence[Message]) -> str:
    return next((message.content.strip() for message in messages if message.role is Role.USER), "")


def _searching(query: str, number: int) -> Message:
    arguments = msgspec.json.encode({"query": query}).decode()
    return assistant("", (ToolCall(id=f"search-{number}", name=SEARCH, arguments=arguments),))


def _results(messages: Sequence[Message]) -> dict[str, list[_Passage]]:
    """What was searched for so far, and what came of it."""
    calls = {call.id: call for message in messages for call in message.tool_calls if call.name == SEARCH}
    results: dict[str, list[_Passage]] = {}
    for message in messages:
        call = calls.get(message.tool_call_id or "")
        if message.role is Role.TOOL and call is not None:
            results[_query_of(call)] = _passages(message.content)
    return results


def _query_of(call: ToolCall) -> str:
    try:
        return from_json(call.arguments, dict[str, str])["query"]
    except (msgspec.DecodeError, KeyError):
        return ""


def _passages(shown: str) -> list[_Passage]:
    headers = list(_HEADER.finditer(shown))
    ends = [*(header.start() for header in headers), len(shown)][1:]
    return [
        _Passage(header["title"], " ".join(shown[header.end() : end].split()))
        for header, end in zip(headers, ends, strict=True)
    ]


def _answer(question: str, results: Mapping[str, list[_Passage]]) -> str | _Search:
    """The answer, or what to search for next. Somebody who is only described is found first."""
    described = None if question.startswith("Who") else _RELATION.search(question)
    if described is not None:
        role, thing = described["role"], described["thing"]
        who = f"Who {_DEEDS[role]} {thing}?" if role in _DEEDS else f"Who was the {role} of {thing}?"
        name = _answer(who, results)
        if isinstance(name, _Search) or name == UNKNOWN:
            return name
        question = question.replace(described[0], name)
    for query in _queries(question):
        if query not in results:
            return _Search(query)
        found = _read(question, results[query])
        if found:
            return found
    return UNKNOWN


def _queries(question: str) -> list[str]:
    """First all words that tell something, then only the names."""
    words = [word for word in _WORD.findall(question) if word.lower() not in _IDLE]
    names = [word for word in words if word[0].isupper()]
    return list(dict.fromkeys(" ".join(some) for some in (words, names) if some))


def _read(question: str, passages: Sequence[_Passage]) -> str:
    """The answer in the passages that speak of all that the question does, in the sentence nearest to it."""
    wanted = _stems(question)
    for passage in passages:
        if not wanted <= _stems(f"{passage.title} {passage.text}"):
            continue
        sentences = _SENTENCES.split(passage.text)
        for sentence in sorted(sentences, key=lambda sentence: -len(wanted & _stems(sentence))):
            found = _found(question, sentence, wanted - _stems(passage.title))
            if found and not _stems(found) <= wanted:
                return found
    return ""


def _stems(text: str) -> set[str]:
    words = [word.lower() for word in _WORD.findall(text)]
    return {_IRREGULAR.get(word, word[:_STEM]) for word in words if word not in _IDLE}


def _found(question: str, sentence: str, wanted: set[str]) -> str:
    """What in the sentence has the form of an answer, the first such thing behind a word of the question."""
    anchors = [word.end() for word in _WORD.finditer(sentence) if _stems(word[0]) & wanted]
    if not anchors:
        return ""
    for pattern in _forms(question):
        matches = list(re.finditer(pattern, sentence))
        behind = [match for match in matches if match.start(1) >= anchors[0]]
        if matches:
            return (behind or matches)[0][1].strip()
    return ""


def _forms(question: str) -> Sequence[str]:
    """The forms that an answer to such a question takes, the likelier first."""
    for kind, forms in _FORMS:
        if match := kind.search(question):
            return [form.replace("COUNTED", re.escape(match[1])) if match.groups() else form for form in forms]
    return [r"\bis ([^,.;]+)"]
