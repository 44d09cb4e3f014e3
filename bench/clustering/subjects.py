"""The programs under measurement: opened when they are first asked, and killed when they do not answer."""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clustering.names import COPY, GLOO, LOCAL, MP_QUEUE, RAY, RLINF, US
from cpu_time import family_cpu_seconds
from subject import Answer, Subject, SubjectFailed

PROGRAMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    US: ("ours.py", {"local": False}),
    LOCAL: ("ours.py", {"local": True}),
    RAY: ("raw_ray.py", {}),
    RLINF: ("rlinf_workers.py", {}),
    MP_QUEUE: ("processes.py", {}),
    GLOO: ("gloo_pair.py", {}),
    COPY: ("memory_copy.py", {}),
}
OF_PEERS = (RLINF, GLOO)
"""Those that run in the environment of the peers."""

HAVE_GROUPS = (US, LOCAL, RAY, RLINF)
ASK_SECONDS = 180.0


class Subjects:
    """All of them, by the name of their program."""

    def __init__(self, peers_python: Path | None, say: Callable[[str], None]) -> None:
        self._peers_python = peers_python
        self._say = say
        self._open: dict[str, Subject] = {}

    def ask(self, program: str, work: str, **arguments: Any) -> Answer:
        subject = self._opened(program)
        with _bounded(subject):
            return subject.ask(work, **arguments)

    def spent(self, program: str, work: str, **arguments: Any) -> tuple[Answer, float]:
        """The answer, and the CPU seconds of all processes of that program meanwhile."""
        pid = self._opened(program).pid
        before = family_cpu_seconds(pid)
        answer = self.ask(program, work, **arguments)
        return answer, family_cpu_seconds(pid) - before

    def start(self, program: str) -> list[float]:
        """The seconds until there is a cluster, a group of 4 that has answered, and another; in a new process."""
        with self._new(program) as subject, _bounded(subject):
            seconds = [subject.ask("open", **PROGRAMS[program][1])["wall_seconds"]]
            seconds += [subject.ask("launch", size=4)["wall_seconds"] for _ in range(2)]
            subject.ask("close")
        return seconds

    def discard(self, program: str) -> None:
        """The next one who asks gets a new process."""
        subject = self._open.pop(program, None)
        if subject is not None:
            subject.kill()
            subject.close()

    def close(self) -> None:
        while self._open:
            _, subject = self._open.popitem()
            with subject, suppress(SubjectFailed), _bounded(subject):
                subject.ask("close")

    def _opened(self, program: str) -> Subject:
        """The program with its cluster open, a group of 4 and one of 1."""
        if program not in self._open:
            self._say(f"opening {program}")
            subject = self._open[program] = self._new(program)
            with _bounded(subject):
                subject.ask("open", **PROGRAMS[program][1])
                for size in (4, 1) if program in HAVE_GROUPS else ():
                    subject.ask("launch", size=size)
        return self._open[program]

    def _new(self, program: str) -> Subject:
        """Peers get a key for the Ray that they start, since RLinf's driver is not the process that starts it."""
        file = f"clustering/{PROGRAMS[program][0]}"
        same_loops = {"RAY_USE_UVLOOP": "0"}  # it may be installed for some and not for others
        if program not in OF_PEERS:
            return Subject(file, environment=same_loops)
        assert self._peers_python is not None
        own_key = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return Subject(file, python=self._peers_python, environment=same_loops | own_key)


@contextmanager
def _bounded(subject: Subject) -> Iterator[None]:
    timer = threading.Timer(ASK_SECONDS, subject.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
