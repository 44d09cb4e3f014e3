"""ATIF documents that Outrider wrote, read back to the turns they were made from; see `atif`."""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.chat import Image, Message, Role, ToolCall
from outrider.core.decoding import convert, from_json
from outrider.core.errors import InvalidInput
from outrider.core.turn import CALL, CallRecord, Turn, TurnRecord
from outrider.train import atif_document as atif
from outrider.train.arrays import PACKED_FLOAT, PACKED_INT, np
from outrider.train.atif import MESSAGE

_ROLES: Mapping[str, Role] = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}


@dataclass(frozen=True, slots=True, kw_only=True)
class AtifTrajectory:
    """A document, and its turns in the order they were recorded; the record of each adds its whole request."""

    document: atif.Document
    turns: tuple[Turn, ...]


def read_atif(path: str | Path) -> AtifTrajectory:
    """The document at `path`, its pictures included. Blocks; refuses what is not valid ATIF, or has other extras."""
    try:
        document = from_json(Path(path).read_bytes(), atif.Document)
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise InvalidInput(f"{path}: not a valid {atif.VERSION} document: {exc}") from exc
    try:
        atif.check(document)
        documents = (document, *(document.subagent_trajectories or ()))
        numbered = [turn for one in documents for turn in _Reader(one, Path(path).parent).turns()]
    except (InvalidInput, KeyError, ValueError) as exc:
        raise InvalidInput(f"{path}: {exc}") from exc
    return AtifTrajectory(document=document, turns=tuple(turn for _, turn in sorted(numbered, key=lambda one: one[0])))


class _Reader:
    """Follows one agent's steps as they were written."""

    def __init__(self, document: atif.Document, folder: Path) -> None:
        self._document = document
        self._folder = folder
        self._agent = str((document.agent.extra or {}).get("agent", document.agent.name))

    def turns(self) -> Iterator[tuple[int, Turn]]:
        transcript: list[Message] = []
        new: list[Message] = []
        n_calls = 0
        for step in self._document.steps:
            extra = step.extra or {}
            if step.source == "agent" and step.llm_call_count != 0:
                request = (*transcript[: len(transcript) - int(extra.get("dropped", 0))], *new)
                reply = self._message(step)
                yield int(extra.get("turn", n_calls)), self._turn(step, request, reply)
                transcript, new = [*request, reply], []
                n_calls += 1
            elif step.observation is None or step.source == "agent":
                new.append(self._message(step))
            new += map(self._answer, step.observation.results if step.observation else ())

    def _turn(self, step: atif.Step, request: tuple[Message, ...], reply: Message) -> Turn:
        metrics, extra = step.metrics or atif.Metrics(), step.extra or {}
        record = TurnRecord(
            kept=0,
            added=request,
            reply=reply,
            finish_reason=extra.get("finish_reason", "stop"),
            prompt_tokens=metrics.prompt_tokens or 0,
            completion_tokens=metrics.completion_tokens or 0,
            cached_tokens=metrics.cached_tokens or 0,
            tokens=_tokens(metrics),
            model=step.model_name or "",
            policy_version=extra.get("policy_version", 0),
            n_retries=extra.get("n_retries", 0),
            seconds=extra.get("seconds", 0.0),
            call=convert(extra[CALL], CallRecord) if CALL in extra else None,
        )
        return Turn(agent=self._agent, request=request, record=record)

    def _message(self, step: atif.Step) -> Message:
        if step.extra and MESSAGE in step.extra:
            return convert(step.extra[MESSAGE], Message)
        content, images = self._content(step.message)
        return Message(
            role=_ROLES[step.source],
            content=content,
            reasoning=step.reasoning_content or "",
            images=images,
            tool_calls=tuple(map(_tool_call, step.tool_calls or ())),
        )

    def _answer(self, result: atif.Result) -> Message:
        content, images = self._content(result.content or "")
        call_id = result.source_call_id
        if call_id is None:
            call_id = (result.extra or {}).get("tool_call_id")
        return Message(role=Role.TOOL, content=content, images=images, tool_call_id=call_id)

    def _content(self, content: atif.Content) -> tuple[str, tuple[Image, ...]]:
        if isinstance(content, str):
            return content, ()
        texts = "".join(part.text or "" for part in content)
        sources = (part.source for part in content if part.source is not None)
        return texts, tuple(Image(data=self._read(one.path), media_type=one.media_type) for one in sources)

    def _read(self, name: str) -> bytes:
        path = (self._folder / name).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise InvalidInput(f"the picture {name} is not beside the document")
        try:
            return path.read_bytes()
        except OSError as exc:
            raise InvalidInput(f"cannot read the picture {name}: {exc.strerror}") from exc


def _tool_call(call: atif.ToolCall) -> ToolCall:
    written = (call.extra or {}).get("arguments")
    arguments = msgspec.json.encode(call.arguments).decode() if written is None else str(written)
    return ToolCall(id=call.tool_call_id, name=call.function_name, arguments=arguments)


def _tokens(metrics: atif.Metrics) -> dict[str, bytes] | None:
    lists: dict[str, tuple[Any, Any]] = {
        "prompt_ids": (metrics.prompt_token_ids, PACKED_INT),
        "completion_ids": (metrics.completion_token_ids, PACKED_INT),
        "logprobs": (metrics.logprobs, PACKED_FLOAT),
    }
    tokens = {name: np.array(values, kind).tobytes() for name, (values, kind) in lists.items() if values is not None}
    packed = (metrics.extra or {}).get("packed", {})
    tokens |= {name: b64decode(data) for name, data in packed.items()}
    return tokens or None
