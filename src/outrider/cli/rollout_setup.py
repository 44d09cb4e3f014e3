"""From the settings of `outrider rollout` to what its parts take, and what is checked before anything starts."""

import asyncio
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outrider.cli.machine_settings import MachineSettings
from outrider.cli.machines import (
    AROUND_SECONDS,
    LONG_SECONDS,
    Demand,
    check_machines,
    check_places,
    idle_machine_settings,
    limits_on_machines,
    supply_spec,
    uses_machines,
    without_effect,
)
from outrider.cli.model_settings import sampling_of, silence_seconds
from outrider.cli.rollout_config import RolloutSettings
from outrider.cli.run_setup import notes_on_fields
from outrider.core.errors import InvalidInput
from outrider.core.memory import available_bytes
from outrider.core.secret import bare
from outrider.core.task import Task
from outrider.env import needs_of
from outrider.env.registry import GYMNASIUM, bundled_tasks, environments_of
from outrider.evaluate.benchmark import Reading, read_benchmark
from outrider.policy.probing import token_warning
from outrider.policy.spec import PolicySpec, further_policy
from outrider.runner import RunnerConfig, StageLimits
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec, check_environments, check_episodes, check_policies, joined
from outrider.runner.machines import SupplySpec
from outrider.runner.worker import WorkerSpec
from outrider.store import StoreUrl
from outrider.train.config import CustomEnv, warnings_of
from outrider.train.filters import Filters

if TYPE_CHECKING:
    from outrider.cluster.cluster import Cluster

GRACE_SECONDS = 0.0
"""What runs when the command ends is handed back at once: the next run takes it up."""

SLOT_BYTES = 300 << 10
"""What a slot takes up beside its environment: the conversation, its tasks, what waits to be written."""

ENVIRONMENT_BYTES: Mapping[str, int] = {"web": 120 << 20, "py": 48 << 20}
"""Environments that have a browser window or a process of their own."""


ANY_MODEL = "builtin:random"
"""Environments are checked with a model that is there for sure: the one to be played with is checked once."""


def environment_spec(tag: str, custom: CustomEnv) -> EnvironmentSpec:
    """What a tag stands for, its limits and penalty under the names that its environment has for them."""
    name = custom.env or tag
    config = dict(custom.config)
    if custom.penalty is not None:
        config["invalid_action_penalty"] = custom.penalty
    if custom.max_steps is not None and name.startswith(GYMNASIUM):
        config["kwargs"] = {**config.get("kwargs", {}), "max_episode_steps": custom.max_steps}
    elif custom.max_steps is not None:
        config["max_steps"] = custom.max_steps
    return EnvironmentSpec(
        name=name, config=config, system_template=custom.system_template, turn_template=custom.turn_template
    )


async def demand_of(settings: RolloutSettings) -> Demand | None:
    """What the run wants of machines, before it has a name; None: none of its tags uses any.

    A member holds its machine while it is set up, played and scored, and while model calls are paused meanwhile.
    """
    machines = settings.machine_settings
    environments = {tag: environment_spec(tag, settings.env_of(tag)) for tag in settings.tags}
    on_machines = [tag for tag, spec in environments.items() if await _acts_on_machines(machines, tag, spec)]
    if not on_machines:
        return None
    managers = [manager for manager in (settings.train_env_manager, settings.val_env_manager) if manager is not None]
    n_acting = sum(manager.partition.get(tag, 0) * manager.n_seats for manager in managers for tag in on_machines)
    hold = settings.trajectory_seconds + 2 * settings.turn_seconds + settings.sync_seconds + AROUND_SECONDS
    return Demand(
        settings=machines,
        environments=tuple(dict.fromkeys(environments[tag].name for tag in on_machines)),
        n_at_once=settings.n_slots * settings.n_workers,
        n_workers=settings.n_workers,
        n_slots=settings.n_slots,
        n_own=max(min(settings.n_slots, n_acting), 1),
        hold_seconds=hold if math.isfinite(hold) else LONG_SECONDS,
        run="check",
        place=Path(settings.output_dir),
    )


