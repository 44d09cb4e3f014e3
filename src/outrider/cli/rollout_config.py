"""What `outrider rollout` was asked to do: flags over `--set` over a YAML file over defaults, checked as a whole."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.cli.kept_settings import settings_to_keep, with_hidden
from outrider.cli.machine_settings import HOW_FAST, MachineSettings
from outrider.cli.model_settings import FurtherPolicySettings, check_model_settings
from outrider.cli.run_config import env_setting
from outrider.core.bounds import Amount, Count, Pixels, PositiveCount, PositiveSeconds, Seconds, Share, Temperature
from outrider.core.errors import InvalidInput
from outrider.core.files import write_private_whole
from outrider.core.settings import read_yaml, settings_of
from outrider.store import StoreUrl
from outrider.train.config import SchedulerConfig


class NamedPolicy(FurtherPolicySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of a run beside its own. Without `base_urls`, it is served as that is."""

    base_urls: tuple[str, ...] = ()


class RolloutSettings(SchedulerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a scheduler, who plays, and the trainer that stands in for a real one.

    `steps` counts from the beginning of a run, however often it was resumed. One worker has all environments, in this
    process if agents and environments are built in; more are processes, with up to `max_env_num_per_worker` each.
    `max_block` is how long an agent may block a worker process before that is replaced.
    `train_seconds` is how long the stand-in trains on a batch, `sync_seconds` how long model calls are paused while it
    brings a new version to the servers. Every `validate_every` steps the validation environments are played.
    With `fail_fast`, the run stops if its first members share a failure that another try does not change.
    With `ray`, the address of a Ray cluster, workers are actors there; empty, it is the one of RAY_ADDRESS, or one that
    is started here for the run. Each reserves `cpus_per_worker`. From `use_vm_pool` on they are `MachineSettings`, for
    tags that act on machines. `pass_env` are variables with keys that agents find in their environment.
    """

    model: str = "builtin:random"
    base_urls: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()
    policies: Mapping[str, NamedPolicy] = {}
    agent: str = "chat"
    pass_env: tuple[str, ...] = ()
    team: Mapping[str, Any] = {}
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: PositiveCount | None = None
    max_tokens: PositiveCount | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    no_check: bool = False
    max_turns: PositiveCount | None = None
    max_context_tokens: PositiveCount | None = None
    max_retries: Count = 3
    silence_seconds: PositiveSeconds | None = None

    fail_fast: bool = True
    steps: PositiveCount = 20
    workers: PositiveCount | None = None
    max_block: PositiveSeconds | None = None
    ray: str | None = None
    cpus_per_worker: Amount = 0.0
    train_seconds: Seconds = 0.0
    sync_seconds: Seconds = 0.0
    validate_every: PositiveCount | None = None
    store: StoreUrl | None = None
    output_dir: str = "results"
    name: str | None = None

    # As MachineSettings has them: a Struct cannot have two others as its bases.
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
        SchedulerConfig.__post_init__(self)
        check_model_settings(self)
        if self.validate_every is not None and self.val_env_manager is None:
            raise InvalidInput("validate_every is given, but no val_env_manager; say which environments validate")

    @property
    def scheduler(self) -> SchedulerConfig:
        """The part that the scheduler takes."""
        return SchedulerConfig(**{name: getattr(self, name) for name in SchedulerConfig.__struct_fields__})

    @property
    def machine_settings(self) -> MachineSettings:
        """Those of the machines."""
        return MachineSettings(**{name: getattr(self, name) for name in MachineSettings.__struct_fields__})

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, each once."""
        managers = [self.train_env_manager, *([self.val_env_manager] if self.val_env_manager else [])]
        return tuple(dict.fromkeys(tag for manager in managers for tag in manager.tags))

    @property
    def n_envs(self) -> int:
        """All environments for training that can be at work at once."""
        return self.train_env_manager.num_env_groups * self.train_env_manager.n_seats

    @property
    def n_workers(self) -> int:
        """As many as were asked for; else one, which on a cluster becomes one for each node."""
        return self.workers or 1

    @property
    def n_slots(self) -> int:
        """Environments that one worker runs at once."""
        if self.n_workers == 1:
            return self.n_envs
        return min(self.train_env_manager.max_env_num_per_worker, -(-self.n_envs // self.n_workers))


MAY_CHANGE = frozenset({
    "steps", "workers", "train_seconds", "sync_seconds", "validate_every", "output_dir", "name", "base_urls",
    "api_key_env", "max_retries", "silence_seconds", "turn_seconds", "trajectory_seconds", "batch_seconds",
    "hedge_seconds", "max_refills", "max_buffer_bytes", "no_check", "pass_env", "ray", "cpus_per_worker", "fail_fast",
    "max_block", *HOW_FAST,
})  # fmt: skip
"""Settings that a run may be gone on with changed: they say how fast and how far it goes, not what is trained on."""


def read_settings(
    path: Path | None, changes: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> RolloutSettings:
    """The settings in a file, if there is one, with those of `--set NAME=VALUE` and then the flags put over them."""
    values = {} if path is None else read_yaml(path)
    for change in changes:
        _put(values, change)
    given = dict(flags or {})
    for name in ("machine", "pool"):
        if not isinstance(values.get(name, {}), dict):
            raise InvalidInput(f"{path}: {name} must hold settings as `name: value`")
        given[name] = {**values.get(name, {}), **given.get(name, {})}
    place = "the settings" if path is None else str(path)
    return settings_of(RolloutSettings, with_hidden({**values, **given}, "custom_envs"), place)


def write_settings(path: Path, settings: RolloutSettings) -> None:
    """In the form in which `--config` takes them, without secrets."""
    write_private_whole(path, msgspec.yaml.encode(settings_to_keep(settings)))


def check_same(begun: RolloutSettings, now: RolloutSettings, run: str) -> None:
    """Refuse to go on with a run by settings that would make another one of it."""
    for name, before, after in _differences(_comparable(begun), _comparable(now)):
        if name.partition(".")[0] not in MAY_CHANGE:
            raise InvalidInput(
                f"{run} was begun with {name} {before!r}, and it is {after!r} now; "
                "go on with the settings it has (--resume without -c), or start a new run"
            )


def _comparable(settings: RolloutSettings) -> RolloutSettings:
    """Without what may change inside other settings: secrets, and where further policies are served."""
    replace = msgspec.structs.replace
    policies = {name: replace(policy, base_urls=(), api_key_env=()) for name, policy in settings.policies.items()}
    kept = settings_to_keep(replace(settings, policies=policies))
    return settings_of(RolloutSettings, kept, "the settings")


def _differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two settings differ: the name, with those it is in, and both values."""
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
            yield from _differences(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name}", old, new


def _put(values: dict[str, Any], change: str) -> None:
    """Set one value, whose name may lead into others: `train_env_manager.group_size=4`."""
    path, value = env_setting(change, flag="--set")
    *above, last = path.split(".")
    for name in above:
        if values.get(name) is None:
            values[name] = {}
        inner = values[name]
        if not isinstance(inner, dict):
            raise InvalidInput(f"--set {change!r}: {name} holds {inner!r}, which has no settings in it")
        values = inner
    values[last] = value
