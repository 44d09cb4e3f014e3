"""Settings of machines, the same for every command that has some: flags and YAML name them as here."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outrider.core.errors import InvalidInput


class MachineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which machines a job has, and how many.

    `machine` are settings of the machines' provider, `pool` those of the pool: `PoolConfig`.
    """

    use_vm_pool: bool = False
    num_vms: int = 3
    pool_name: str | None = None
    path_to_vm: str | None = None
    provider_name: str | None = None
    screen_width: int | None = None
    screen_height: int | None = None
    headless: bool = False
    snapshot_name: str | None = None
    machine: Mapping[str, Any] = {}
    pool: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        if self.num_vms < 1:
            raise InvalidInput(f"num_vms is {self.num_vms}; give 1 or more")

    @property
    def are_asked_for(self) -> bool:
        """Whether environments that can do without a machine shall have one too."""
        return self.use_vm_pool or self.pool_name is not None or self.provider_name is not None

    @property
    def are_shared(self) -> bool:
        """Whether all workers borrow from one pool, instead of having one each."""
        return self.use_vm_pool or self.pool_name is not None


HOW_FAST = frozenset({"use_vm_pool", "num_vms", "pool_name", "pool", "headless"})
"""Those that a run may be gone on with changed: they do not say what its rollouts act on."""
