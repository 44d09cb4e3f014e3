"""Every error Outrider raises, in one tree.

```
OutriderError
├── InvalidInput            a file, flag, configuration or id that cannot be used; nothing was changed
│   ├── OutOfBounds         a number of a configuration that is too small, too large, or none
│   ├── UnknownId           no such rollout, attempt or event stream
│   ├── RolloutConflict     an id that already stands for another rollout
│   └── RolloutTaken        a rollout that can no longer be changed: it was claimed, or has ended
├── StoreError              the store could not do what was asked
│   ├── LeaseLost           a write named an attempt that is no longer the current one
│   ├── LedgerLost          a write named an epoch of a ledger that is over: somebody else has opened it
│   ├── PoolLost            a write named an epoch of a pool that is over: another process has opened it
│   ├── SchemaMismatch      the database was made by another version of Outrider
│   ├── StoreDamaged        the disk failed under the database, so nothing more is written to it
│   └── StoreUnavailable    the database cannot be reached, is locked, or its disk is full
├── BatchLate               no batch was ready at the deadline; says what it waits for
├── ToolRefusal             a tool tells the model what was wrong with its call
├── WorkersFailed           the worker processes cannot start or keep dying
├── ClusterError            workers, groups and channels of a cluster
│   ├── UnknownWorker       no worker or group of that name was started
│   ├── WorkerDied          a worker ended, was killed, or its node is gone; says which and why
│   ├── WorkerFailed        a worker raised an exception that cannot be brought here as itself
│   ├── PeerLost            the connection to another process ended
│   ├── CallLate            a deadline passed; names who had not answered
│   ├── TensorMismatch      a tensor came that does not fit the buffer that waits for it
│   └── ChannelError        a channel could not do what was asked
│       ├── ChannelClosed   it was closed, and holds nothing more
│       ├── ChannelFull     an item that may not wait found no room
│       ├── ChannelEmpty    nothing was there for a reader that may not wait
│       └── ChannelLost     its process is gone, and what it held with it
└── AttemptError            a failure inside an attempt, one class for each boundary
    ├── PolicyError         the model or its server
    │   ├── ContextOverflow the conversation is too long for the model
    │   ├── PolicyRefused   the server does not take this request, however often it is sent
    │   └── PolicyUnusable  wrong key, no such model: no call can succeed, so the run stops
    ├── EnvError            the environment
    ├── MachineError        the machine (VM, desktop, container, browser)
    │   └── MachineRefusal  the machine cannot do what was asked, and did nothing
    ├── AgentError          the agent's own code
    ├── ScoreError          the scoring of a finished attempt
    ├── LimitError          a deadline or budget ran out
    │   └── BudgetSpent     the run's budget is spent, so the run stops
    └── WorkerError         the worker that ran the attempt died or was cut off
```

A failure is *permanent* (`AttemptError.is_permanent`) if another attempt would end in the same way: `PolicyUnusable`,
`PolicyRefused`, and what `is_permanent_cause` says of exceptions of users' code. It is not tried again.
"""

import asyncio
from contextlib import AbstractContextManager
from enum import StrEnum
from itertools import islice
from types import TracebackType
from typing import ClassVar

from outrider.core.variables import hint_about

MESSAGE_CHARACTERS = 4_000
"""Longer messages are cut: an agent may raise a hundred megabytes."""

CUT_SLACK = 200
"""A message that is hardly longer stays whole, so that one which was cut before keeps its note."""

SHOWN_OF_GROUP = 3
"""How many members of an exception group its description names."""


class Boundary(StrEnum):
    """The side on which an attempt failed. Each failure belongs to exactly one."""

    POLICY = "policy"
    ENV = "env"
    MACHINE = "machine"
    AGENT = "agent"
    SCORE = "score"
    LIMIT = "limit"
    WORKER = "worker"

    @property
    def is_infrastructure(self) -> bool:
        """Whether the agent had no part in the failure, so that it must never count as a score of zero."""
        return self in {Boundary.POLICY, Boundary.ENV, Boundary.MACHINE, Boundary.WORKER}


class OutriderError(Exception):
    """The root of the tree."""


class InvalidInput(OutriderError):
    """Something the caller gave cannot be used. Nothing was changed; the command line exits with code 2."""


class OutOfBounds(InvalidInput, ValueError):
    """A number cannot be what it was given as. msgspec adds its path to a `ValueError`, where it decodes."""


class UnknownId(InvalidInput):
    """No row has this id."""

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"no {kind} with id {id!r} in this store; `outrider status` lists what there is")
        self.kind = kind
        self.id = id


