"""Settings of machines, the same for every command that has some: flags and YAML name them as here."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outrider.core.bounds import Pixels, PositiveCount, check_bounds


class MachineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which machines a job has, and how many.

    `machine` are settings of the machines' provider, `pool` those of the pool: `PoolConfig`.
    """

    use_vm_pool: bool = False
    num_vms: PositiveCount = 3
    pool_name: str | None = None
    path_to_vm: str | None = None
    provider_name: str | None = None
    screen_width: Pixels | None = None
    screen_height: Pixels | None = None
    headless: bool = False
    snapshot_name: str | None = None
    machine: Mapping[str, Any] = {}
    pool: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def are_asked_for(self) -> bool:
        """Whether environments that can do without a machine shall have one too."""
        return self.use_vm_pool or self.pool_name is not None or self.provider_name is not None

    @property
    def are_shared(self) -> bool:
        """Whether all workers borrow from one pool, instead of having one each."""
        return self.use_vm_pool or self.pool_name is not None


HOW_FAST = frozenset({"use_vm_pool", "num_vms", "pool_name", "pool", "headless"})
"""Settings that may change on `--resume`: they do not decide what the rollouts act on."""
