"""Group calls that go over the post: on local clusters, and to groups that somebody else has launched."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from outrider.cluster.cargo import pickled, refuse_unpicklable
from outrider.cluster.failure import Failure
from outrider.cluster.post import Endpoint, Post
from outrider.core.decoding import convert
from outrider.core.errors import ClusterError, PeerLost, UnknownWorker, WorkerDied, WorkerFailed


class Posted(Protocol):
    """A worker that is called over the post. Both coroutines run on the post's loop."""

    address: str

    async def locate(self) -> Endpoint | Failure:
        """Where it listens, once it is up; or why it never was."""

    async def epitaph(self) -> str:
        """Why it is gone, now that the connection to it has ended. Bounded."""


class PostToken(Future[Any]):
    """One call of one worker: completes with its outcome."""

    task: "asyncio.Task[Any] | None" = None


class PostCaller:
    """A `Caller` over one post."""

    def __init__(self, post: Post) -> None:
        self.post = post

    def call(
        self, seats: Sequence[Posted], method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[PostToken]:
        try:
            cargo = pickled((args, dict(kwargs)))
        except Exception as exc:
            raise refuse_unpicklable(f"{method}()", args, kwargs, exc) from exc
        tokens = [PostToken() for _ in seats]
        try:
            self.post.loop.call_soon_threadsafe(self._begin, seats, tokens, method, cargo)
        except RuntimeError as exc:
            raise ClusterError("the cluster is closed") from exc
        return tokens

    def gather(self, tokens: Sequence[PostToken], seconds: float) -> list[Any] | None:  # noqa: ARG002 futures are quick
        return None

    def future(self, token: PostToken) -> "Future[Any]":
        return token

    def cancel(self, token: PostToken) -> None:
        """The asking task ends, and with it what was asked. On the loop, where it comes after the beginning."""
        with suppress(RuntimeError):  # the loop is closed, and all that it asked has ended
            self.post.loop.call_soon_threadsafe(_cancel, token)

    def _begin(self, seats: Sequence[Posted], tokens: Sequence[PostToken], method: str, cargo: bytes) -> None:
        for seat, token in zip(seats, tokens, strict=True):
            token.task = self.post.loop.create_task(self._ask(seat, method, cargo), name=f"{method} of {seat.address}")
            token.task.add_done_callback(partial(_settle, token, seat.address))

    async def _ask(self, seat: Posted, method: str, cargo: bytes) -> Any:
        try:
            where = await seat.locate()
            if isinstance(where, Failure):
                return where
            link = await self.post.link(where)
            answer = await link.ask("seat.call", method, (cargo,))
        except PeerLost:
            return Failure.died(seat.address, await seat.epitaph())
        except (WorkerDied, UnknownWorker) as exc:
            return Failure.of(seat.address, exc)
        if answer.head is not None:
            return convert(answer.head, Failure)
        return _outcome(seat.address, method, answer.parts[0])


def _outcome(address: str, method: str, data: Any) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 only proven members of the cluster are heard
    except Exception as exc:  # noqa: BLE001 unpickling runs the user's code
        why = f"what {method}() of worker {address} returned cannot be unpickled here: {type(exc).__name__}: {exc}"
        return Failure.of(address, WorkerFailed(why))


def _cancel(token: PostToken) -> None:
    if token.task is not None:
        token.task.cancel()


def _settle(token: PostToken, address: str, task: "asyncio.Task[Any]") -> None:
    if token.done():
        return
    if task.cancelled():
        token.set_result(Failure.cancelled(address))
    elif (error := task.exception()) is not None:
        token.set_result(Failure.of(address, error))
    else:
        token.set_result(task.result())
