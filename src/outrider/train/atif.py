"""A trajectory as an ATIF document, for viewers and trainers that read Harbor's format; see `atif_document`.

Each agent has a document of its own: that of the first is the root, the others are embedded in it. A turn is a step of
the agent with one model call, its token ids and log-probabilities in the metrics; what it was shown that is new are the
steps and results before it. Where history was rewritten, `extra.dropped` says how many messages before those new ones
the model did not see any more. What ATIF has no field for stands in `extra`, so that nothing is lost.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version as version_of
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.core import chat
from outrider.core.chat import Message, Role
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.event import Event, EventKind
from outrider.core.rollout import Rollout
from outrider.core.trajectory import Trajectory
from outrider.core.turn import CALL, CallOutcome, Turn, TurnRecord, outcomes_of, step_of, turns_of
from outrider.train import atif_document as atif
from outrider.train.arrays import PACKED_FLOAT, PACKED_INT, np, unpacked
from outrider.train.export import written_whole
from outrider.train.samples import RESULT

IMAGES = "images"
"""The folder beside a document that holds its pictures."""

MESSAGE = "message"
"""Where `extra` has a whole message that ATIF's fields cannot express."""

SOURCES: Mapping[Role, Any] = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "agent", Role.TOOL: "system"}


def to_atif(trajectory: Trajectory) -> tuple[atif.Document, dict[str, bytes]]:
    """The trajectory as a document, and the pictures it refers to by their paths beside it."""
    turns = turns_of(trajectory.events)
    files: dict[str, bytes] = {}
    agents = list(dict.fromkeys(turn.agent for turn in turns)) or [""]
    writers = {agent: _Writer(agent, files) for agent in agents}
    last, rewards, closing = _between(trajectory.events)
    outcomes = outcomes_of(trajectory.events)
    for index, (turn, event) in enumerate(zip(turns, last, strict=True)):
        facts = {"reward": rewards[index]} if index in rewards else {}
        writers[turn.agent].turn(index, turn, event, facts | _call_facts(turn.record, outcomes))
    writers[turns[-1].agent if turns else ""].say(closing)
    rollout, attempt = trajectory.rollout, trajectory.attempt
    own_id = rollout.rollout_id if attempt is None else attempt.attempt_id
    documents = [writer.document(own_id, rollout.rollout_id) for writer in writers.values()]
    if not documents[0].steps:
        raise InvalidInput(f"rollout {rollout.rollout_id!r} has neither turn nor observation; ATIF needs a step")
    root = replace(
        documents[0],
        trajectory_id=own_id,
        subagent_trajectories=tuple(documents[1:]) or None,
        extra=_facts(rollout, trajectory.events),
    )
    return root, files


def write_atif(trajectory: Trajectory, path: str | Path) -> None:
    """Write the document to `path`, and its pictures into `images` beside it. Blocks."""
    document, files = to_atif(trajectory)
    for name, data in files.items():
        picture = Path(path).parent / name
        try:
            picture.parent.mkdir(exist_ok=True)
        except OSError as exc:
            raise InvalidInput(f"cannot write {picture}: {exc.strerror}") from exc
        with written_whole(picture) as unfinished:
            unfinished.write_bytes(data)
    with written_whole(path) as unfinished:
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))


