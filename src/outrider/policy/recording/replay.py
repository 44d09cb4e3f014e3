"""Replaying a recording: the answers of a run again, without the model.

A rollout gets its own answers, by its session, in the order in which it got them; having got them all it gets them
again from the first, since an attempt that is repeated asks again. A session that the recording does not know gets the
answers to the same requests that nobody has used yet, in the order of the recording.
"""

import asyncio
import logging
import os
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import msgspec

from outrider.core.chat import Message, ToolSpec
from outrider.core.decoding import from_json, json_decoder
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError
from outrider.policy.protocol import ChatPolicy, Completion, Probe, Sampling
from outrider.policy.recording.call import MARK_CHARACTERS, SCHEMA, RecordedCall, RecordedLine, Request, request_of

PREFIX = "replay:"

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Answer:
    """Where in the file an answer stands, and to what."""

    number: int
    offset: int
    length: int
    session: str
    request: Request
    used: bool = False


@dataclass(slots=True)
class _Index:
    """The calls of a recording, to be found by who asked what."""

    answers: list[_Answer] = field(default_factory=list)
    by_session: defaultdict[tuple[str, str], deque[_Answer]] = field(default_factory=lambda: defaultdict(deque))
    by_request: defaultdict[str, deque[_Answer]] = field(default_factory=lambda: defaultdict(deque))
    by_messages: list[_Answer] = field(default_factory=list)

    def add(self, answer: _Answer) -> None:
        self.answers.append(answer)
        self.by_session[answer.session, answer.request.digest].append(answer)
        self.by_request[answer.request.digest].append(answer)

    def take(self, session: str, digest: str) -> _Answer | None:
        if own := self.by_session.get((session, digest)):
            answer = own[0]
            own.rotate(-1)
        else:
            unused = self.by_request.get(digest, deque())
            while unused and unused[0].used:
                unused.popleft()
            if not unused:
                return None
            answer = unused.popleft()
        answer.used = True
        return answer

    def nearest(self, messages: str) -> _Answer:
        """The one that shares the longest beginning: in alphabetical order it is a neighbour."""
        if not self.by_messages:
            self.by_messages = sorted(self.answers, key=lambda answer: (answer.request.messages, answer.number))
        place = bisect_left(self.by_messages, messages, key=lambda answer: answer.request.messages)
        neighbours = self.by_messages[max(place - 1, 0) : place + 1]
        return max(neighbours, key=lambda answer: _n_common(answer.request.messages, messages))


class ReplayPolicy(ChatPolicy):
    """Answers from a recording. A request that was never recorded is a `PolicyError` that tells what is new in it."""

    def __init__(self, path: str, descriptor: int, index: _Index) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._index = index

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        request = request_of(messages, tools, sampling)
        answer = self._index.take(session, request.digest)
        if answer is None:
            reason = await asyncio.to_thread(_difference, self._index, request, tuple(messages))
            raise PolicyError(
                f"{self._path} has no answer for {session or 'this call'}: {reason}", stage="policy.replay"
            )
        call = await asyncio.to_thread(self._read, answer)
        if call.completion is None:
            raise ContextOverflow(call.overflow, stage="policy.replay")
        return call.completion

    async def check(self, sampling: Sampling | None = None, probe: Probe | None = None) -> None: ...

    async def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, answer: _Answer) -> RecordedCall:
        if self._descriptor is None:
            raise PolicyError("the recording is closed", stage="policy.replay")
        line = os.pread(self._descriptor, answer.length, answer.offset)
        try:
            return from_json(line, RecordedCall)
        except (msgspec.DecodeError, UnicodeError) as exc:
            raise PolicyError(f"{self._path}:{answer.number}: {exc}", stage="policy.replay") from exc


async def open_replay(path: str) -> ReplayPolicy:
    """Replay the file `path`, as it is now."""
    return await asyncio.to_thread(_open, path)


def _open(path: str) -> ReplayPolicy:
    if Path(path).exists() and not Path(path).is_file():
        raise InvalidInput(f"cannot replay {path}: it is not a plain file")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"cannot replay {path}: {exc}; give a file that a run has recorded") from exc
    try:
        index = _index_of(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return ReplayPolicy(path, descriptor, index)


def _index_of(path: str, descriptor: int) -> _Index:
    index = _Index()
    for answer in _answers(path, descriptor):
        index.add(answer)
    if not index.answers:
        raise InvalidInput(f"cannot replay {path}: there is no recorded call in it")
    return index


def _answers(path: str, descriptor: int) -> Iterator[_Answer]:
    """The calls of the file. What a killed process left unfinished is no call."""
    offset = 0
    n_torn = 0
    decoder = json_decoder(RecordedLine)
    with open(descriptor, "rb", closefd=False) as file:
        for number, line in enumerate(file, start=1):
            start, offset = offset, offset + len(line)
            if not line.strip():
                continue
            try:
                call = decoder.decode(line)
            except msgspec.ValidationError as exc:
                raise InvalidInput(f"{path}:{number}: not a recorded call: {exc}") from exc
            except (msgspec.DecodeError, UnicodeError):
                n_torn += 1
                continue
            if call.schema > SCHEMA:
                raise InvalidInput(
                    f"{path}:{number}: schema {call.schema}; this Outrider knows up to {SCHEMA}; upgrade"
                )
            yield _Answer(number=number, offset=start, length=len(line), session=call.session, request=call.request)
    if n_torn:
        _log.warning("%s: %d unfinished lines were skipped", path, n_torn)


def _difference(index: _Index, request: Request, messages: tuple[Message, ...]) -> str:
    """Where the request leaves the recording that goes along with it the longest."""
    if request.digest in index.by_request:
        return "all its recorded answers are used up; the same request was made less often when it was recorded"
    nearest = index.nearest(request.messages)
    n_common = _n_common(nearest.request.messages, request.messages)
    where = f"the nearest one, in line {nearest.number}"
    n_recorded = nearest.request.n_messages
    if n_common < request.n_messages:
        message = messages[n_common]
        beyond = f", which has {n_recorded} messages" if n_common == n_recorded else ""
        text = message.content[:200] or ", ".join(call.name for call in message.tool_calls)
        return f"message {n_common + 1} ({message.role}) differs from {where}{beyond}; it is now {text!r}"
    if n_common < n_recorded:
        return f"it ends after {n_common} messages, but {where} goes on, to {n_recorded}"
    if nearest.request.tools != request.tools:
        return f"its tools differ from those of {where}"
    return f"its sampling differs from that of {where}: {nearest.request.sampling}, now {request.sampling}"


def _n_common(recorded: str, asked: str) -> int:
    """With how many messages both begin."""
    pairs = zip(recorded, asked, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // MARK_CHARACTERS
