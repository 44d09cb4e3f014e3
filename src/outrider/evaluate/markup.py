"""A conversation as HTML. Whatever models, tools and files said goes through `escape`: it is text, never markup."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import msgspec

from outrider.core import wire
from outrider.core.animation import MEDIA_TYPE, fitted
from outrider.core.artifact import Artifact
from outrider.core.attempt import Attempt
from outrider.core.chat import Image, Message
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.evaluate.conversation import Call, Conversation, Entry, EntryKind, is_result
from outrider.evaluate.plot import seconds_text
from outrider.evaluate.waterfall import profile_html

IMAGE_TYPES = frozenset({"image/png", "image/apng", "image/jpeg", "image/gif", "image/webp"})
MAX_TEXT = 20_000
"""Characters of one text that a page shows."""

MAX_IMAGE_BYTES = 1 << 20
"""Bytes of pictures in its conversation that a page shows of one rollout, and as much again of its recording."""


class Omissions:
    """Counts what did not fit into the page.

    `image_bytes` and `artifact_bytes` are the room left for pictures of the rollout at hand.
    """

    def __init__(self) -> None:
        self.n_texts = self.n_images = self.n_conversations = 0
        self.image_bytes = self.artifact_bytes = MAX_IMAGE_BYTES

    def next_rollout(self, room: int | None) -> None:
        """Pictures leave half of the room to what is said."""
        most = MAX_IMAGE_BYTES if room is None else max(min(MAX_IMAGE_BYTES, room * 3 // 16), 0)
        self.image_bytes = self.artifact_bytes = most

    def sentence(self) -> str:
        """Says what was left out; empty if nothing was."""
        counts = (
            (self.n_conversations, "middles of long conversations"),
            (self.n_images, "pictures"),
            (self.n_texts, "ends of long texts"),
        )
        parts = [f"{n:,} {what}" for n, what in counts if n]
        return f"Left out to keep this page small: {', '.join(parts)}." if parts else ""


def conversation_html(
    conversation: Conversation, omissions: Omissions, *, room: int | None = None, max_bytes: int | None = None
) -> str:
    """The inside of an opened rollout; its pictures leave some of the room, if that is said.

    Of one that is longer than `max_bytes` the middle is left out, and the note there names the command that shows it.
    """
    omissions.next_rollout(room)
    parts = list(_body(conversation, omissions))
    if max_bytes is None or sum(len(part.encode()) for part in parts) <= max_bytes:
        return "".join(parts)
    omissions.n_conversations += 1
    n_first = _n_that_fit(parts, max_bytes // 2)
    n_last = _n_that_fit(parts[n_first:][::-1], max_bytes // 2)
    command = f"<code>outrider view RUN {escape(conversation.result.full_name)}</code>"
    note = (
        f'<p class="note">Left out here: {len(parts) - n_first - n_last:,} parts of {len(parts):,}; see {command}</p>'
    )
    return "".join((*parts[:n_first], note, *parts[len(parts) - n_last :]))


def _n_that_fit(parts: Sequence[str], max_bytes: int) -> int:
    """How many of the first parts fit."""
    n_bytes = 0
    for number, part in enumerate(parts):
        n_bytes += len(part.encode())
        if n_bytes > max_bytes:
            return number
    return len(parts)


def _body(conversation: Conversation, omissions: Omissions) -> Iterator[str]:
    result = conversation.result
    yield _chips(_facts(conversation))
    if conversation.attempt is not None and conversation.attempt.failure is not None:
        yield _failure(conversation.attempt)
    answers = {"answer": result.output, "expected": result.expected, "explanation": result.explanation or None}
    given = {name: value for name, value in answers.items() if value is not None}
    if given:
        cells = (f"<div><h4>{name}</h4>{_pre(_shown(value), omissions)}</div>" for name, value in given.items())
        yield f'<div class="answers">{"".join(cells)}</div>'
    if result.metrics:
        yield _chips({name: f"{value:.6g}" for name, value in result.metrics.items()})
    yield profile_html(conversation.deeds)
    for turn, entries in groupby(conversation.entries, key=lambda entry: entry.turn):
        yield _heading(turn, held := list(entries))
        for entry in held:
            if not is_result(entry):
                yield _entry(entry, omissions)
    if len(conversation.attempts) > 1:
        yield _attempts(conversation)


def _facts(conversation: Conversation) -> dict[str, str]:
    result, attempt = conversation.result, conversation.attempt
    facts = {
        "rollout": result.full_name,
        "status": result.status,
        "reward": "none" if result.reward is None else f"{result.reward:g}",
        "stopped": result.stop_reason,
        "tag": result.tag or "",
        "seed": "" if result.seed is None else str(result.seed),
        "turns": f"{result.n_turns:,}",
        "tokens": f"{result.prompt_tokens:,} in, {result.completion_tokens:,} out",
        "time": "" if result.seconds is None else seconds_text(result.seconds),
        "model time": seconds_text(result.model_seconds) if result.n_turns else "",
        "attempt": "" if attempt is None else f"{attempt.sequence_id} of {len(conversation.attempts)}",
        "worker": "" if attempt is None else attempt.worker_id,
    }
    return {name: value for name, value in (facts | dict(result.kinds)).items() if value}


def _chips(facts: Mapping[str, str]) -> str:
    chips = (f'<span class="chip">{escape(name)} <b>{escape(value)}</b></span>' for name, value in facts.items())
    return f'<div class="chips">{"".join(chips)}</div>'


def _failure(attempt: Attempt) -> str:
    failure = attempt.failure
    assert failure is not None
    trace = f"<details><summary>traceback</summary><pre>{escape(failure.traceback or '')}</pre></details>"
    where = f" in {failure.stage}" if failure.stage else ""
    title = f"<b>{escape(failure.boundary)}</b>: {escape(failure.kind)}{escape(where)}"
    return f'<div class="failure">{title}<pre>{escape(failure.message)}</pre>{trace if failure.traceback else ""}</div>'


def _attempts(conversation: Conversation) -> str:
    lines = []
    for attempt in conversation.attempts:
        why = "" if attempt.failure is None else f" · {attempt.failure.boundary}: {attempt.failure.message}"
        seconds = "" if attempt.ended_at is None else (attempt.ended_at - attempt.started_at).total_seconds()
        took = f" after {seconds_text(seconds)}" if isinstance(seconds, float) else ""
        lines.append(f"attempt {attempt.sequence_id} on {attempt.worker_id}: {attempt.status}{took}{why}")
    rows = "".join(f'<div class="event">{escape(line)}</div>' for line in lines)
    return f'<div class="turn"><b>attempts</b></div>{rows}'


def _heading(turn: int, entries: list[Entry]) -> str:
    call = next((entry.call for entry in entries if entry.call is not None), None)
    title = f"turn {turn}" if turn else "opening"
    return f'<div class="turn"><b>{title}</b>{escape(call_text(call)) if call else ""}</div>'


def call_text(call: Call) -> str:
    """What a model call took, in a line: `1.2 s · 120 → 35 tokens · length`; in a team also whose it was."""
    parts = [
        *_team_text(call),
        seconds_text(call.seconds),
        f"{call.prompt_tokens:,} → {call.completion_tokens:,} tokens",
    ]
    if call.cached_tokens:
        parts.append(f"{call.cached_tokens:,} cached")
    parts.append(call.finish_reason)
    if call.n_retries:
        parts.append(f"retried {call.n_retries} times")
    if call.policy_version:
        parts.append(f"version {call.policy_version}")
    return " · ".join([*parts, call.model] if call.model else parts)


def _team_text(call: Call) -> Iterator[str]:
    """Whose call it was, in which round, and what came of it: `critic · round 2 · verdict reject`."""
    if (known := call.in_team) is None:
        return
    yield known.agent
    yield f"round {known.round + 1}"
    if known.route:
        yield known.route
    if known.policy:
        yield f"policy {known.policy}"
    if call.outcome is None:
        yield "came to nothing"
    elif call.outcome.verdict:
        yield f"verdict {call.outcome.verdict}"
    if call.outcome is not None and not call.outcome.used:
        yield "not used"


def _entry(entry: Entry, omissions: Omissions) -> str:
    if entry.message is not None:
        return _message(entry, entry.message, omissions)
    if entry.artifact is not None:
        return _artifact(entry.artifact, omissions)
    text = f"<b>{escape(entry.text)}</b>" if entry.text else ""
    reward = "" if entry.reward is None else f" reward <b>{entry.reward:g}</b>"
    data = escape(" " + _cut(_shown(dict(entry.data)), omissions)) if entry.data else ""
    label = {EntryKind.TRIMMED: "✂", EntryKind.STEP: "step"}.get(entry.kind, entry.kind.value)
    return f'<div class="event">{label} {text}{reward}{data}</div>'


def _message(entry: Entry, message: Message, omissions: Omissions) -> str:
    who = " ".join(filter(None, (message.role.value, entry.tool, entry.agent)))
    when = f"{entry.at_seconds:.2f} s" if entry.seconds is None else f"took {seconds_text(entry.seconds)}"
    parts = [f'<div class="role"><b>{escape(who)}</b><span>{when}</span></div>']
    if message.reasoning:
        parts.append(f'<div class="reasoning">{_pre(message.reasoning, omissions)}</div>')
    if message.content:
        parts.append(_pre(message.content, omissions))
    parts += [_image(image, omissions) for image in message.images]
    for call in message.tool_calls:
        arguments = _pre(pretty_json(call.arguments), omissions)
        parts.append(f'<div class="call"><b>{escape(call.name)}</b>{arguments}</div>')
    return f'<div class="message {message.role.value}">{"".join(parts)}</div>'


def _image(image: Image, omissions: Omissions) -> str:
    if image.media_type not in IMAGE_TYPES or len(image.data) > omissions.image_bytes:
        return _left_out(image, omissions)
    omissions.image_bytes -= len(image.data)
    return _img(image)


def _artifact(artifact: Artifact, omissions: Omissions) -> str:
    """A picture is shown, one that moves with as many of its frames as there is room for; of others it is told."""
    facts = f"{escape(artifact.media_type)}, {len(artifact.data):,} bytes"
    head = f'<div class="role"><b>{escape(artifact.name)}</b><span>{facts}</span></div>'
    body = ""
    if artifact.media_type in IMAGE_TYPES:
        image = Image(data=artifact.data, media_type=artifact.media_type)
        shown = _fitted(image, omissions.artifact_bytes)
        body = _left_out(image, omissions) if shown is None else _img(shown)
        omissions.artifact_bytes -= 0 if shown is None else len(shown.data)
    return f'<div class="message artifact">{head}{body}</div>'


def _fitted(image: Image, room: int) -> Image | None:
    data = fitted(image.data, room) if image.media_type == MEDIA_TYPE else image.data
    return None if data is None or len(data) > room else Image(data=data, media_type=image.media_type)


def _left_out(image: Image, omissions: Omissions) -> str:
    omissions.n_images += 1
    return f'<div class="soft">picture left out: {escape(image.media_type)}, {len(image.data):,} bytes</div>'


def _img(image: Image) -> str:
    data = base64.b64encode(image.data).decode()
    return f'<img loading="lazy" alt="picture" src="data:{image.media_type};base64,{data}">'


def _pre(text: str, omissions: Omissions) -> str:
    return f"<pre>{escape(_cut(text, omissions))}</pre>"


def _cut(text: str, omissions: Omissions) -> str:
    text = text.encode(errors="replace").decode()
    if len(text) <= MAX_TEXT:
        return text
    omissions.n_texts += 1
    return f"{text[:MAX_TEXT]}\n… {len(text) - MAX_TEXT:,} more characters"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else readable(value)


def readable(value: Any) -> str:
    """Any recorded value as text: JSON where it has such a form."""
    try:
        return wire.to_json(value)
    except (InvalidInput, TypeError, ValueError, RecursionError):
        return repr(value)


def pretty_json(text: str) -> str:
    """JSON text over several lines if it is long; as it is if it is not JSON."""
    try:
        value = from_json(text.encode(errors="replace"))
    except (ValueError, RecursionError):
        return text
    compact = msgspec.json.encode(value).decode()
    one_line = 100
    return compact if len(compact) <= one_line else msgspec.json.format(compact, indent=2)
