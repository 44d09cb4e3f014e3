"""What a pool of machines is told: how many, how long each thing may take, and when a machine has served its time."""

from msgspec import Struct

from outrider.core.errors import InvalidInput


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a pool. All times are in seconds."""

    name: str = ""
    """Under which its machines are found again after a crash: one living pool a name on a host. Empty: a fresh one."""

    n_machines: int = 3
    """M: never do more exist, whatever state they are in."""

    max_creating: int = 4
    """How many are made at the same time."""

    max_resetting: int = 4
    """How many are reset at the same time."""

    create_seconds: float = 300.0
    reset_seconds: float = 120.0
    """For a whole reset: the old holder's last call, the marker, the reset itself, and the proof that it is clean."""

    probe_seconds: float = 20.0
    """For one question to a machine: leave a marker, look for it, are you well."""

    destroy_seconds: float = 30.0
    close_seconds: float = 60.0
    """For ending all machines when the pool is closed."""

    max_hold_seconds: float = 3600.0
    """A lease that is held longer is revoked."""

    max_uses: int | None = None
    """How many leases a machine serves before it is replaced."""

    max_age_seconds: float | None = None
    """After which a machine is replaced instead of being handed out."""

    quarantine_seconds: float = 600.0
    """How long a machine that failed is kept to be looked at, if its place is not needed before."""

    max_quarantined: int = 2
    max_kills: int = 3
    """A holder under whom so many machines have died gets no other."""

    pause_seconds: float = 0.5
    """The first pause after a machine could not be made, or ended; it doubles with each failure that follows."""

    max_pause_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in ("n_machines", "max_creating", "max_resetting", "max_kills"):
            if getattr(self, field) < 1:
                raise InvalidInput(f"{field} is {getattr(self, field)}: a pool needs at least 1")
        for field in self.__struct_fields__:
            if field.endswith("_seconds") and not (getattr(self, field) is None or getattr(self, field) >= 0):
                raise InvalidInput(f"{field} is {getattr(self, field)}: it is a time in seconds, 0 or more")
        if self.pause_seconds <= 0:
            raise InvalidInput("pause_seconds is 0: a machine that cannot be made would be tried without a pause")
        if self.max_uses is not None and self.max_uses < 1:
            raise InvalidInput(f"max_uses is {self.max_uses}: a machine serves at least 1 lease")
