"""POLICY: what a model call costs the client, beside the `openai` SDK, against the same fast server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from baselines import Baseline, BaselineMissing
from goals import Goal
from policy_workload import ANSWER
from report import Report, main
from subject import Subject, SubjectFailed

US = "outrider"
OPENAI = Baseline(name="openai", requirement="openai==3.49.0", check="import openai")
THEM = OPENAI.system

GOOD = (
    Goal(
        text="≥ 5x the calls of the openai SDK per CPU-second of the client",
        metric="ratio",
        of="calls_per_client_cpu_second",
        at_least=5.0,
    ),
    Goal(text="≤ 0.5 ms CPU a call", metric="client_cpu_ms_per_call", at_most=0.5),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call, so many at once."""

    name: str
    concurrency: int
    history: bool = False
    stream: bool = False

    def __str__(self) -> str:
        return f"{self.name} concurrency={self.concurrency}"


CASES = [
    case
    for concurrency in (16, 128)
    for case in (
        Case("plain", concurrency),
        Case("40 messages", concurrency, history=True),
        Case("stream of 20", concurrency, stream=True),
    )
]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rounds, and how many calls of each system in a round: at least as many as are under way at once."""

    rounds: int
    ours: int
    theirs: int


QUICK = Sizes(rounds=3, ours=2000, theirs=200)
FULL = Sizes(rounds=5, ours=5000, theirs=600)


@contextmanager
def server() -> Iterator[str]:
    """The test server in a process of its own; yields its address."""
    command = [sys.executable, "-m", "outrider.testing.model_server", "--text", ANSWER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def measure(report: Report, sizes: Sizes, systems: dict[str, tuple[Subject, int]]) -> None:
    """System after system in each round of each case."""
    for case in CASES:
        report.say(str(case))
        for _ in range(sizes.rounds):
            for system, (subject, n) in systems.items():
                _measure_once(report, case, system, subject, max(n, case.concurrency))
        report.ratio(str(case), "calls_per_client_cpu_second", of=US, against=THEM)
    report.publish()


def _measure_once(report: Report, case: Case, system: str, subject: Subject, n: int) -> None:
    answer = subject.ask("calls", n=n, concurrency=case.concurrency, history=case.history, stream=case.stream)
    if answer["n"] != n:
        raise SubjectFailed(f"{system}, {case}: {n} calls were asked for, {answer['n']} were made")
    report.add(str(case), system, "calls_per_client_cpu_second", n / answer["cpu_seconds"], "1/s")
    report.add(str(case), system, "client_cpu_ms_per_call", answer["cpu_seconds"] / n * 1000, "ms")
    report.add(str(case), system, "calls_per_second", n / answer["wall_seconds"], "1/s")


def run(report: Report, quick: bool) -> None:
    sizes = QUICK if quick else FULL
    with ExitStack() as stack:
        systems = {US: (stack.enter_context(Subject("outrider_policy.py")), sizes.ours)}
        try:
            python = OPENAI.install()
        except BaselineMissing as exc:
            report.missing("", THEM, str(exc))
        else:
            systems[THEM] = (stack.enter_context(Subject("openai_policy.py", python=python)), sizes.theirs)
        url = stack.enter_context(server())
        for subject, _ in systems.values():
            subject.ask("open", url=url)
            subject.ask("calls", n=32, concurrency=16, history=False, stream=False)
        measure(report, sizes, systems)
        for subject, _ in systems.values():
            subject.ask("close")


if __name__ == "__main__":
    sys.exit(main("policy", run, sys.argv[1:]))
