"""CLUSTER: group calls, channels, payloads between workers, start and death; against raw Ray, RLinf and others.

Every system is real and runs in processes of its own; see `clustering/`. On Ray each has a Ray of its own.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from baselines import RLINF as RLINF_BASELINE
from baselines import BaselineMissing
from clustering.names import (
    ASYNC,
    ASYNC_RECV_DIES,
    BATCH,
    CALL_DIES,
    CHANNEL_DIES,
    COPY,
    COPY_FRESH,
    FOUR,
    GLOO,
    LOCAL,
    LOCAL_TENSOR,
    MANY,
    MP_QUEUE,
    N_MANY,
    N_PRODUCERS,
    PIPELINED,
    QUEUE,
    RAY,
    RECV_DIES,
    RLINF,
    RLINF_TENSOR,
    SINGLE,
    SIZES,
    STORE,
    STORE_COPY,
    SYNC,
    US,
    US_TENSOR,
)
from clustering.picture import picture
from clustering.subjects import HAVE_GROUPS, OF_PEERS, PROGRAMS, Subjects
from clustering.tables import METHOD, PICTURE
from clustering.tables import tables as tables_of
from goals import Goal, LeftOut, Line
from report import Report, main
from subject import SubjectFailed

__all__ = ["GOOD", "LEFT_OUT", "METHOD", "pictures", "run", "tables"]

STREAMERS = {US: US, LOCAL: LOCAL, QUEUE: RAY, MP_QUEUE: MP_QUEUE, RLINF: RLINF}
CARRIERS = {
    US: US,
    US_TENSOR: US,
    LOCAL: LOCAL,
    LOCAL_TENSOR: LOCAL,
    STORE: RAY,
    STORE_COPY: RAY,
    GLOO: GLOO,
    COPY: COPY,
    COPY_FRESH: COPY,
    RLINF: RLINF,
    RLINF_TENSOR: RLINF,
}
"""The systems of a part, and which program carries each."""

DEATHS = {
    RAY: (CALL_DIES, RECV_DIES, CHANNEL_DIES),
    **dict.fromkeys((US, LOCAL, RLINF), (CALL_DIES, RECV_DIES, ASYNC_RECV_DIES, CHANNEL_DIES)),
}
ONLY_STREAMS = {MP_QUEUE: (SINGLE, FOUR)}
"""Of those that cannot do all."""

STARTS = ("cluster_seconds", "first_group_seconds", "second_group_seconds")

REASON_LENGTH = 300
LEAST_CALLS, MOST_CALLS = 5, 400
LEAST_ITEMS, MOST_ITEMS = 64, 64_000

LARGE = "carry 64 MB"
GOOD = (
    Goal(
        text=f"a group called, however: ≤ 1.1x {RAY} actors",
        case="call *",
        metric="ratio",
        of="call_ms",
        against=RAY,
        at_most=1.1,
    ),
    *(
        Goal(
            text=f"channel ≥ 8,000 items/s, {words}",
            case=f"channel {stream}",
            metric="items_per_second",
            at_least=8000,
        )
        for stream, words in (
            (BATCH, "`put_many` and `get_batch` of 32"),
            (PIPELINED, "puts and gets of one item, 64 at once"),
        )
    ),
    Goal(
        text=f"`put_many` and `get_batch` of 32 ≥ 10x {QUEUE}'s batches of 32",
        case=f"channel {BATCH}",
        metric="ratio",
        of="items_per_second",
        against=QUEUE,
        at_least=10,
    ),
    *(
        Goal(
            text=f"{words} ≥ 3x the same of {QUEUE}",
            case=case,
            metric="ratio",
            of="items_per_second",
            against=QUEUE,
            at_least=3,
        )
        for case, words in (
            ("channel ?to1", "put and get one by one (1 and 4 producers)"),
            (f"channel {PIPELINED}", "puts and gets of one item, 64 at once,"),
        )
    ),
    *(
        goal
        for system, words in ((US, "send and recv"), (US_TENSOR, "send_tensor and recv_tensor"))
        for goal in (
            Goal(
                text=f"64 MB by {words} ≥ 3.5 GB/s",
                case=LARGE,
                metric="gb_per_second",
                system=system,
                at_least=3.5,
            ),
            Goal(
                text=f"64 MB by {words} ≥ 50 % of one {COPY} into memory that is there",
                case=LARGE,
                metric="ratio",
                of="gb_per_second",
                system=system,
                against=COPY,
                at_least=0.5,
            ),
            Goal(
                text=f"payloads of every size by {words} ≥ 1x {STORE}",
                case="carry *",
                metric="ratio",
                of="gb_per_second",
                system=system,
                against=STORE,
                at_least=1.0,
            ),
        )
    ),
    Goal(text="the first group of 4 ready in < 3 s, on Ray", case="start", metric="first_group_seconds", at_most=3),
    Goal(text="the second", case="start", metric="second_group_seconds", at_most=3),
    Goal(
        text=f"Ray's cluster begun by us ≤ 1.1x {RAY}",
        case="start",
        metric="ratio",
        of="cluster_seconds",
        against=RAY,
        at_most=1.1,
    ),
    Goal(text="death raises ≤ 5 s, on Ray", case="death *", metric="death_seconds", at_most=5),
    Goal(text="the same without Ray", case="death *", metric="death_seconds", system=LOCAL, at_most=5),
)

SMALL = "a message costs a fraction of a millisecond, whatever its size, and no memory's speed shows in it"
LEFT_OUT = (
    LeftOut(
        case="channel ?to1",
        metric="items_per_second",
        reason=f"each item waits for the one before; judged by the ratio to {QUEUE} one by one",
    ),
    *(
        LeftOut(case=f"carry {size}", system=system, reason=f"{SMALL}; judged beside {STORE}", **of)
        for size, system, of in product(
            ("1 KB", "1 MB"),
            (US, US_TENSOR),
            ({"metric": "gb_per_second"}, {"metric": "ratio", "of": "gb_per_second", "against": COPY}),
        )
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is run."""

    programs: Sequence[str]
    rounds: int
    starts: int
    deaths: int
    call_seconds: float
    stream_seconds: float
    n_carried: Mapping[str, int]


