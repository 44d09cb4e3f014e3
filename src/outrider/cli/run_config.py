"""What `outrider run` was asked to do: flags over a YAML file over defaults, checked as a whole."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from outrider.agent.chat import MAX_TURNS
from outrider.agent.mcp import McpServer
from outrider.cli.kept_settings import refuse_masked, with_hidden
from outrider.cli.machine_settings import MachineSettings
from outrider.core.errors import InvalidInput
from outrider.core.secret import Secret
from outrider.core.settings import read_yaml, settings_of
from outrider.store import StoreUrl


class PolicySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy beside the run's own, which agents ask by its name. Without a `base_url`, it is served as that is."""

    model: str
    base_url: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()


class RunConfig(MachineSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a run and of its machines. A YAML file names them as here; flags are the same with dashes.

    `num_rollouts` is how many rollouts run at once; `timeout` is per attempt, in seconds; `max_block`
    is how long an agent may block a worker process before that is replaced. `env` is the configuration of the
    environment, `scorer` a shorthand for `env.scorer`; `mcp`, servers whose tools are offered too, has no flag.
    `policies` are those beside the run's own, for teams; a budget is for the calls of all, at the same prices.
    `team` are settings of a team; `action_space`, `observation_type` and `client_password` are for osworld.
    With `ray`, the address of a Ray cluster, workers are actors there; empty, it is the one of RAY_ADDRESS, or one that
    is started here for the run. Each reserves `cpus_per_worker`.
    """

    mode: str = ""
    data: str | None = None
    num_rollouts: int = 5
    samples_per_task: int = 1
    limit: int | None = None
    seed: int = 0
    workers: int | None = None
    ray: str | None = None
    cpus_per_worker: float = 0.0
    timeout: float | None = None
    max_block: float | None = None
    max_attempts: int = 3
    output_dir: str = "results"
    name: str | None = None
    store: StoreUrl | None = None

    agent: str = "chat"
    team: Mapping[str, Any] = {}
    model: str = "gpt-4.1-2025-04-14"
    base_url: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()
    policies: Mapping[str, PolicySettings] = {}
    max_turns: int = MAX_TURNS
    max_retries: int = 3
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    logprobs: bool = False
    stream: bool = False
    record: str | None = None

    env: Mapping[str, Any] = {}
    mcp: tuple[McpServer, ...] = ()
    scorer: str | None = None

    budget_tokens: int | None = None
    budget_money: float | None = None
    budget_seconds: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0

    action_space: str = "computer_13"
    observation_type: str = "screenshot"
    client_password: Secret = Secret("password")

    def __post_init__(self) -> None:
        MachineSettings.__post_init__(self)
        for field in ("num_rollouts", "samples_per_task", "workers", "max_attempts", "max_turns"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InvalidInput(f"{field} is {value}; give 1 or more")
        for field in ("limit", "timeout", "max_block", "budget_tokens", "budget_money", "budget_seconds"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise InvalidInput(f"{field} is {value}; give more than 0, or leave it out for no limit")
        if "" in self.policies:
            raise InvalidInput("policies has one without a name; the run's own is given by model and base_url")
        for field in ("max_retries", "cpus_per_worker"):
            if not getattr(self, field) >= 0:
                raise InvalidInput(f"{field} is {getattr(self, field)}; give 0 or more")
        if self.budget_money is not None and not (self.prompt_price or self.completion_price):
            raise InvalidInput("budget_money needs prompt_price and completion_price, in money per million tokens")

    @property
    def n_workers(self) -> int:
        """As many as were asked for; else one, which on a cluster becomes one for each node."""
        return self.workers or 1

    @property
    def n_slots(self) -> int:
        """How many rollouts a worker runs at once."""
        return math.ceil(self.num_rollouts / self.n_workers)


MACHINE_FIELDS = (*MachineSettings.__struct_fields__, "action_space", "observation_type", "client_password")
"""Settings that only a mode with machines uses."""


MAPPINGS = ("env", "team", "machine", "pool")
"""Settings that hold settings themselves; those given as flags are put over those of a file one by one."""


def read_config(path: str | None, flags: Mapping[str, Any]) -> RunConfig:
    """The settings in a file, if there is one, with those given as flags put over them."""
    values = {} if path is None else read_yaml(Path(path))
    merged = {**values, **flags}
    for name in (*MAPPINGS, "policies"):
        if not isinstance(values.get(name, {}), dict):
            raise InvalidInput(f"{path}: {name} must hold settings as `name: value`")
        merged[name] = {**values.get(name, {}), **flags.get(name, {})}
    for name, given in flags.get("policies", {}).items():
        before = values.get("policies", {}).get(name)
        merged["policies"][name] = {**before, **given} if isinstance(before, dict) else given
    config = settings_of(RunConfig, with_hidden(merged, "env"), path or "the flags")
    refuse_masked(config.env, "env", flag="--env NAME=VALUE")
    return config


def policy_setting(text: str) -> tuple[str, dict[str, str]]:
    """One `--policy NAME=MODEL`."""
    name, _, model = text.partition("=")
    if not (name and model):
        raise InvalidInput(f"--policy {text!r}: write it as NAME=MODEL")
    return name, {"model": model}


def env_setting(text: str, flag: str = "--env") -> tuple[str, Any]:
    """One `--env NAME=VALUE`; the value is read as YAML, so that numbers and lists can be given."""
    import yaml  # noqa: PLC0415

    name, separator, value = text.partition("=")
    if not (name and separator):
        raise InvalidInput(f"{flag} {text!r}: write it as NAME=VALUE")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as exc:
        raise InvalidInput(f"{flag} {text!r}: {exc}") from exc
