"""What `outrider run` was asked to do: flags over a YAML file over defaults, checked as a whole."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outrider.agent.chat import MAX_TURNS
from outrider.agent.mcp import McpServer
from outrider.cli.kept_settings import refuse_masked, with_hidden
from outrider.cli.machine_settings import MachineSettings
from outrider.cli.model_settings import FurtherPolicySettings, check_model_settings
from outrider.core.bounds import (
    Amount,
    Count,
    PositiveAmount,
    PositiveCount,
    PositiveSeconds,
    PositiveTokenCount,
    Seed,
    Share,
    Temperature,
)
from outrider.core.errors import InvalidInput
from outrider.core.secret import Secret
from outrider.core.settings import read_yaml, settings_of
from outrider.core.task import AnswerKind
from outrider.store import StoreUrl


class PolicySettings(FurtherPolicySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of a run beside its own. Without a `base_url`, it is served as that is."""

    base_url: tuple[str, ...] = ()


class RunConfig(MachineSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a run and of its machines. A YAML file names them as here; flags are the same with dashes.

    `id_field`, `question_field` and `answer_field` name the fields of `data` that are called otherwise; `answers_are`
    says how its answers name the right choice. `num_rollouts` is how many rollouts run at once; `timeout` is per
    attempt, in seconds; `max_block` is how long an agent may block a worker process before that is replaced. `env` is
    the configuration of the environment, `scorer` a shorthand for `env.scorer`; `mcp`, servers whose tools are offered
    too, has no flag.
    A server that has been silent for `silence_seconds` is not waited for alone, if there is another.
    `extra_body` and `headers` are added to every request; `system_prompt` is put before what the environment says, and
    may stand in a `system_prompt_file`. With `no_check`, no server is asked before the run whether it can be used.
    With `fail_fast`, the run stops if its first rollouts share a failure that another try does not change.
    `policies` are those beside the run's own, for teams; a budget is for the calls of all, at the same prices.
    `team` are settings of a team; `action_space`, `observation_type` and `client_password` are for osworld.
    With `ray`, the address of a Ray cluster, workers are actors there; empty, it is the one of RAY_ADDRESS, or one that
    is started here for the run. Each reserves `cpus_per_worker`. `pass_env` are variables with keys that agents find in
    their environment.
    """

    mode: str = ""
    data: str | None = None
    num_rollouts: PositiveCount = 5
    samples_per_task: PositiveCount = 1
    limit: PositiveCount | None = None
    shuffle_choices: bool = False
    id_field: str | None = None
    question_field: str | None = None
    answer_field: str | None = None
    answers_are: AnswerKind | None = None
    seed: Seed = 0
    workers: PositiveCount | None = None
    ray: str | None = None
    cpus_per_worker: Amount = 0.0
    timeout: PositiveSeconds | None = None
    max_block: PositiveSeconds | None = None
    max_attempts: PositiveCount = 3
    fail_fast: bool = True
    output_dir: str = "results"
    name: str | None = None
    store: StoreUrl | None = None

    agent: str = "chat"
    pass_env: tuple[str, ...] = ()
    team: Mapping[str, Any] = {}
    model: str = "gpt-4.1-2025-04-14"
    base_url: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()
    policies: Mapping[str, PolicySettings] = {}
    max_turns: PositiveCount = MAX_TURNS
    max_retries: Count = 3
    silence_seconds: PositiveSeconds | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: PositiveCount | None = None
    max_tokens: PositiveCount | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    system_prompt: str | None = None
    system_prompt_file: str | None = None
    max_context_tokens: PositiveCount | None = None
    logprobs: bool = False
    stream: bool = False
    record: str | None = None
    no_check: bool = False

    env: Mapping[str, Any] = {}
    mcp: tuple[McpServer, ...] = ()
    scorer: str | None = None

    budget_tokens: PositiveTokenCount | None = None
    budget_money: PositiveAmount | None = None
    budget_seconds: PositiveSeconds | None = None
    prompt_price: Amount = 0.0
    completion_price: Amount = 0.0

    action_space: str = "computer_13"
    observation_type: str = "screenshot"
    client_password: Secret = Secret("password")

    def __post_init__(self) -> None:
        check_model_settings(self)
        if self.system_prompt is not None and not self.system_prompt.strip():
            raise InvalidInput("system_prompt is empty; give a text, or leave it out")
        if "" in self.policies:
            raise InvalidInput("policies has one without a name; the run's own is given by model and base_url")
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


MAPPINGS = ("env", "team", "machine", "pool", "extra_body", "headers")
"""Settings that hold settings themselves; those given as flags are put over those of a file one by one."""


def read_config(path: str | None, flags: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings that a run has kept, if one is resumed, those in a file over them, those given as flags over all."""
    flags = _with_system_prompt(flags)
    values = {**(kept or {}), **({} if path is None else _with_system_prompt(read_yaml(Path(path))))}
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


def _with_system_prompt(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one file, or the flags, with the text of their `system_prompt_file` as `system_prompt`."""
    values = dict(given)
    file = values.pop("system_prompt_file", None)
    if file is None:
        return values
    if values.get("system_prompt") is not None:
        raise InvalidInput("there are a system_prompt and a system_prompt_file; give one of them")
    try:
        return {**values, "system_prompt": Path(str(file)).read_text(encoding="utf-8")}
    except OSError as exc:
        raise InvalidInput(f"cannot read the system prompt {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"the system prompt {file} is not written in UTF-8") from exc


def policy_settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What `--policy NAME=MODEL` and `--policy NAME.SETTING=VALUE` say, by name of the policy."""
    policies: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, model = text.partition("=")
        if not (name and model):
            raise InvalidInput(f"--policy {text!r}: write it as NAME=MODEL, or NAME.SETTING=VALUE")
        policy, _, setting = name.rpartition(".")
        if not policy or setting not in PolicySettings.__struct_fields__:
            policies.setdefault(name, {})["model"] = model
            continue
        _, value = env_setting(text, "--policy")
        is_list = setting in ("base_url", "api_key_env", "stop") and not isinstance(value, list)
        policies.setdefault(policy, {})[setting] = [str(value)] if is_list else value
    return policies


def header_setting(text: str) -> tuple[str, str]:
    """One `--header NAME=VALUE`; the value is text as it stands."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise InvalidInput(f"--header {text!r}: write it as NAME=VALUE")
    return name, value


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
