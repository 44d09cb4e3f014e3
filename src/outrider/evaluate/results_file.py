"""`results.jsonl`: a line for each rollout, appended as it ends.

Invariants:
- Each rollout has one line, however often it is appended, by this process or one before it.
- A line is one write: a process that is killed leaves whole lines, and at most one torn one, which the next opening
  cuts off; the store still knows the rollout, so its line is written again.
- One process writes at a time; a second one is refused.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Self

import msgspec

from outrider.core import wire
from outrider.core.crash_points import reached
from outrider.core.decoding import from_json, json_decoder
from outrider.core.errors import InvalidInput
from outrider.core.files import append_whole, explaining_disk, private
from outrider.evaluate.plan import RUN_KEY
from outrider.evaluate.results import ResultLine, read_result
from outrider.evaluate.retries import replaced
from outrider.evaluate.summary import Scoreboard
from outrider.store import Store

FEED_PAGE = 256


class ResultsFile:
    """The results of a run, open for appending. Its methods block, for as long as writing some lines takes."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        """Open, make or repair the file. With `sync` an appended line survives the loss of power too."""
        self._path = path
        self._sync = sync
        self._descriptor = _locked(path)
        try:
            _cut_torn_line(self._descriptor)
            self._written = {line.rollout_id for line in read_results(path)}
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __contains__(self, rollout_id: object) -> bool:
        return rollout_id in self._written

    def __len__(self) -> int:
        return len(self._written)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def rollout_ids(self) -> AbstractSet[str]:
        """The rollouts that are written down."""
        return self._written

    def append(self, lines: Iterable[ResultLine]) -> list[ResultLine]:
        """Write those that are not there yet, and return them.

        Raises `StoreUnavailable` if the disk is full: what did not fit is not there, and may be appended again.
        """
        new = []
        with explaining_disk(self._path):
            for line in lines:
                if line.rollout_id not in self._written:
                    append_whole(self._descriptor, wire.to_json(line).encode() + b"\n")
                    self._written.add(line.rollout_id)
                    reached("results.line_written")
                    new.append(line)
            if new and self._sync:
                os.fsync(self._descriptor)
        return new

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_results(path: Path) -> Iterator[ResultLine]:
    """The lines of a file that is whole, each rollout once, without holding more than one."""
    seen: set[str] = set()
    decoder = json_decoder(ResultLine)
    try:
        file = path.open("rb")
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror}") from exc
    with file:
        for number, data in enumerate(file, 1):
            if not data.strip():
                continue
            try:
                line = decoder.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                raise InvalidInput(
                    f"{path}, line {number} is not a result: {exc}; move the file away, it is made anew from the store"
                ) from exc
            if line.rollout_id not in seen:
                seen.add(line.rollout_id)
                yield line


def count_results(path: Path, board: Scoreboard) -> None:
    """Count the lines of a file. Of a sample in whose place a retry has ended, only what it took is counted."""
    gone = replaced(line.rollout_id for line in read_results(path))
    for line in read_results(path):
        if line.rollout_id in gone:
            board.add_replaced(line)
        else:
            board.add(line)


def counted_results(path: Path) -> Iterator[ResultLine]:
    """The lines of a file, without the samples in whose place a retry has ended."""
    gone = replaced(line.rollout_id for line in read_results(path))
    return (line for line in read_results(path) if line.rollout_id not in gone)


async def next_results(
    store: Store, results: ResultsFile, cursor: int, *, run: str | None = None, wait: float = 0.0
) -> tuple[list[ResultLine], int]:
    """The lines of what has ended after `cursor` and is not in the file yet, and where to go on from.

    Waits up to `wait` seconds while nothing has ended. Append them, then count them: from cursor 0, what was missed by
    a process that was killed comes again. `run` leaves out the rollouts of other runs in the same store.
    """
    finished = await store.finished_after(cursor, limit=FEED_PAGE, wait=wait)
    lines = [
        await read_result(store, rollout)
        for rollout in finished.items
        if rollout.rollout_id not in results and (run is None or rollout.metadata.get(RUN_KEY) == run)
    ]
    return lines, finished.cursor


def _locked(path: Path) -> int:
    try:
        descriptor = private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except OSError as exc:
        raise InvalidInput(f"cannot open {path}: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        raise InvalidInput(f"another process is writing {path}; wait for its end, or choose another run") from exc
    return descriptor


def _cut_torn_line(descriptor: int) -> None:
    """Take away what stands behind the last line's end, unless it is a whole line that lacks only that."""
    size = os.fstat(descriptor).st_size
    end, tail = size, b""
    while end and b"\n" not in tail:
        start = max(end - (1 << 16), 0)
        tail = os.pread(descriptor, end - start, start) + tail
        end = start
    torn = tail.rpartition(b"\n")[2]
    if not torn:
        return
    try:
        from_json(torn, ResultLine)
        os.write(descriptor, b"\n")
    except (msgspec.DecodeError, UnicodeDecodeError):
        os.ftruncate(descriptor, size - len(torn))
