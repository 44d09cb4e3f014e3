"""Which policy a model call is made with: the one a worker was given, unless a trainer has published another."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from outrider.core.published import PublishedPolicy
from outrider.policy import ChatPolicy
from outrider.policy.spec import PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopening:
    """How the policy that `spec` describes is opened anew, for another model or endpoint."""

    spec: PolicySpec
    open: Callable[[PolicySpec], Awaitable[ChatPolicy]]


def _keep() -> None:
    """Release is a no-op."""


class Loan(NamedTuple):
    """A policy for one call, and the version it stands for; 0 where nobody counts them. Give it back in any case."""

    policy: ChatPolicy
    version: int = 0
    give_back: Callable[[], None] = _keep


class PolicyLender(Protocol):
    """Lends a policy to each model call."""

    async def lend(
        self,
        policy: ChatPolicy,
        reopening: Reopening | None,
        *,
        pin: int | PublishedPolicy | None,
        seconds: float,
        name: str = "",
    ) -> Loan:
        """Waits until a call may begin. `policy` is the worker's own, `name` its name if it is not the run's only one.

        With a `pin` it is that version and no other; `PolicyError` if it is not published within `seconds`. A pin may
        also be the publication itself.
        """
        ...


class OwnPolicy:
    """Lends the worker's own policy, at once."""

    async def lend(
        self,
        policy: ChatPolicy,
        reopening: Reopening | None,  # noqa: ARG002 nothing is published
        *,
        pin: int | PublishedPolicy | None,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
        name: str = "",  # noqa: ARG002
    ) -> Loan:
        return Loan(policy)
