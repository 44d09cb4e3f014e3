"""The script for members of a team: reads from its prompt which part to play, and plays it by what the others know.

A prompt begins with what it is about, in tags: `<question>`, or `<opening>` and `<seen>`. What others said is in
`<team>`. Its last paragraph says what to do and in which form: that form tells the part.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.policy.scripted.protocol import Script

_SECTION = re.compile(r"<(?P<name>question|opening|seen|team)>(?P<text>.*)</(?P=name)>", re.DOTALL)
_HEADING = re.compile(r"^\[([^\],]+), round \d+\]\n", re.MULTILINE)
_QUERY = re.compile(r"<search>(.*?)</search>", re.DOTALL)
_TASK = re.compile(r"<task>(.*?)</task>", re.DOTALL)
_WORD = re.compile(r"[\w'-]{4,}")
_NUMBER = re.compile(r"(?<![\^\d.])\d+")
_PROGRAM = "team"
"""The author of what the team's program has found."""

_BOX = "\\boxed"
_SEARCH = ToolSpec(name="search", description="", parameters={})


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a member is told: the sections, and who has said what."""

    sections: Mapping[str, str]
    said: Sequence[tuple[str, str]]
    form: str

    @property
    def question(self) -> str:
        """What is to be answered: the question, or the task that another has written."""
        tasks = [task for _, text in self.said for task in _TASK.findall(text)]
        return self.sections.get("question") or (tasks[-1] if tasks else "")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one who knows says, and all that one may say who does not."""

    solve: Callable[["TeamsScript", _Prompt], str]
    guesses: Callable[["TeamsScript", _Prompt], Sequence[str]]


class TeamsScript:
    """Plays searchers, critics, solvers, verifiers, debaters, judges, planners, and actors in the domains given."""

    def __init__(self, domains: Mapping[str, Script]) -> None:
        self._domains = domains

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        return not tools and self._part(messages) is not None

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:  # noqa: ARG002 there are none
        part, prompt = self._known(messages)
        return assistant(part.solve(self, prompt))

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:  # noqa: ARG002
        part, prompt = self._known(messages)
        return assistant(rng.choice(part.guesses(self, prompt)))

    def chance(self, messages: Sequence[Message], tools: Sequence[ToolSpec], message: Message) -> float:  # noqa: ARG002
        part, prompt = self._known(messages)
        guesses = part.guesses(self, prompt)
        return sum(guess == message.content for guess in guesses) / len(guesses)

    def solution(self, prompt: _Prompt) -> str:
        """The answer to a question with one, boxed."""
        return self._domains["math"].solve((system(_BOX), user(prompt.question)), ()).content

    def finding(self, prompt: _Prompt) -> tuple[str, str]:
        """The answer from what was found, and what to search for; one of them is empty."""
        message = self._domains["rag"].solve(_searches(prompt), (_SEARCH,))
        if message.tool_calls:
            return "", json.loads(message.tool_calls[0].arguments)["query"]
        return message.content, ""

    def action(self, prompt: _Prompt) -> str:
        script, messages = self._acting(prompt)
        return script.solve(messages, ()).content

    def some_actions(self, prompt: _Prompt) -> list[str]:
        script, messages = self._acting(prompt)
        return [script.guess(messages, (), random.Random(n)).content for n in range(_N_GUESSES)]

    def _acting(self, prompt: _Prompt) -> tuple[Script, tuple[Message, ...]]:
        messages = _conversation(prompt)
        return next(script for script in self._domains.values() if script.understands(messages, ())), messages

    def _known(self, messages: Sequence[Message]) -> tuple[_Part, _Prompt]:
        found = self._part(messages)
        if found is None:
            raise ValueError("the prompt asks for nothing that a team's member can do")
        return found

    def _part(self, messages: Sequence[Message]) -> tuple[_Part, _Prompt] | None:
        prompt = _read(messages)
        if prompt is None:
            return None
        for form, part in _PARTS.items():
            if form in prompt.form:
                return part, prompt
        can_act = "opening" in prompt.sections and any(
            script.understands(_conversation(prompt), ()) for script in self._domains.values()
        )
        return (_ACTOR, prompt) if can_act else None


def _read(messages: Sequence[Message]) -> _Prompt | None:
    """The prompt of a member, which is asked but once."""
    if not messages or messages[-1].role is not Role.USER or any(one.role is Role.ASSISTANT for one in messages):
        return None
    text = messages[-1].content
    sections = _sections(text)
    if not sections:
        return None
    _, *said = _HEADING.split(sections.get("team", ""))
    return _Prompt(sections, tuple(zip(said[::2], said[1::2], strict=True)), text.rpartition("\n\n")[2])


