"""A sample: flat tokens with loss mask, log-probabilities and versions; and a trajectory that consists of samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from outrider.core.chat import Message
from outrider.train.arrays import Bools, Floats, Ints, NDArray, frozen, np


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTurn:
    """A model call of which only the text is known. `n_tokens` is how many tokens the server says it wrote."""

    index: int
    request: tuple[Message, ...]
    reply: Message
    n_tokens: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCall:
    """The call of a team that a turn is.

    `verdict` is what its answer was read as, if that is one; `route` why it was made, if the program says so. `reads`
    and `dropped` are the ids of the calls whose words it was shown, and of those that did not fit.
    """

    id: str
    round: int = 0
    verdict: str = ""
    route: str = ""
    reads: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    policy: str = ""
    """Which of the run's policies answered it; empty: the run's own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One sequence of one trajectory, or, without tokens, the text turns of one agent, in a team those of one call.

    The arrays are read-only and have one element for each token; `logprobs[i]` is that of `tokens[i]` itself. The loss
    mask is true on completions, each in one sample only; outside of it log-probabilities are 0. A log-probability that
    the engine did not give is NaN; the version of a token that no policy made is -1.
    """

    tokens: Ints
    loss_mask: Bools
    logprobs: Floats
    versions: Ints
    agent: str = ""
    rollout_id: str = ""
    group_id: str | None = None
    turns: tuple[int, ...] = ()
    """Which turns of the trajectory are trained on here. In a team they are numbered as its program made them."""
    calls: tuple[SampleCall, ...] = ()
    """The calls of a team that these turns are, one for each."""
    reward: float | None = None
    stop_reason: str = ""
    truncated: bool = False
    """Whether a limit ended the trajectory, or this sample's last completion."""
    text: tuple[TextTurn, ...] = ()

    @property
    def is_text(self) -> bool:
        return bool(self.text)

    @property
    def policy(self) -> str:
        """Which of the run's policies said it all; empty: the run's own."""
        return self.calls[0].policy if self.calls else ""

    @property
    def round(self) -> int:
        """The round of its team in which it begins."""
        return self.calls[0].round if self.calls else 0

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        return all(_is_same(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport:
    """How well turns went into samples. A fork shares completions with another sample; they are trained once.

    A turn has drifted if its messages go on from an earlier turn of its agent and its token ids do not: whoever
    rendered the prompt has re-tokenised the history.
    """

    n_turns: int = 0
    n_text_turns: int = 0
    n_sequences: int = 0
    n_forks: int = 0
    n_drifted: int = 0
    n_trained: int = 0
    """Tokens in the loss."""
    n_masked: int = 0
    """Tokens of prompts, observations and templates, and of completions that another sample trains."""
    n_text: int = 0
    """Completion tokens without ids, as the server counted them."""
    n_without_logprobs: int = 0
    """Tokens in the loss whose log-probability is not known."""
    n_unused: int = 0
    """Further turns, which are in no sample: calls that a team's program went on without."""
    n_unused_tokens: int = 0
    """Completion tokens of those, as the server counted them."""

    @property
    def merge_ratio(self) -> float:
        """Turns with token ids for each sequence; 1: nothing could be merged."""
        return (self.n_turns - self.n_text_turns) / self.n_sequences if self.n_sequences else 0.0

    @property
    def n_generated(self) -> int:
        """Every token that the policy has written, once."""
        return self.n_trained + self.n_text + self.n_unused_tokens

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(SampleReport)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTrajectory:
    """A trajectory as it is trained on. `first_version` is the policy's in its first turn; None: it has no turn."""

    rollout_id: str
    group_id: str | None = None
    tag: str | None = None
    seed: int | None = None
    reward: float | None = None
    stop_reason: str = ""
    truncated: bool = False
    first_version: int | None = None
    last_version: int | None = None
    """The newest policy that had a part in it."""
    samples: tuple[Sample, ...] = ()
    reports: Mapping[str, SampleReport] = field(default_factory=dict)
    """By policy; the empty name is the run's own."""

    @property
    def report(self) -> SampleReport:
        return sum(self.reports.values(), SampleReport())

    @property
    def policies(self) -> tuple[str, ...]:
        """Those that its samples are by."""
        return tuple(dict.fromkeys(sample.policy for sample in self.samples))

    def of_policy(self, name: str) -> Self:
        """What this policy has said in it, and nothing else."""
        own = tuple(sample for sample in self.samples if sample.policy == name)
        return replace(self, samples=own, reports={key: one for key, one in self.reports.items() if key == name})


def no_tokens() -> dict[str, NDArray[Any]]:
    """The arrays of a sample that has no tokens."""
    kinds = {"tokens": np.int32, "loss_mask": np.bool_, "logprobs": np.float32, "versions": np.int32}
    return {name: frozen(np.empty(0, kind)) for name, kind in kinds.items()}


def _is_same(one: object, other: object) -> bool:
    """Equal; for arrays also of one kind, and NaN where the other has it."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return one == other
