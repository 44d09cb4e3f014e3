"""From the settings of a run to what its parts take: tasks, plan, episodes, workers."""

import math
from collections.abc import Sequence
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
from outrider.cli.model_settings import sampling_of, silence_seconds
from outrider.cli.run_config import MACHINE_FIELDS, RunConfig
from outrider.core.bounds import MAX_SECONDS
from outrider.core.errors import InvalidInput
from outrider.core.rollout import RolloutConfig
from outrider.core.task import Task
from outrider.env.osworld.task import load_tasks
from outrider.env.registry import bundled_tasks, task_fields
from outrider.evaluate.benchmark import MESSAGES, WORKED_ANSWER, Reading, read_benchmark
from outrider.evaluate.results import KINDS
from outrider.evaluate.summary import Summary
from outrider.orchestra.teams.registry import PREFIX as TEAM
from outrider.policy.probing import token_warning
from outrider.policy.spec import Budget, PolicySpec, further_policy
from outrider.runner import RunnerConfig
from outrider.runner.attempt import StageLimits
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.machines import SupplySpec
from outrider.runner.worker import WorkerSpec
from outrider.store import StoreUrl

N_FIELDS_SHOWN = 12
GAME_FIELDS = frozenset({"seed"})
"""What games read of a task."""


def check_mode(config: RunConfig) -> None:
    """Refuse a run without a mode, and a system prompt that nobody would get."""
    if not config.mode:
        raise InvalidInput(
            "give a --mode: math, py, rag, web, osworld, FrozenLake, …, or module:Class for your own environment"
        )
    if config.system_prompt is not None and config.agent.startswith(TEAM):
        raise InvalidInput(
            "system_prompt is for one agent, and those of a team have system messages of their own; "
            "set them by --team 'agents={NAME: {system: TEXT}}'"
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


async def token_notes(config: RunConfig) -> list[str]:
    """What the model does not give that `logprobs` asks for."""
    if not config.logprobs:
        return []
    policy = episode_spec(config, config.mode, Budget(), None).policy
    warning = None if policy is None else await token_warning(structs.replace(policy, record_to=None))
    return [] if warning is None else [warning]


def read_tasks(config: RunConfig) -> list[Task]:
    """The tasks of the benchmark file, or the bundled ones of the mode."""
    chosen = {"id": config.id_field, "question": config.question_field, "answer": config.answer_field}
    fields = {field: name for field, name in chosen.items() if name is not None}
    if config.data is None:
        if fields or config.answers_are is not None:
            name = "answers_are" if not fields else f"{next(iter(fields))}_field"
            raise InvalidInput(f"{name} is about a file, and there is none; give --data")
        return bundled_tasks(config.mode, limit=config.limit, seed=config.seed)
    if config.mode == OSWORLD and Path(config.data).is_dir():
        return list(load_tasks(Path(config.data)))[: config.limit]
    reading = Reading(
        by_form=":" not in config.mode,
        shuffle_choices=config.shuffle_choices,
        seed=config.seed,
        answers_are=config.answers_are,
    )
    tasks = read_benchmark(config.data, limit=config.limit, fields=fields, reading=reading)
    if task_fields(config.mode) == GAME_FIELDS and not any(task.metadata.keys() & GAME_FIELDS for task in tasks):
        raise InvalidInput(
            f"{config.mode} asks none of the questions in {config.data}: its levels come from a `seed`, which no task "
            "there has; for questions there are the modes math, rag and py"
        )
    return tasks


def unused_fields(config: RunConfig, tasks: Sequence[Task]) -> list[str]:
    """What the user should know about fields of a file that nothing reads in this mode."""
    return [] if config.data is None else notes_on_fields(config.mode, tasks)


def notes_on_fields(mode: str, tasks: Sequence[Task]) -> list[str]:
    """The fields of tasks that nothing in the mode reads, in a line."""
    read = task_fields(mode)
    if read is None:
        return []
    known = {*read, *KINDS, MESSAGES, WORKED_ANSWER}
    fields = (field for task in tasks for field in task.metadata.items())
    unused = dict.fromkeys(name for name, value in fields if name not in known and value not in (None, "", [], {}))
    if not unused:
        return []
    shown = ", ".join(list(unused)[:N_FIELDS_SHOWN])
    more = f" and {len(unused) - N_FIELDS_SHOWN} more" if len(unused) > N_FIELDS_SHOWN else ""
    return [f"mode {mode} does not use the fields {shown}{more}; agents find them in the task's metadata"]


def tag_of(config: RunConfig, run: str) -> str:
    """The tag of the run's rollouts: in a store that other runs may share, one of its own."""
    return config.mode if config.store is None else f"{config.mode}@{run}"


def rollout_config(config: RunConfig, supply: SupplySpec | None) -> RolloutConfig:
    """The time that a rollout waits for its machine is not its own, so the store allows for it."""
    waits = 0.0 if supply is None else supply.wait_seconds
    seconds = None if config.timeout is None else min(config.timeout + waits, MAX_SECONDS)
    return RolloutConfig(timeout_seconds=seconds, max_attempts=config.max_attempts)


def episode_spec(config: RunConfig, tag: str, budget: Budget, supply: SupplySpec | None = None) -> EpisodeSpec:
    policy = PolicySpec(
        model=config.model,
        base_urls=config.base_url,
        api_key_env=config.api_key_env,
        max_retries=config.max_retries,
        silence_seconds=silence_seconds(config.silence_seconds, within=config.timeout),
        max_concurrency=max(config.num_rollouts, 1),
        stream=config.stream,
        extra_body=config.extra_body,
        headers=config.headers,
        budget=budget,
        record_to=config.record,
    )
    policies = {
        name: further_policy(
            structs.replace(policy, budget=Budget()),
            each.model,
            base_urls=each.base_url,
            api_key_env=each.api_key_env,
            extra_body=each.extra_body,
            headers=each.headers,
        )
        for name, each in config.policies.items()
    }
    sampling = sampling_of(config, logprobs=config.logprobs)
    environment = EnvironmentSpec(
        name=config.mode, config=_environment_config(config), system_prompt=config.system_prompt
    )
    return EpisodeSpec(
        agent=config.agent,
        team=config.team,
        policy=policy,
        policies=policies,
        environments={tag: environment},
        sampling=sampling,
        sampling_of={name: sampling_of(each, run=sampling) for name, each in config.policies.items()},
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
    settings = RunnerConfig(
        max_env_num_per_worker=config.n_slots, tags=(tag,), limits=limits, fail_fast=config.fail_fast
    )
    if config.max_block is not None:
        settings = replace(settings, max_block_seconds=config.max_block)
    return WorkerSpec(
        store_url=store_url, episodes=episodes, config=settings, tells_claims=False, pass_env=config.pass_env
    )


def budget_of(config: RunConfig) -> Budget:
    """The budget of the whole run."""
    return Budget(
        tokens=config.budget_tokens,
        money=config.budget_money,
        seconds=config.budget_seconds,
        prompt_price=config.prompt_price,
        completion_price=config.completion_price,
    )


def budget_left(budget: Budget, used: Summary) -> Budget:
    """The budget less what the run has used before it was resumed."""
    tokens, total = used.total.prompt_tokens + used.total.completion_tokens, used.total
    money = (total.prompt_tokens * budget.prompt_price + total.completion_tokens * budget.completion_price) / 1e6
    return structs.replace(
        budget,
        tokens=None if budget.tokens is None else max(budget.tokens - tokens, 0),
        money=None if budget.money is None else max(budget.money - money, 0.0),
        seconds=None if budget.seconds is None else max(budget.seconds - used.wall_seconds, 0.0),
    )