async def _acts_on_machines(machines: MachineSettings, tag: str, spec: EnvironmentSpec) -> bool:
    """Whether the tag gets machines: of the user's own environments, those that say what they need."""
    if ":" not in spec.name or not machines.are_asked_for:
        return uses_machines(machines, spec.name)
    try:
        environments = environments_of(spec.name, bare(spec.config))
    except InvalidInput as exc:
        raise InvalidInput(f"tag {tag}: {exc}") from exc
    try:
        return needs_of(environments) is not None
    finally:
        await environments.close()


def episode_spec(
    settings: RolloutSettings, demand: Demand | None = None, supply: SupplySpec | None = None
) -> EpisodeSpec:
    acting = () if demand is None else demand.environments
    environments = {tag: environment_spec(tag, settings.env_of(tag)) for tag in settings.tags}
    policy = PolicySpec(
        model=settings.model,
        base_urls=settings.base_urls,
        api_key_env=settings.api_key_env,
        max_retries=settings.max_retries,
        silence_seconds=silence_seconds(settings.silence_seconds, within=settings.turn_seconds),
        max_concurrency=settings.n_slots,
        extra_body=settings.extra_body,
        headers=settings.headers,
    )
    policies = {
        name: further_policy(
            policy,
            each.model,
            base_urls=each.base_urls,
            api_key_env=each.api_key_env,
            extra_body=each.extra_body,
            headers=each.headers,
        )
        for name, each in settings.policies.items()
    }
    sampling = sampling_of(settings, logprobs=True)
    return EpisodeSpec(
        agent=settings.agent,
        team=settings.team,
        policy=policy,
        policies=policies,
        environments={tag: replace(spec, on_machines=spec.name in acting) for tag, spec in environments.items()},
        sampling=sampling,
        sampling_of={name: sampling_of(each, run=sampling) for name, each in settings.policies.items()},
        max_turns=settings.max_turns,
        max_context_tokens=settings.max_context_tokens,
        supply=supply,
    )


def worker_spec(
    settings: RolloutSettings, store_url: StoreUrl, demand: Demand | None = None, supply: SupplySpec | None = None
) -> WorkerSpec:
    limits = StageLimits(
        setup_seconds=settings.turn_seconds,
        score_seconds=settings.turn_seconds,
        turn_seconds=settings.turn_seconds,
        trajectory_seconds=settings.trajectory_seconds,
    )
    config = RunnerConfig(
        max_env_num_per_worker=settings.n_slots,
        tags=settings.tags,
        grace_seconds=GRACE_SECONDS,
        limits=limits_on_machines(limits, supply),
        fail_fast=settings.fail_fast,
    )
    if settings.max_block is not None:
        config = dataclasses.replace(config, max_block_seconds=settings.max_block)
    return WorkerSpec(
        store_url=store_url,
        episodes=episode_spec(settings, demand, supply),
        config=config,
        tells_claims=False,
        pass_env=settings.pass_env,
    )


async def check(
    settings: RolloutSettings, demand: Demand | None = None, cluster: "Cluster | None" = None, *, is_new: bool = True
) -> dict[str, list[Task]]:
    """Raise `InvalidInput` if it could not work here, or on the cluster; the tasks of the tags that have some."""
    if settings.n_workers > 1 and settings.store is not None and settings.store.scheme == "memory":
        raise InvalidInput("a memory:// store lives in one process; give a sqlite:/// or postgresql:// store")
    Filters(settings.filters)
    check_places(demand, cluster)
    supply = supply_spec(demand)
    spec = episode_spec(settings, demand, supply)
    await check_episodes(replace(spec, environments={}), ask_servers=False)
    probes, tasks = [], {}
    for tag, environment in spec.environments.items():
        alone = replace(
            spec,
            environments={tag: environment},
            policy=PolicySpec(model=ANY_MODEL),
            policies=dict.fromkeys(spec.policies, PolicySpec(model=ANY_MODEL)),
        )
        try:
            tasks[tag] = await asyncio.to_thread(tasks_of, environment.name, settings.env_of(tag), seed=settings.seed)
            probes.append(await check_environments(alone, tasks[tag] or [Task(task_id=tag)]))
        except InvalidInput as exc:
            raise InvalidInput(f"tag {tag}: {exc}") from exc
    await check_policies(spec, joined(probes), ask_servers=not settings.no_check)
    available, n_nodes = available_bytes(), 1 if cluster is None else len(cluster.working_nodes)
    check_memory(settings, None if available is None else available * n_nodes, demand)
    if is_new:  # else its pool takes over machines that are there, and checks for the rest
        await check_machines(demand, supply, cluster)
    return {tag: found for tag, found in tasks.items() if found}


