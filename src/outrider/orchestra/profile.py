"""Where a team's time goes: by agent and by sample, in bounded memory."""

from collections.abc import Iterable, Sequence

from msgspec import Struct


class Span(Struct, frozen=True, kw_only=True):
    """One call of an agent, or one use of the environment (`agent` is empty), as the clock saw it."""

    agent: str
    call_id: str
    began_at: float
    ended_at: float
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    parse_seconds: float = 0.0
    completion_tokens: int = 0
    used: bool = True


class TeamStatistics(Struct, frozen=True, kw_only=True):
    """Sums over all samples so far."""

    n_samples: int = 0
    n_calls: int = 0


class Profile:
    """Adds up the spans of samples."""

    def __init__(self, agents: Iterable[str], *, print_every: int = 0) -> None:
        self._agents = tuple(agents)
        self._print_every = print_every
        self._n_samples = 0
        self._n_calls = 0

    def add(self, spans: Sequence[Span]) -> None:
        """The spans of one sample that has ended."""
        self._n_samples += 1
        self._n_calls += sum(1 for span in spans if span.agent)

    def statistics(self) -> TeamStatistics:
        return TeamStatistics(n_samples=self._n_samples, n_calls=self._n_calls)