class RolloutConflict(InvalidInput):
    """The id is taken by a rollout with other content, so enqueueing it again would not be a repetition."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"rollout {rollout_id!r} is already in this store with other content; choose another id")
        self.rollout_id = rollout_id


class RolloutTaken(InvalidInput):
    """The rollout does not wait any more, so it cannot be changed."""

    def __init__(self, rollout_id: str, status: str) -> None:
        super().__init__(
            f"rollout {rollout_id!r} is {status}, and only one that waits in the queue can be changed; nothing was "
            "changed; cancel it if it has not ended, and enqueue another"
        )
        self.rollout_id = rollout_id
        self.status = status


class StoreError(OutriderError):
    """The store could not do what was asked."""


class LeaseLost(StoreError):
    """The attempt no longer holds the rollout: it was cancelled, expired or has ended. The write changed nothing."""

    def __init__(self, rollout_id: str, attempt_id: str, reason: str) -> None:
        super().__init__(f"attempt {attempt_id} of rollout {rollout_id} lost its lease ({reason}); stop working on it")
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.reason = reason


class LedgerLost(StoreError):
    """The ledger was opened by somebody else since. The write changed nothing."""

    def __init__(self, name: str, epoch: int, current: int) -> None:
        super().__init__(
            f"ledger {name!r} was taken over (epoch {current}, this is {epoch}): another scheduler runs on it, "
            "so this one must stop"
        )
        self.name = name
        self.epoch = epoch
        self.current = current


class PoolLost(StoreError):
    """The pool was opened by another process since. The write changed nothing."""

    def __init__(self, name: str, epoch: int, current: int) -> None:
        super().__init__(
            f"pool {name!r} was taken over (epoch {current}, this is {epoch}): another process owns its machines, "
            "so this one must let go of them"
        )
        self.name = name
        self.epoch = epoch
        self.current = current


class BatchLate(OutriderError):
    """`get_batch` reached its deadline. Nothing is lost: ask again, or look at what the message names."""


class SchemaMismatch(StoreError):
    """The database has a schema this version of Outrider does not know."""

    def __init__(self, url: str, found: int, known: int) -> None:
        super().__init__(f"{url} has schema {found}, this Outrider knows up to {known}; upgrade Outrider to open it")
        self.found = found
        self.known = known


class StoreUnavailable(StoreError):
    """The database cannot be used right now. What was acknowledged before is safe."""


class StoreDamaged(StoreError):
    """The disk lost data or returned garbage. Waiting does not help; what was acknowledged last may be gone."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"the disk failed under {place} ({reason}): it may not hold what was written last, so nothing more is "
            "written to it; check the disk, then open the store anew"
        )
        self.place = place
        self.reason = reason

    def __reduce__(self) -> tuple[type["StoreDamaged"], tuple[str, str]]:
        return type(self), (self.place, self.reason)


class ToolRefusal(OutriderError):
    """Raised by a tool to tell the model what was wrong with its call; the model reads the message."""


class WorkersFailed(OutriderError):
    """The worker processes cannot start, or die faster than they can be replaced."""


class ClusterError(OutriderError):
    """Workers, groups or channels of a cluster could not do what was asked."""


class UnknownWorker(ClusterError):
    """No worker or group of that name was started."""


class WorkerDied(ClusterError):
    """A worker ended, was killed, or its node is gone."""

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"worker {address} is gone: {cause}")
        self.address = address
        self.cause = cause

    def __reduce__(self) -> tuple[type["WorkerDied"], tuple[str, str]]:
        return type(self), (self.address, self.cause)


class WorkerFailed(ClusterError):
    """A worker raised an exception that cannot be brought here as itself; the message holds its traceback."""


class PeerLost(ClusterError):
    """The connection to another process ended."""


class CallLate(ClusterError, TimeoutError):
    """A deadline passed; the message names who had not answered."""


class TensorMismatch(ClusterError):
    """A tensor came that does not fit the buffer that waits for it."""


class ChannelError(ClusterError):
    """A channel could not do what was asked."""


class ChannelClosed(ChannelError):
    """The channel was closed, and holds nothing more."""


class ChannelFull(ChannelError):
    """An item that may not wait found no room."""


class ChannelEmpty(ChannelError):
    """Nothing was there for a reader that may not wait."""


class ChannelLost(ChannelError):
    """The channel's process is gone, and what it held with it."""


