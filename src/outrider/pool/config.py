"""What a pool of machines is told: how many, how long each thing may take, and when a machine has served its time."""

from msgspec import Struct

from outrider.core.bounds import Count, PositiveCount, PositiveSeconds, Seconds, check_bounds


class PoolConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a pool. All times are in seconds."""

    name: str = ""
    """Under which its machines are found again after a crash: one living pool a name on a host. Empty: a fresh one."""

    n_machines: PositiveCount = 3
    """M: never do more exist, whatever state they are in."""

    max_creating: PositiveCount = 4
    """How many are made at the same time."""

    max_resetting: PositiveCount = 4
    """How many are reset at the same time."""

    create_seconds: Seconds = 300.0
    reset_seconds: Seconds = 120.0
    """For a whole reset: the old holder's last call, the marker, the reset itself, and the proof that it is clean."""

    probe_seconds: Seconds = 20.0
    """For one question to a machine: leave a marker, look for it, are you well."""

    destroy_seconds: Seconds = 30.0
    close_seconds: Seconds = 60.0
    """For ending all machines when the pool is closed."""

    max_hold_seconds: Seconds = 3600.0
    """A lease that is held longer is revoked."""

    max_uses: PositiveCount | None = None
    """How many leases a machine serves before it is replaced."""

    max_age_seconds: Seconds | None = None
    """After which a machine is replaced instead of being handed out."""

    quarantine_seconds: Seconds = 600.0
    """How long a machine that failed is kept to be looked at, if its place is not needed before."""

    max_quarantined: Count = 2
    max_kills: PositiveCount = 3
    """A holder under whom so many machines have died gets no other."""

    pause_seconds: PositiveSeconds = 0.5
    """The first pause after a machine could not be made, or ended; it doubles with each failure that follows."""

    max_pause_seconds: Seconds = 30.0

    def __post_init__(self) -> None:
        check_bounds(self)
