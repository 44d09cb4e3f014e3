"""From the settings of `outrider rollout` to what its parts take, and what is checked before anything starts."""

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from outrider.cli.rollout_config import RolloutSettings
from outrider.core.errors import InvalidInput
from outrider.core.memory import available_bytes
from outrider.core.task import Task
from outrider.env.registry import GYMNASIUM, bundled_tasks
from outrider.evaluate.benchmark import read_benchmark
from outrider.policy import Sampling
from outrider.policy.spec import PolicySpec
from outrider.runner import RunnerConfig, StageLimits
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec, check_episodes
from outrider.runner.worker import WorkerSpec
from outrider.train.config import CustomEnv, warnings_of
from outrider.train.filters import Filters

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


def episode_spec(settings: RolloutSettings) -> EpisodeSpec:
    policy = PolicySpec(
        model=settings.model,
        base_urls=settings.base_urls,
        max_retries=settings.max_retries,
        max_concurrency=settings.n_slots,
    )
    policies = {
        name: replace(policy, model=each.model, base_urls=each.base_urls or settings.base_urls)
        for name, each in settings.policies.items()
    }
    sampling = Sampling(
        temperature=settings.temperature, top_p=settings.top_p, max_tokens=settings.max_tokens, logprobs=True
    )
    return EpisodeSpec(
        agent=settings.agent,
        team=settings.team,
        policy=policy,
        policies=policies,
        environments={tag: environment_spec(tag, settings.env_of(tag)) for tag in settings.tags},
        sampling=sampling,
        max_turns=settings.max_turns,
        max_context_tokens=settings.max_context_tokens,
    )


def worker_spec(settings: RolloutSettings, store_url: str) -> WorkerSpec:
    limits = StageLimits(
        setup_seconds=settings.turn_seconds,
        score_seconds=settings.turn_seconds,
        turn_seconds=settings.turn_seconds,
        trajectory_seconds=settings.trajectory_seconds,
    )
    config = RunnerConfig(
        max_env_num_per_worker=settings.n_slots, tags=settings.tags, grace_seconds=GRACE_SECONDS, limits=limits
    )
    return WorkerSpec(
        store_url=store_url,
        episodes=episode_spec(settings),
        config=config,
        tells_claims=False,
    )


async def check(settings: RolloutSettings, *, n_nodes: int = 1) -> dict[str, list[Task]]:
    """Raise `InvalidInput` if it could not work on so many machines like this; the tasks of the tags that have some."""
    if settings.n_workers > 1 and (settings.store or "").startswith("memory:"):
        raise InvalidInput("a memory:// store lives in one process; give a sqlite:/// or postgresql:// store")
    Filters(settings.filters)
    spec = episode_spec(settings)
    await check_episodes(replace(spec, environments={}))
    tasks = {}
    for tag, environment in spec.environments.items():
        alone = replace(
            spec,
            environments={tag: environment},
            policy=PolicySpec(model=ANY_MODEL),
            policies=dict.fromkeys(spec.policies, PolicySpec(model=ANY_MODEL)),
        )
        try:
            tasks[tag] = await asyncio.to_thread(tasks_of, environment.name, settings.env_of(tag), seed=settings.seed)
            await check_episodes(alone, tasks[tag] or [Task(task_id=tag)])
        except InvalidInput as exc:
            raise InvalidInput(f"tag {tag}: {exc}") from exc
    available = available_bytes()
    check_memory(settings, None if available is None else available * n_nodes)
    return {tag: found for tag, found in tasks.items() if found}


def tasks_of(environment: str, custom: CustomEnv, *, seed: int) -> list[Task]:
    """The tasks of a tag: those of its file, or those that come with the environment; none if it makes its own."""
    if custom.tasks is not None:
        return read_benchmark(custom.tasks)
    try:
        found = bundled_tasks(environment, seed=seed)
    except InvalidInput as exc:
        raise InvalidInput(str(exc).replace("--data FILE", "`tasks: FILE` in custom_envs")) from exc
    return [task for task in found if task.question]


def check_memory(settings: RolloutSettings, available: int | None) -> None:
    """Refuse more environments than there is memory for, if that is known."""
    n_envs = settings.n_slots * settings.n_workers
    share = settings.train_env_manager.partition
    names = {tag: environment_spec(tag, settings.env_of(tag)).name for tag in share}
    each = SLOT_BYTES + sum(ENVIRONMENT_BYTES.get(names[tag], 0) * n_groups for tag, n_groups in share.items()) // sum(
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


def notes(settings: RolloutSettings) -> list[str]:
    """What is allowed, and should be known."""
    found = warnings_of(settings)
    at_once = settings.n_slots * settings.n_workers
    if at_once < settings.n_envs:
        needed = settings.train_env_manager.n_workers
        found.append(
            f"{settings.n_workers} workers of {settings.n_slots} environments run {at_once:,} of {settings.n_envs:,} "
            f"at once; --workers {needed} or a greater max_env_num_per_worker runs all"
        )
    return found
