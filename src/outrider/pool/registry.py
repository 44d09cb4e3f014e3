"""Kinds of machines by name: those that come along, and those that installed packages announce."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from outrider.core.errors import InvalidInput
from outrider.core.loading import load
from outrider.pool.provider import Provider
from outrider.pool.spec import MachineSpec

ENTRY_POINTS = "outrider.machines"
"""The group in which a package announces kinds of machines: `name = "module:function"`, a `ProviderFactory`."""

ProviderFactory = Callable[[MachineSpec], Provider]
"""Makes the provider that a spec asks for; `InvalidInput` if it asks for what there is not. Starts nothing."""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        name: f"outrider.pool.providers.{name}:provider_of"
        for name in (
            "attach",
            "aws",
            "browser",
            "desktop",
            "docker",
            "process",
            "qemu",
            "virtualbox",
            "vmware",
        )
    }
)


def names() -> list[str]:
    """The kinds there are."""
    return sorted({*BUILT_IN, *_announced()})


def provider_of(spec: MachineSpec) -> Provider:
    """The provider of these machines."""
    place = BUILT_IN.get(spec.provider) or _announced().get(spec.provider)
    if place is None:
        known = names()
        near = get_close_matches(spec.provider.casefold(), known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidInput(f"there is no provider {spec.provider!r}; {hint}there are {', '.join(known)}")
    factory: ProviderFactory = load(place, "provider", such_as="my_machines:provider_of")
    return factory(spec)


def _announced() -> dict[str, str]:
    from importlib.metadata import entry_points  # noqa: PLC0415 slow to import, and seldom needed

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
