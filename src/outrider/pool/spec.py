"""Which machines to run, in a form that crosses process borders and can be saved with a run. Holds no secret."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outrider.core.bounds import Pixels, check_bounds
from outrider.core.errors import InvalidInput

DEFAULT_PROVIDER = "desktop"
LISTED = "attach"
"""The provider whose machines are somebody else's, on a list."""


class MachineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of machine. What is None is left to the provider; what a provider cannot follow, it refuses.

    `image` is what machines are made of: a file, a folder or a name, as the provider has it; `snapshot` is the state of
    it that they are reset to. `settings` are the provider's own, by the names that its settings have.
    """

    provider: str = DEFAULT_PROVIDER
    image: str | None = None
    snapshot: str | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    headless: bool | None = None
    """Whether machines open no window on this host; None: as the kind does it."""

    settings: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_bounds(self)


def refuse(spec: MachineSpec, **reasons: str) -> None:
    """For a provider that cannot follow these fields of a spec: `InvalidInput` if one was given, with the reason."""
    for field, reason in reasons.items():
        if getattr(spec, field) is not None:
            raise InvalidInput(f"provider {spec.provider} takes no {field} ({getattr(spec, field)!r}): {reason}")
