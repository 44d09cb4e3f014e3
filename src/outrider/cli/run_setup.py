"""From the settings of a run to what its parts take: tasks, plan, episodes, workers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from outrider.agent.chat import MAX_TURNS
from outrider.cli.machines import (
    AROUND_SECONDS,
    LONG_SECONDS,
    OSWORLD,
    Demand,
    idle_machine_settings,
    limits_on_machines,
    uses_machines,
    without_effect,
)
from outrider.cli.run_config import MACHINE_FIELDS, RunConfig
from outrider.core.errors import InvalidInput
from outrider.core.rollout import RolloutConfig
from outrider.core.task import Task
from outrider.env.registry import bundled_tasks
from outrider.evaluate.benchmark import read_benchmark
from outrider.evaluate.summary import Summary
from outrider.policy import Sampling
from outrider.policy.spec import Budget, PolicySpec, further_policy
from outrider.runner import RunnerConfig
from outrider.runner.attempt import StageLimits
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.machines import SupplySpec
from outrider.runner.worker import WorkerSpec
from outrider.store import StoreUrl


def check_mode(config: RunConfig) -> None:
    """Refuse a run without a mode."""
    if not config.mode:
        raise InvalidInput(
            "give a --mode: math, py, rag, web, osworld, FrozenLake, …, or module:Class for your own environment"
        )


def demand_of(config: RunConfig, run: str, place: Path) -> Demand | None:
    """What the run wants of machines; None: it has none."""
    if not uses_machines(config, config.mode):
        return None
    return Demand(
        settings=config,
        environments=(config.mode,),
        n_at_once=config.num_rollouts,
        n_workers=config.n_workers,
        n_slots=config.n_slots,
        n_own=config.n_slots,
        hold_seconds=LONG_SECONDS if config.timeout is None else config.timeout + AROUND_SECONDS,
        run=run,
        place=place,
    )


def idle_settings(config: RunConfig, demand: Demand | None) -> list[str]:
    """What the user should know about settings that do nothing in this mode."""
    if demand is not None:
        return idle_machine_settings(demand)
    defaults = RunConfig()
    idle = [name for name in MACHINE_FIELDS if getattr(config, name) != getattr(defaults, name)]
    return without_effect(idle, f" in mode {config.mode}")


def read_tasks(config: RunConfig) -> list[Task]:
    """The tasks of the benchmark file, or the bundled ones of the mode."""
    if config.data is None:
        return bundled_tasks(config.mode, limit=config.limit, seed=config.seed)
    return read_benchmark(config.data, limit=config.limit)


def tag_of(config: RunConfig, run: str) -> str:
    """The tag of the run's rollouts: in a store that other runs may share, one of its own."""
    return config.mode if config.store is None else f"{config.mode}@{run}"


def rollout_config(config: RunConfig, supply: SupplySpec | None) -> RolloutConfig:
    """The time that a rollout waits for its machine is not its own, so the store allows for it."""
    waits = 0.0 if supply is None else supply.wait_seconds
    seconds = None if config.timeout is None else config.timeout + waits
    return RolloutConfig(timeout_seconds=seconds, max_attempts=config.max_attempts)


def episode_spec(config: RunConfig, tag: str, budget: Budget, supply: SupplySpec | None = None) -> EpisodeSpec:
    policy = PolicySpec(
        model=config.model,
        base_urls=config.base_url,
        api_key_env=config.api_key_env,
        max_retries=config.max_retries,
        max_concurrency=max(config.num_rollouts, 1),
        stream=config.stream,
        budget=budget,
        record_to=config.record,
    )
    policies = {
        name: structs.replace(further_policy(policy, each.model, each.base_url, each.api_key_env), budget=Budget())
        for name, each in config.policies.items()
    }
    sampling = Sampling(
        temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens, logprobs=config.logprobs
    )
    return EpisodeSpec(
        agent=config.agent,
        team=config.team,
        policy=policy,
        policies=policies,
        environments={tag: EnvironmentSpec(name=config.mode, config=_environment_config(config))},
        sampling=sampling,
        max_turns=None if config.max_turns == MAX_TURNS else config.max_turns,
        max_context_tokens=config.max_context_tokens,
        mcp=config.mcp,
        supply=supply,
    )


def _environment_config(config: RunConfig) -> dict[str, Any]:
    """The environment's settings; those that have a flag of their own can be given by that."""
    named: dict[str, Any] = {}
    if config.mode == OSWORLD:
        named |= {
            "action_space": config.action_space,
            "observation_type": config.observation_type,
            "client_password": config.client_password,
            "max_steps": config.max_turns,
        }
    scorer = {} if config.scorer is None else {"scorer": config.scorer}
    return {**named, **config.env, **scorer}


def worker_spec(config: RunConfig, store_url: StoreUrl, episodes: EpisodeSpec, tag: str) -> WorkerSpec:
    """A worker of the run; the rollouts that run at once are spread over all workers."""
    limits = limits_on_machines(StageLimits(), episodes.supply)
    if episodes.supply is not None:
        limits = replace(limits, act_seconds=config.timeout or math.inf)
    settings = RunnerConfig(max_env_num_per_worker=config.n_slots, tags=(tag,), limits=limits)
    if config.max_block is not None:
        settings = replace(settings, max_block_seconds=config.max_block)
    return WorkerSpec(store_url=store_url, episodes=episodes, config=settings, tells_claims=False)


def budget_left(config: RunConfig, used: Summary) -> Budget:
    """The run's budget less what it has used before it was resumed."""
    tokens, total = used.total.prompt_tokens + used.total.completion_tokens, used.total
    money = (total.prompt_tokens * config.prompt_price + total.completion_tokens * config.completion_price) / 1e6
    return Budget(
        tokens=None if config.budget_tokens is None else max(config.budget_tokens - tokens, 0),
        money=None if config.budget_money is None else max(config.budget_money - money, 0.0),
        seconds=None if config.budget_seconds is None else max(config.budget_seconds - used.wall_seconds, 0.0),
        prompt_price=config.prompt_price,
        completion_price=config.completion_price,
    )