FULL = Sizes(
    programs=tuple(PROGRAMS),
    rounds=5,
    starts=3,
    deaths=3,
    call_seconds=0.6,
    stream_seconds=1.0,
    n_carried={"1 KB": 200, "1 MB": 50, "64 MB": 8},
)
QUICK = Sizes(
    programs=tuple(PROGRAMS),
    rounds=3,
    starts=3,
    deaths=1,
    call_seconds=0.3,
    stream_seconds=0.4,
    n_carried={"1 KB": 100, "1 MB": 30, "64 MB": 6},
)


class ClusterBench:
    """Asks one system after the other for the same work. One that fails is left out of the case in which it did."""

    def __init__(self, report: Report, sizes: Sizes, peers_python: Path | None) -> None:
        report.tells_spread = True
        self._report = report
        self._sizes = sizes
        self._subjects = Subjects(peers_python, report.say)
        self._failed: set[tuple[str, str]] = set()
        self._amounts: dict[tuple[str, str], int] = {}
        self._noted: set[tuple[str, str, str]] = set()

    def start(self) -> None:
        for number in range(self._sizes.starts):
            for program in self._turn(HAVE_GROUPS, number):
                self._report.say(f"starting {program}")
                self._try("start", program, partial(self._start, program))
        for metric, against in product(STARTS, (RAY, RLINF)):
            self._report.ratio("start", metric, of=US, against=against)
        self._report.publish()

    def calls(self) -> None:
        ways = list(product((4, 1), (SYNC, ASYNC, MANY)))
        for number, (size, how) in product(range(self._sizes.rounds), ways):
            for program in self._turn(HAVE_GROUPS, number):
                self._try(f"call {size} {how}", program, partial(self._call, program, size, how))
        for (size, how), of, against in product(ways, (US, LOCAL, RLINF), (RAY, RLINF)):
            if of != against:
                self._report.ratio(f"call {size} {how}", "call_ms", of=of, against=against)
        self._report.publish()

    def streams(self) -> None:
        for number, stream in product(range(self._sizes.rounds), N_PRODUCERS):
            for system in self._turn(STREAMERS, number):
                if stream in ONLY_STREAMS.get(system, (stream,)):
                    self._try(f"channel {stream}", system, partial(self._stream, system, stream))
        for stream, against in product(N_PRODUCERS, (QUEUE, RLINF, MP_QUEUE)):
            self._report.ratio(f"channel {stream}", "items_per_second", of=US, against=against)
        self._report.publish()

    def payloads(self) -> None:
        for number, name in product(range(self._sizes.rounds), SIZES):
            for system in self._turn(CARRIERS, number):
                self._try(f"carry {name}", system, partial(self._carry, system, name))
        for name, of, against in product(SIZES, (US, US_TENSOR), (COPY, STORE, GLOO, RLINF, RLINF_TENSOR)):
            self._report.ratio(f"carry {name}", "gb_per_second", of=of, against=against)
        self._report.publish()

    def deaths(self) -> None:
        for number in range(self._sizes.deaths):
            for system in self._turn(DEATHS, number):
                for how in DEATHS[system] if system != RLINF or number == 0 else ():
                    self._try(f"death {how}", system, partial(self._die, system, how))
        self._report.publish()

    def close(self) -> None:
        self._subjects.close()

    def _turn(self, systems: Iterable[str], number: int) -> list[str]:
        """Those that take part, each round in another order."""
        names = [name for name in systems if _program(name) in self._sizes.programs]
        at = number % max(1, len(names))
        return names[at:] + names[:at]

    def _try(self, case: str, system: str, measure: Callable[[], None]) -> None:
        if (case, system) in self._failed:
            return
        try:
            measure()
        except SubjectFailed as exc:
            self._failed.add((case, system))
            self._report.missing(case, system, " ".join(str(exc).split())[:REASON_LENGTH])
            self._subjects.discard(_program(system))

    def _start(self, program: str) -> None:
        for metric, seconds in zip(STARTS, self._subjects.start(program), strict=True):
            self._report.add("start", program, metric, seconds, "s")

    def _call(self, program: str, size: int, how: str) -> None:
        case, arguments = f"call {size} {how}", {"size": size, "how": how}

        def fitting() -> int:
            ms = self._subjects.ask(program, "call", **arguments, n=3)["ms"]
            return _clamped(1000 * self._sizes.call_seconds / ms, LEAST_CALLS, MOST_CALLS)

        n = self._amount(program, case, fitting)
        answer, cpu = self._subjects.spent(program, "call", **arguments, n=n)
        self._report.add(case, program, "call_ms", answer["ms"], "ms")
        self._report.add(case, program, "cpu_ms_per_call", 1000 * cpu / (N_MANY if how == MANY else n), "ms")

    def _stream(self, system: str, stream: str) -> None:
        case, program = f"channel {stream}", _program(system)

        def fitting() -> int:
            rate = self._subjects.ask(program, "stream", case=stream, n=LEAST_ITEMS)["items_per_second"]
            n_items = _clamped(rate * self._sizes.stream_seconds, LEAST_ITEMS, MOST_ITEMS)
            return LEAST_ITEMS * math.ceil(n_items / N_PRODUCERS[stream] / LEAST_ITEMS)

        n = self._amount(system, case, fitting)
        answer, cpu = self._subjects.spent(program, "stream", case=stream, n=n)
        self._report.add(case, system, "items_per_second", answer["items_per_second"], "1/s")
        self._report.add(case, system, "cpu_us_per_item", 1e6 * cpu / answer["n_items"], "us")

    def _carry(self, system: str, name: str) -> None:
        n = self._sizes.n_carried[name]
        answer = self._subjects.ask(_program(system), "carry", how=system, n_bytes=SIZES[name], n=n)
        case = f"carry {name}"
        self._report.add(case, system, "carry_ms", answer["ms"], "ms")
        self._report.add(case, system, "gb_per_second", SIZES[name] / answer["ms"] / 1e6, "GB/s")
        self._report.add(case, system, "read_ms", answer["read_ms"], "ms")

    def _die(self, system: str, how: str) -> None:
        case = f"death {how}"
        self._subjects.ask(system, "doom", how=how)
        began = time.monotonic()
        try:
            answer = self._subjects.ask(system, "die")
        except SubjectFailed as exc:
            answer = {"seconds": None, "raised": f"the driver is gone: {exc}, after {time.monotonic() - began:.1f} s"}
            self._subjects.discard(system)
        if answer["seconds"] is not None:
            self._report.add(case, system, "death_seconds", answer["seconds"], "s")
        elif (case, system) not in self._failed:
            self._failed.add((case, system))
            self._report.missing(case, system, answer["raised"])
        if (case, system, answer["raised"]) not in self._noted:
            self._noted.add((case, system, answer["raised"]))
            self._report.note(case, system, "raised", answer["raised"])
        if system == RLINF:  # what one death leaves there is no ground for the next
            self._subjects.discard(system)

    def _amount(self, system: str, case: str, fitting: Callable[[], int]) -> int:
        """How many fit into the time there is, found out when it is first asked."""
        if (system, case) not in self._amounts:
            self._amounts[system, case] = fitting()
        return self._amounts[system, case]


def _program(system: str) -> str:
    """The one that runs a system."""
    return {**STREAMERS, **CARRIERS}.get(system, system)


def _clamped(value: float, least: int, most: int) -> int:
    return max(least, min(most, round(value)))


def measure(report: Report, sizes: Sizes, peers_python: Path | None = None) -> None:
    bench = ClusterBench(report, sizes, peers_python)
    try:
        bench.start()
        bench.calls()
        bench.streams()
        bench.payloads()
        bench.deaths()
    finally:
        bench.close()


def tables(lines: Sequence[Line]) -> list[str]:
    """The section in the results."""
    return tables_of(lines)


def pictures(lines: Sequence[Line]) -> dict[str, str]:
    """The files that belong to the section."""
    return {PICTURE: picture(lines)}


def run(report: Report, quick: bool) -> None:
    sizes = QUICK if quick else FULL
    python = None
    try:
        python = RLINF_BASELINE.install()
    except BaselineMissing as exc:
        report.missing("", RLINF, str(exc))
        sizes = replace(sizes, programs=tuple(name for name in sizes.programs if name not in OF_PEERS))
    measure(report, sizes, python)


if __name__ == "__main__":
    sys.exit(main("cluster", run, sys.argv[1:]))
