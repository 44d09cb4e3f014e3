"""The ten optimisations of a guide to multi-agent rollouts, one by one: what each is here, and what it is worth.

The guide claims gains without measurements; `optimisations` gives rows for a Markdown table from the figures of a run.
"""

from collections.abc import Iterable, Iterator, Sequence

from goals import Line
from orchestrating.found import Found, shown
from orchestrating.names import (
    ALL_OFF,
    LIMITED,
    NO_CACHE,
    NO_EXIT,
    PARTS,
    SERIAL,
    STREAM,
    SYNC,
    SYNC_NO_CACHE,
    SYNC_SPARE,
    SYNC_WHOLE,
    US,
)

HEAD = ("#", "the guide's optimisation", "it claims", "here", "measured gain")


SAME = "nothing of its own"


def optimisations(lines: Sequence[Line]) -> Iterator[list[str]]:
    """A row for each, in the guide's order; the last two are not in it."""
    told = _Told(lines)
    here = {
        1: ("texts joined by f-strings", "10-15 %", "entries in a list, joined when read", told.context()),
        2: ("early termination", "20-40 %", "`enable_early_termination`: an approved sample ends", told.exit()),
        3: ("masks computed once", "5-10 %", "there are no masks", "nothing: there is nothing to compute"),
        4: ("only active samples in a batch", "30-50 %", "a sample that is done asks for nothing", told.active()),
        5: ("preprocessing cache", "15-25 %", "`enable_preprocessing_cache`: messages tokenised once", told.cache()),
        6: ("parallel agents", "30-60 %", "`enable_parallel_agents`: `team.gather`", told.parallel()),
        7: ("approved and other samples in groups", "10-20 %", "the same as 4", SAME),
        8: ("context as a list", "5-10 %", "the same as 1: a list for who may read what, not for speed", SAME),
        9: ("switches", "none", "`agent.performance`, with `max_context_length`", told.switches()),
        10: ("profiling", "none", "always on: `stats()`, lines in the log, the waterfall", told.profile()),
    }
    for number, row in here.items():
        yield [str(number), *row]
        if number == 2:
            skipping = "`enable_agent_skip`; each sample by itself never asks them"
            yield ["2b", "agents that nobody needs are skipped", "in 2", skipping, told.skip()]
    yield ["", "each sample by itself", "not in the guide", "`batch_synchronous` off", told.asynchronous()]
    yield ["", "batches in one stream", "not in the guide", "`run(batch, window=…)`", told.stream()]


class _Told:
    """Each gain in words: ranges over all cases in which it was measured."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._found = Found(lines)
        self._cases = self._found.cases("switches ")

    def context(self) -> str:
        string = shown(self._found.value("parts", US, "string_us"))
        return f"nothing: it takes {self._cost('context_us')}, and a string that grows {string} µs"

    def exit(self) -> str:
        high, low = (self._gains(NO_EXIT, "wall_seconds", f"p={rate}") for rate in ("0.85", "0.25"))
        samples = self._gains(NO_EXIT, "samples", "p=0.85")
        return f"wall {high} at approval 0.85, {low} at 0.25; samples {samples} at 0.85"

    def skip(self) -> str:
        calls = [self._found.value(case, SYNC_SPARE, "calls_for_nothing") or 0.0 for case in self._cases]
        gain = self._gains(SYNC_SPARE, "wall_seconds", by=SYNC)
        return f"nothing; in batches wall {gain}, with at most {max(calls, default=0.0):.0f} calls saved"

    def active(self) -> str:
        made, cpu, wall = (
            self._gains(SYNC_WHOLE, metric, by=SYNC_NO_CACHE)
            for metric in ("tokenised_per_call", "cpu_seconds", "wall_seconds")
        )
        return f"in `batch_synchronous`: tokens made {made}, CPU {cpu}, wall {wall}"

    def cache(self) -> str:
        metrics = ("tokenised_per_call", "cpu_seconds")
        made, cpu = (self._gains(NO_CACHE, metric, without="groups") for metric in metrics)
        shared = [self._gains(NO_CACHE, metric, "groups") for metric in metrics]
        alike = f"tokens made {shared[0]}, CPU {shared[1]} where eight samples share a question"
        return f"tokens made {made}, CPU {cpu}; {alike}"

    def parallel(self) -> str:
        flat, tail = (self._gains(SERIAL, "rollout_mean_seconds", latency) for latency in ("flat", "tail"))
        batch = self._gains(SERIAL, "wall_seconds")
        return f"two agents of three at once: a rollout {flat} (flat), {tail} (tail); the batch {batch}"

    def switches(self) -> str:
        wall, cpu = (self._gains(ALL_OFF, metric) for metric in ("wall_seconds", "cpu_seconds"))
        limit = self._gains(LIMITED, "cpu_seconds")
        return f"all off, in batches: wall {wall}, CPU {cpu}; a limit that is not reached takes CPU {limit}"

    def profile(self) -> str:
        return f"none: it takes {self._cost('profile_us')}"

    def asynchronous(self) -> str:
        wall, cpu = (self._gains(SYNC, metric, without="parallel") for metric in ("wall_seconds", "cpu_seconds"))
        return f"wall {wall}, CPU {cpu}"

    def stream(self) -> str:
        cases = self._found.cases("stream ")
        return f"wall {_range(self._found.quotient(case, 'wall_seconds', PARTS, STREAM) for case in cases)}"

    def _gains(self, system: str, metric: str, only: str = "", *, by: str = US, without: str = " none ") -> str:
        cases = [case for case in self._cases if only in case and without not in case]
        return _range(self._found.quotient(case, metric, system, by) for case in cases)

    def _cost(self, part: str) -> str:
        """For each call, and of the CPU time of the median case."""
        calls = [self._found.value(case, US, "cpu_ms_per_call") for case in self._cases]
        known = sorted(call for call in calls if call is not None)
        value = self._found.value("parts", US, part)
        if value is None or not known:
            return "not measured"
        return f"{shown(value)} µs a call, {value / 10 / known[len(known) // 2]:.1f} % of its CPU"


def _range(gains: Iterable[float | None]) -> str:
    """The least and the most of them, or one where both read the same."""
    known = [f"{gain:.2f}" for gain in sorted(gain for gain in gains if gain is not None)]
    if not known:
        return "not measured"
    return f"x {known[0]}" if known[0] == known[-1] else f"x {known[0]} to {known[-1]}"
