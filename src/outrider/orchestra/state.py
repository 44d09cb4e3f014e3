"""Where a sample stands, in one branch of its team's program."""

from dataclasses import dataclass, field

from outrider.env import Step
from outrider.orchestra.context import TeamContext


@dataclass(slots=True)
class State:
    """What was said and seen so far, and what was decided."""

    context: TeamContext = field(default_factory=TeamContext)
    observations: list[str] = field(default_factory=list)
    last_step: Step = field(default_factory=Step)
    round: int = 0
    approved: bool = False

    def branch(self) -> "State":
        """The same, for a program that goes its own way from here."""
        return State(
            context=self.context.copy(),
            observations=list(self.observations),
            last_step=self.last_step,
            round=self.round,
            approved=self.approved,
        )

    def join(self, branches: "list[State]") -> None:
        """Take over what was said and seen in branches since they left, one after the other."""
        n_seen = len(self.observations)
        news = [(branch.context.since(self.context), branch.observations[n_seen:]) for branch in branches]
        for branch, (entries, observations) in zip(branches, news, strict=True):
            self.context.extend(entries)
            self.observations.extend(observations)
            self.last_step = branch.last_step if observations else self.last_step