def tasks_of(environment: str, custom: CustomEnv, *, seed: int) -> list[Task]:
    """The tasks of a tag: those of its file, or those that come with the environment; none if it makes its own."""
    if custom.tasks is not None:
        return read_benchmark(custom.tasks, reading=Reading(by_form=":" not in environment))
    try:
        found = bundled_tasks(environment, seed=seed)
    except InvalidInput as exc:
        raise InvalidInput(str(exc).replace("--data FILE", "`tasks: FILE` in custom_envs")) from exc
    return [task for task in found if task.question]


def check_memory(settings: RolloutSettings, available: int | None, demand: Demand | None = None) -> None:
    """Refuse more environments than there is memory for, if that is known. What is on a machine is not here."""
    n_envs = settings.n_slots * settings.n_workers
    share = settings.train_env_manager.partition
    names = {tag: environment_spec(tag, settings.env_of(tag)).name for tag in share}
    acting = () if demand is None else demand.environments
    sizes = {name: n_bytes for name, n_bytes in ENVIRONMENT_BYTES.items() if name not in acting}
    each = SLOT_BYTES + sum(sizes.get(names[tag], 0) * n_groups for tag, n_groups in share.items()) // sum(
        share.values()
    )
    if available is None or n_envs * each <= available:
        return
    needed = _size(n_envs * each)
    raise InvalidInput(
        f"{n_envs:,} environments at once need about {needed} of memory, and {_size(available)} are free: "
        f"{max(available // each, 1):,} fit; lower num_env_groups or group_size"
    )


def _size(n_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:  # noqa: PLR2004 the next unit
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.0f} TiB"


async def token_warnings(settings: RolloutSettings) -> list[str]:
    """Which of the policies give no tokens to train on, each asked once."""
    spec = episode_spec(settings)
    assert spec.policy is not None
    policies = dict.fromkeys([spec.policy, *spec.policies.values()])
    found = await asyncio.gather(*map(token_warning, policies))
    return [warning for warning in found if warning is not None]


def notes(settings: RolloutSettings, demand: Demand | None = None) -> list[str]:
    """What is allowed, and should be known."""
    found = [*warnings_of(settings), *_idle_settings(settings.machine_settings, demand)]
    at_once = settings.n_slots * settings.n_workers
    if at_once < settings.n_envs:
        needed = settings.train_env_manager.n_workers
        found.append(
            f"{settings.n_workers} workers of {settings.n_slots} environments run {at_once:,} of {settings.n_envs:,} "
            f"at once; --workers {needed} or a greater max_env_num_per_worker runs all"
        )
    return found


def notes_on_tasks(settings: RolloutSettings, tasks: Mapping[str, Sequence[Task]]) -> list[str]:
    """What the user should know about fields of a tag's file that nothing reads."""
    return [
        f"tag {tag}: {note}"
        for tag, found in tasks.items()
        if settings.env_of(tag).tasks is not None
        for note in notes_on_fields(environment_spec(tag, settings.env_of(tag)).name, found)
    ]


def _idle_settings(machines: MachineSettings, demand: Demand | None) -> list[str]:
    if demand is not None:
        return idle_machine_settings(demand)
    defaults = MachineSettings()
    idle = [name for name in defaults.__struct_fields__ if getattr(machines, name) != getattr(defaults, name)]
    return without_effect(idle, ": no tag acts on machines")
