"""What an attempt took, and what became of the tokens it made."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class Fate(StrEnum):
    """What became of the tokens of an attempt. Each attempt has one fate, once its group is closed."""

    TRAINED = "trained"
    """It is in a batch that was delivered."""

    STALE = "stale"
    """The policy had moved on too far before its group could be delivered."""

    FILTERED = "filtered"
    """A filter dropped its group."""

    FAILED = "failed"
    """It failed, or its group did for want of another member."""

    SURPLUS = "surplus"
    """Its group was full without it: a redundant member, or the slower of two that ran the same."""

    ABORTED = "aborted"
    """It was cut off, and another attempt took its place: its worker died or was stopped. Or the scheduler was."""


class Account(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt took. `completion_tokens` are those that the policy generated, `n_bytes` what the store holds.

    `first_version` and `last_version` are those of the policy in its first and its newest turn; None: it had no turn.
    `held_seconds` is how long it waited to be allowed its first turn. `metrics` are those of its result. `failed`: it
    ended by a failure of its own, and was not cut off. An attempt whose worker was killed cannot leave its account; its
    scheduler then does so from the events that are stored.
    """

    n_turns: int = 0
    n_steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    n_bytes: int = 0
    first_version: int | None = None
    last_version: int | None = None
    reset_seconds: float = 0.0
    held_seconds: float = 0.0
    model_seconds: float = 0.0
    env_seconds: float = 0.0
    metrics: Mapping[str, float] = {}
    failed: bool = False


class AttemptAccount(Struct, frozen=True, kw_only=True):
    """An account as the store keeps it. `fate` is None as long as its group is not closed."""

    rollout_id: str
    attempt_id: str
    group_id: str
    account: Account
    fate: Fate | None = None


class Tally(Struct, frozen=True, kw_only=True):
    """All attempts of a ledger that left an account: how many, and how many tokens they generated, by fate.

    None stands for those whose group is still open. The sum over all of them is what was generated.
    """

    n_attempts: Mapping[Fate | None, int]
    tokens: Mapping[Fate | None, int]

    @property
    def generated(self) -> int:
        return sum(self.tokens.values())