def _sections(text: str) -> dict[str, str]:
    """The sections by name; what is like a tag within one belongs to it."""
    found = {}
    at = 0
    while match := _SECTION.match(text, at):
        found[match["name"]] = match["text"].strip()
        at = match.end() + 2
    return found


def _searches(prompt: _Prompt) -> tuple[Message, ...]:
    """What was searched for and found, as one who searches alone would remember it."""
    messages = [user(prompt.question)]
    for (_, asked), (author, found) in pairwise(prompt.said):
        if author == _PROGRAM and (queries := _QUERY.findall(asked)):
            arguments = json.dumps({"query": queries[-1].strip()})
            call = ToolCall(id=f"search-{len(messages)}", name=_SEARCH.name, arguments=arguments)
            messages += assistant("", (call,)), tool_result(call, found)
    return tuple(messages)


def _conversation(prompt: _Prompt) -> tuple[Message, ...]:
    """An opening and what was seen since, as one who acts alone would remember it."""
    rules, _, question = prompt.sections.get("opening", "").rpartition("\n\n")
    seen = prompt.sections.get("seen", "")
    return (system(rules), user(question), *([user(seen)] if seen else []))


def _box(text: str) -> str:
    return text.rpartition(_BOX)[2].strip()


def _check(script: TeamsScript, prompt: _Prompt) -> str:
    """Work it out, and compare with the last that was said."""
    if prompt.said and _box(prompt.said[-1][1]) == _box(script.solution(prompt)):
        return "I come to the same. <verify>approve</verify>"
    return "I come to something else. <verify>reject</verify>"


def _pick(script: TeamsScript, prompt: _Prompt) -> str:
    """Whoever said last what is right, or else the first."""
    right = _box(script.solution(prompt))
    last = dict(prompt.said)
    return _picking(next((author for author, text in last.items() if _box(text) == right), next(iter(last), "")))


def _picking(name: str) -> str:
    return f"<pick>{name}</pick>"


def _propose(_: TeamsScript, prompt: _Prompt) -> str:
    """The same with other numbers."""
    return f"<task>{_NUMBER.sub(lambda number: str(int(number[0]) + 1), prompt.question)}</task>"


def _words(prompt: _Prompt) -> list[str]:
    return _WORD.findall(prompt.question) or ["unknown"]


def _always(*texts: str) -> Callable[[TeamsScript, _Prompt], Sequence[str]]:
    return lambda _script, _prompt: texts


_N_GUESSES = 20
_WRONG = tuple(f"Final Answer: {_BOX}{{{number}}}" for number in range(1000, 1100))
_PLAN = "<plan>Work out what was asked, then say it in the form that was asked for.</plan>"
_INFO = "<info>There is nothing to add to what was said and seen.</info>"

_ACTOR = _Part(TeamsScript.action, TeamsScript.some_actions)
_PARTS: Mapping[str, _Part] = MappingProxyType(
    {
        "<verify>yes</verify>": _Part(
            lambda script, prompt: f"<verify>{'yes' if script.finding(prompt)[0] else 'no'}</verify>",
            _always("<verify>yes</verify>", "<verify>no</verify>"),
        ),
        "<verify>approve</verify>": _Part(_check, _always("<verify>approve</verify>", "<verify>reject</verify>")),
        "<search>": _Part(
            lambda script, prompt: f"<search>{script.finding(prompt)[1] or prompt.question}</search>",
            lambda _, prompt: [f"<search>{word}</search>" for word in _words(prompt)],
        ),
        "Answer:": _Part(
            lambda script, prompt: script.finding(prompt)[0] or "Answer: unknown",
            lambda _, prompt: [f"Answer: {word}" for word in _words(prompt)],
        ),
        "<pick>": _Part(
            _pick, lambda _, prompt: [_picking(author) for author in dict(prompt.said)] or [_picking("nobody")]
        ),
        "<task>": _Part(_propose, _always("<task>Why?</task>", "<task>What is it?</task>")),
        "<plan>": _Part(lambda *_: _PLAN, _always(_PLAN, "<plan>Try something.</plan>")),
        "<info>": _Part(lambda *_: _INFO, _always(_INFO, "<info>It does not matter.</info>")),
        _BOX: _Part(TeamsScript.solution, _always(*_WRONG)),
    }
)
"""The parts by the form that they are asked for."""
