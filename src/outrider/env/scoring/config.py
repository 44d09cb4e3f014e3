"""What scorers can be told."""

from msgspec import Struct

from outrider.core.bounds import Amount, Count, PositiveCount, PositiveSeconds, Share, check_bounds
from outrider.policy.spec import PolicySpec


class ScorerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each scorer reads its own part.

    `tolerance` (numeric) is relative to the expected number. With a `threshold` (f1, similarity) the reward is 1 from
    there on and 0 below; without, it is the measure itself. `check_seconds` (math) bounds the processor time of one
    symbolic comparison and `max_processes` how many run at once. `judge` is the model that judges, `judge_retries` how
    often it is asked again after a reply without a clear verdict, `judge_instructions` what it goes by beside the
    expected answer.
    """

    tolerance: Amount = 1e-6
    threshold: Share | None = None
    check_seconds: PositiveSeconds = 5.0
    max_processes: PositiveCount = 2
    judge: PolicySpec | None = None
    judge_retries: Count = 2
    judge_instructions: str = ""

    def __post_init__(self) -> None:
        check_bounds(self)
