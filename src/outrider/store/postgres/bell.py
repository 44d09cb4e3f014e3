"""A bell between machines: NOTIFY in the transaction that changes something, LISTEN on one connection for each machine.

Invariants:
- Of the processes on one machine that wait, one listens, and passes on by named pipes what it hears: the one that holds
  a lock, which the kernel takes from it when it dies. Another takes its place within `TAKE_OVER_SECONDS`.
- The connection that listens does nothing else: after a `prepare` a connection hears nothing until its next query.
- It is opened when somebody has waited for a moment and kept until the store is closed; whenever it becomes active or
  is lost, everybody who waits on this machine is woken, so that no ring falls into the gap.
- A process does not hear its own rings from the database: it wakes itself at once.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from outrider.core.clock import Clock
from outrider.core.files import PRIVATE_FILE, PRIVATE_FOLDER
from outrider.store.bell import Topic
from outrider.store.fifo_bell import FifoBell
from outrider.store.postgres.connections import let_go
from outrider.store.postgres.driver import LOST, Link, asyncpg
from outrider.store.postgres.links import FIRST_PAUSE, LONGEST_PAUSE

_log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""How long somebody must wait, without a pause, before it is worth a connection: a process may be done by then."""

TAKE_OVER_SECONDS = 1.0
"""How often to look whether another process still listens: the kernel tells nobody that a lock is free."""

PROBE_SECONDS = 15.0
"""How often to make sure that a silent connection is alive, since a cut network closes nothing."""

_LOCK = "listener"
_held: set[int] = set()
"""Descriptors of locks. A forked process closes them, else it would hold the lock after this one has died."""


class PostgresBell(FifoBell):
    """Rings in every process that listens on the same channel. `folder` is shared by those on this machine."""

    def __init__(self, clock: Clock, connect: Callable[[], Awaitable[Link]], channel: str, folder: Path) -> None:
        super().__init__(clock, folder)
        self._connect = connect
        self.channel = channel
        self._task: asyncio.Task[None] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._heard_of: dict[Topic, set[str]] = {}

    def on_first_listener(self, topic: Topic) -> None:
        super().on_first_listener(topic)
        if self._task is None and self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._start)

    def on_last_listener(self, topic: Topic) -> None:
        super().on_last_listener(topic)
        if not any(self._listeners.values()):
            self._stop_settling()

    def _start(self) -> None:
        self._settling = None
        self._task = asyncio.create_task(self._attend(), name=f"listen on {self.channel}")

    def _stop_settling(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    def make_folder(self) -> None:
        _make_private(self._folder.parent)
        super().make_folder()

    def say_unheard(self, error: OSError) -> None:
        _log.warning(
            "processes on this machine cannot share one listening connection through %s: %s; each takes its own",
            self._folder,
            error,
        )

    async def stop(self) -> None:
        """Stop listening."""
        self._stop_settling()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            with suppress(OSError):  # others are still there
                self._folder.rmdir()

    def message(self, topics: Collection[Topic]) -> str:
        """What a transaction that changes these topics must notify."""
        return " ".join([self.name, *sorted(topics)])

    def ring_all_here(self, topics: Collection[Topic] = tuple(Topic)) -> None:
        for topic in topics:
            self.ring_here(topic)

    async def _attend(self) -> None:
        """Listen for this machine, as soon as no other process does."""
        while True:
            with self._turn() as is_ours:
                if is_ours:
                    await self._listen()
            await asyncio.sleep(TAKE_OVER_SECONDS)

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether it is this process that listens, within the block; where there is no folder, everybody does."""
        path = self._folder / _LOCK
        try:
            self.make_folder()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except FileNotFoundError:
            # The last one to leave has just taken the folder away, unless there is no place for it any more.
            yield not self._folder.parent.parent.is_dir()
            return
        except OSError:
            yield True
            return
        _held.add(descriptor)
        is_ours = _is_locked(descriptor, path)
        try:
            yield is_ours
        finally:
            if is_ours:
                with suppress(OSError):
                    path.unlink()
            _held.discard(descriptor)
            os.close(descriptor)

    async def _listen(self) -> None:
        pause, is_said = FIRST_PAUSE, False
        while True:
            try:
                link = await self._connect()
                try:
                    lost = asyncio.Event()
                    link.add_termination_listener(lambda _, lost=lost: lost.set())
                    await link.add_listener(self.channel, self._notified)
                    self._ring_machine()
                    pause, is_said = FIRST_PAUSE, False
                    await self._watch(link, lost)
                finally:
                    await let_go(link)
            except (*LOST, asyncpg.PostgresError) as exc:
                level = logging.DEBUG if is_said else logging.WARNING
                _log.log(level, "cannot listen on %s, will try again: %s", self.channel, exc)
                is_said = True
            self._ring_machine()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    @staticmethod
    async def _watch(link: Link, lost: asyncio.Event) -> None:
        """Return when the connection is lost."""
        while not lost.is_set():
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await lost.wait()
            except TimeoutError:
                await link.execute("SELECT 1", timeout=PROBE_SECONDS)

    def ring_others(self, topics: Collection[Topic], *, but: str = "") -> None:
        """Ring only where nobody else may write: a bell that another user has put there may be a link to any file."""
        with suppress(OSError):
            _check_private(self._folder.parent)
            super().ring_others(topics, but=but)

    def _ring_machine(self) -> None:
        self.ring_all_here()
        self.ring_others(tuple(Topic))

    def _notified(self, _link: object, _pid: int, _channel: str, message: object) -> None:
        """Pass on what came in one turn of the event loop together."""
        if not self._heard_of:
            asyncio.get_running_loop().call_soon(self._pass_on)
        name, *topics = str(message).split()
        for topic in Topic:
            if topic in topics:
                self._heard_of.setdefault(topic, set()).add(name)

    def _pass_on(self) -> None:
        heard_of, self._heard_of = self._heard_of, {}
        for topic, names in heard_of.items():
            if names != {self.name}:
                self.ring_here(topic)
            # A process that rang alone has woken itself already.
            self.ring_others([topic], but=next(iter(names)) if len(names) == 1 else "")


def _is_locked(descriptor: int, path: Path) -> bool:
    """Whether this process has the lock now, and the file is still the one that others look for."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _close_held() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_held)


def _make_private(folder: Path) -> None:
    """Make the folder, for this user alone; it stands where everybody may write."""
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    _check_private(folder)


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to somebody else, or others may enter it")
