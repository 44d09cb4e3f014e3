"""Switches that change how long a team takes, never what it comes to."""

from msgspec import Struct

from outrider.core.bounds import PositiveCount, check_bounds


class Performance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each is on by default, and can be turned off to see what it is worth.

    A limit of the context is the exception: where it bites, agents read less.
    """

    enable_early_termination: bool = True
    """A sample that is approved goes no further. Off: the calls of its last round are made
    once more for each round left, and thrown away."""

    enable_agent_skip: bool = True
    """With `batch_synchronous`: an agent that no sample needs is not asked. Off: it is asked once, for nothing."""

    enable_preprocessing_cache: bool = True
    """A text is tokenised once. Off: each time it stands in a prompt. For policies that tokenise here."""

    enable_parallel_agents: bool = True
    """Agents that do not need each other are asked at the same time. Off: one after the other."""

    max_context_length: PositiveCount | None = None
    """Tokens of a prompt, for agents that have no `max_context_tokens` of their own."""

    batch_synchronous: bool = False
    """All samples of a batch take each step together, as designs with masks do: the baseline."""

    def __post_init__(self) -> None:
        check_bounds(self)