class AttemptError(OutriderError):
    """A failure inside an attempt. `stage` names the call that failed, such as `env.step`."""

    boundary: ClassVar[Boundary]

    stops_run: ClassVar[bool] = False
    """Whether every other attempt would end the same way: the rollout goes back to the queue and its worker stops."""

    is_permanent: bool = False
    """Whether another attempt of this rollout would end the same way: it is not retried."""

    stops_if_shared: bool = False
    """Whether the run stops if its first rollouts all end in this way, though each of them is retried."""

    def __init__(self, message: str, *, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class PolicyError(AttemptError):
    """The model or its server failed."""

    boundary = Boundary.POLICY


class ContextOverflow(PolicyError):
    """The conversation is longer than the model can read."""


class PolicyRefused(PolicyError):
    """The server refuses the request as wrong (HTTP 400, 422): sending it again gives the same answer."""

    is_permanent = True


class PolicyUnusable(PolicyError):
    """No call can succeed until someone changes the configuration: a wrong key, a model the server does not have."""

    stops_run = True
    is_permanent = True


class EnvError(AttemptError):
    """The environment failed."""

    boundary = Boundary.ENV


class MachineError(AttemptError):
    """The machine failed."""

    boundary = Boundary.MACHINE


class MachineRefusal(MachineError):
    """The machine cannot do what was asked, such as press a key that it does not have. It did nothing, and is well."""


class AgentError(AttemptError):
    """The agent's own code failed."""

    boundary = Boundary.AGENT


class ScoreError(AttemptError):
    """A finished attempt could not be scored."""

    boundary = Boundary.SCORE


class LimitError(AttemptError):
    """A deadline or a budget ran out."""

    boundary = Boundary.LIMIT


class BudgetSpent(LimitError):
    """The run has used up its tokens, money or time."""

    stops_run = True


class WorkerError(AttemptError):
    """The worker that ran the attempt died or was cut off from the store."""

    boundary = Boundary.WORKER


_NEVER_RIGHT = (ImportError, SyntaxError)
_WRONG_SETTING = frozenset({TypeError, ValueError, AttributeError, NameError, NotImplementedError, InvalidInput})
"""Exactly these: their subclasses, such as `JSONDecodeError`, may be about something that was read."""

_STAGES_BEFORE_ACTING = frozenset({"agent", "boot", "setup", "env.make", "env.board", "env.reset"})

_WRONG_KEY = frozenset({401, 403})
_WRONG_REQUEST = frozenset({400, 404})


def is_permanent_cause(cause: BaseException, stage: str, side: type[AttemptError]) -> bool:
    """Whether an exception of a user's code would come again: a failed import, a wrong setting, a refused key.

    The set-up of an episode goes by settings alone, so an error of program or value there is one. While the agent acts,
    the same error may be due to what the model said. A server that an agent calls by itself refuses its key every time.
    """
    if isinstance(cause, _NEVER_RIGHT):
        return True
    if stage in _STAGES_BEFORE_ACTING and type(cause) in _WRONG_SETTING:
        return True
    return side is AgentError and _http_status(cause) in _WRONG_KEY


def stops_if_shared(cause: BaseException, stage: str, side: type[AttemptError]) -> bool:
    """Whether an exception of a user's code shows a wrong setting, if the first rollouts of a run all meet it.

    So does any error while an environment is set up, and a request of the agent's own that a server refuses.
    """
    if side is EnvError:
        return stage in _STAGES_BEFORE_ACTING
    return side is AgentError and _http_status(cause) in _WRONG_REQUEST


def _http_status(error: BaseException | None) -> int | None:
    """The HTTP status that an error carries, as those of HTTP clients and model APIs do, or one that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for carrier in (error, _attribute(error, "response")):
            for name in ("status_code", "status"):
                if isinstance(status := _attribute(carrier, name), int):
                    return status
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return None


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except BaseException:  # noqa: BLE001 an agent's class may raise anything here
        return None


class _Attributed:
    """See `boundary`. A class, since every attempt passes a few: a generator costs several times as much."""

    __slots__ = ("_error", "_stage")

    def __init__(self, error: type[AttemptError], stage: str) -> None:
        self._error = error
        self._stage = stage

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, cause: BaseException | None, _where: TracebackType | None
    ) -> None:
        if cause is None or isinstance(cause, AttemptError):
            return
        if not isinstance(cause, asyncio.CancelledError):
            failure = self._error(described(cause), stage=self._stage)
            failure.is_permanent = failure.is_permanent or is_permanent_cause(cause, self._stage, self._error)
            failure.stops_if_shared = stops_if_shared(cause, self._stage, self._error)
            raise failure from cause
        if not _is_being_cancelled():
            what = "asyncio.CancelledError was raised, but nobody had cancelled the task"
            raise self._error(what, stage=self._stage) from cause


def boundary(error: type[AttemptError], stage: str) -> AbstractContextManager[None]:
    """Attribute whatever exception escapes the block to one side, unless it has been attributed already.

    That includes `SystemExit` and its like, which would end the event loop, and a cancellation that nobody asked for.
    """
    return _Attributed(error, stage)


def described(error: BaseException) -> str:
    """An exception's type and message, however unwilling it is to give one; bounded in length.

    If it names a variable that is withheld from agents, it says how to hand it on.
    """
    text = message_of(error)
    hint = hint_about(text)
    if isinstance(error, BaseExceptionGroup):
        shown = [described(member) for member in islice(error.exceptions, SHOWN_OF_GROUP)]
        text = _cut(f"{text}: {'; '.join(shown)}")
    name = type(error).__name__
    return f"{name}: {text}{hint}" if text else name


def message_of(error: BaseException) -> str:
    """`str(error)`, or that it could not be had; bounded in length."""
    try:
        return _cut(str(error))
    except BaseException as exc:  # noqa: BLE001 an agent's class may raise anything here
        return f"(no message: its __str__ raised {type(exc).__name__})"


def _cut(text: str) -> str:
    n_more = len(text) - MESSAGE_CHARACTERS
    return text if n_more <= CUT_SLACK else f"{text[:MESSAGE_CHARACTERS]}… ({n_more:,} more characters)"


def _is_being_cancelled() -> bool:
    """Whether somebody called `cancel` on the running task; where no task runs, nobody can tell."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0