class _Writer:
    """One agent's document, step by step."""

    def __init__(self, agent: str, files: dict[str, bytes]) -> None:
        self._agent = agent
        self._files = files
        self._steps: list[atif.Step] = []
        self._transcript: list[Message] = []
        self._records: list[TurnRecord] = []

    def turn(self, index: int, turn: Turn, event: Event, facts: Mapping[str, Any]) -> None:
        """What the model was shown that is new, and what it answered; `facts` stand beside it."""
        pairs = zip(self._transcript, turn.request, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
        dropped = self._transcript[kept:]
        self.say(turn.request[kept:], known=dropped)
        record = turn.record
        extra = {
            "turn": index,
            "finish_reason": record.finish_reason,
            "policy_version": record.policy_version,
            "n_retries": record.n_retries,
            "seconds": record.seconds,
        }
        extra |= {"dropped": len(dropped)} if dropped else {}
        step = self._said(record.reply, {**extra, **facts}, is_reply=True)
        step = replace(
            step,
            timestamp=event.at.isoformat(),
            model_name=record.model or None,
            reasoning_content=record.reply.reasoning or None,
            metrics=_metrics(record),
            llm_call_count=1,
        )
        self._steps.append(step)
        self._records.append(record)
        self._transcript = [*turn.request, record.reply]

    def say(self, messages: Iterable[Message], known: Sequence[Message] = ()) -> None:
        """Steps for what others said; those of `known` are marked as copies."""
        for message in messages:
            if message.role is Role.TOOL and not _is_odd(message):
                self._answer(message)
                continue
            step = self._said(message, {})
            self._steps.append(replace(step, is_copied_context=True) if message in known else step)

    def document(self, own_id: str, session_id: str) -> atif.Document:
        records = self._records
        models = dict.fromkeys(record.model for record in records if record.model)
        return atif.Document(
            schema_version=atif.VERSION,
            session_id=session_id,
            trajectory_id=f"{own_id}/{self._agent}",
            agent=atif.Agent(
                name=self._agent or "outrider",
                version=version_of("outrider"),
                model_name=next(iter(models), None),
                extra={"agent": self._agent},
            ),
            steps=tuple(replace(step, step_id=number) for number, step in enumerate(self._steps, 1)),
            final_metrics=atif.FinalMetrics(
                total_prompt_tokens=sum(record.prompt_tokens for record in records),
                total_completion_tokens=sum(record.completion_tokens for record in records),
                total_cached_tokens=sum(record.cached_tokens for record in records),
                total_steps=len(self._steps),
            ),
        )

    def _said(self, message: Message, extra: dict[str, Any], *, is_reply: bool = False) -> atif.Step:
        is_agent = is_reply or message.role is Role.ASSISTANT
        if _is_odd(message, is_reply=is_reply):
            extra = {**extra, MESSAGE: msgspec.to_builtins(message)}
        calls = tuple(map(_tool_call, message.tool_calls)) if is_agent else ()
        return atif.Step(
            step_id=1,
            source="agent" if is_agent else SOURCES[message.role],
            message=self._content(message),
            tool_calls=calls or None,
            llm_call_count=0 if is_agent else None,
            extra=extra or None,
        )

    def _answer(self, message: Message) -> None:
        """A tool's answer: a result of the step before it, if that is the agent's, or else of a step of its own."""
        if not (self._steps and self._steps[-1].source == "agent"):
            self._steps.append(atif.Step(step_id=1, source="system", message=""))
        step = self._steps[-1]
        calls = {call.tool_call_id for call in step.tool_calls or ()}
        named = message.tool_call_id in calls
        result = atif.Result(
            source_call_id=message.tool_call_id if named else None,
            content=self._content(message),
            extra=None if named or message.tool_call_id is None else {"tool_call_id": message.tool_call_id},
        )
        results = (*(step.observation.results if step.observation else ()), result)
        self._steps[-1] = replace(step, observation=atif.Observation(results=results))

    def _content(self, message: Message) -> atif.Content:
        if not message.images or any(image.media_type not in atif.IMAGE_ENDINGS for image in message.images):
            return message.content
        parts = [atif.ContentPart(type="text", text=message.content)] if message.content else []
        for image in message.images:
            path = f"{IMAGES}/{sha256(image.data).hexdigest()}.{atif.IMAGE_ENDINGS[image.media_type]}"
            self._files[path] = image.data
            parts.append(atif.ContentPart(type="image", source=atif.Source(media_type=image.media_type, path=path)))
        return tuple(parts)


def _is_odd(message: Message, *, is_reply: bool = False) -> bool:
    """Whether ATIF has no field for a part of the message."""
    is_agent = is_reply or message.role is Role.ASSISTANT
    return (
        any(image.media_type not in atif.IMAGE_ENDINGS for image in message.images)
        or (is_reply and message.role is not Role.ASSISTANT)
        or (bool(message.reasoning) and not is_reply)
        or (bool(message.tool_calls) and not is_agent)
        or (message.tool_call_id is not None and message.role is not Role.TOOL)
    )


def _tool_call(call: chat.ToolCall) -> atif.ToolCall:
    """The call; its arguments also as they were written, unless they read the same from what they mean."""
    try:
        arguments = from_json(call.arguments, dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        return atif.ToolCall(
            tool_call_id=call.id, function_name=call.name, arguments={}, extra={"arguments": call.arguments}
        )
    is_exact = msgspec.json.encode(arguments).decode() == call.arguments
    extra = None if is_exact else {"arguments": call.arguments}
    return atif.ToolCall(tool_call_id=call.id, function_name=call.name, arguments=arguments, extra=extra)


def _metrics(record: TurnRecord) -> atif.Metrics:
    fields = {"prompt_ids": "prompt_token_ids", "completion_ids": "completion_token_ids", "logprobs": "logprobs"}
    lists: dict[str, Any] = {}
    packed: dict[str, str] = {}
    for name, data in (record.tokens or {}).items():
        kind = PACKED_FLOAT if name == "logprobs" else PACKED_INT
        if name in fields and len(data) % kind.itemsize == 0 and np.isfinite(values := unpacked(data, kind)).all():
            lists[fields[name]] = tuple(values.tolist())
        else:
            packed[name] = b64encode(data).decode()
    return atif.Metrics(
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        extra={"packed": packed} if packed else None,
        **lists,
    )


def _between(events: Iterable[Event]) -> tuple[list[Event], dict[int, float], list[Message]]:
    """The events of the turns, the reward that followed each of them, and what was observed after the last."""
    turns: list[Event] = []
    rewards: dict[int, float] = {}
    closing: list[Message] = []
    for event in events:
        if event.kind is EventKind.TURN:
            turns.append(event)
            closing = []
        elif event.kind is EventKind.STEP:
            step = step_of(event)
            closing += step.observation
            if turns:
                rewards[len(turns) - 1] = rewards.get(len(turns) - 1, 0.0) + step.reward
    return turns, rewards, closing


def _call_facts(record: TurnRecord, outcomes: Mapping[str, CallOutcome]) -> dict[str, Any]:
    """Which call of a team the turn is, and what became of it."""
    if record.call is None:
        return {}
    outcome = outcomes.get(record.call.id)
    return {CALL: msgspec.to_builtins(record.call)} | (
        {} if outcome is None else {"outcome": msgspec.to_builtins(outcome)}
    )


def _facts(rollout: Rollout, events: Iterable[Event]) -> dict[str, Any]:
    results = [event.data for event in events if event.kind is EventKind.REWARD and event.name == RESULT]
    facts = {name: getattr(rollout, name) for name in ("rollout_id", "group_id", "tag", "seed", "reward", "input")}
    facts |= {"mode": rollout.mode, "status": rollout.status, "failure": rollout.failure}
    facts |= {"result": results[-1]} if results else {}
    plain: dict[str, Any] = msgspec.to_builtins({name: fact for name, fact in facts.items() if fact is not None})
    return plain
