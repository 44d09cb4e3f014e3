"""The plan of a run: tasks times samples, as rollouts whose ids and seeds are the same whenever it is made again.

Invariants:
- Equal tasks, samples, seed and settings give equal rollouts in any process, so enqueueing them again adds nothing.
- A run is gone on with only by the plan it was begun with, or one that extends it; `check_goes_on` says what differs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core import wire
from outrider.core.bounds import PositiveCount, Seed, check_bounds
from outrider.core.crash_points import reached
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.files import write_private_whole
from outrider.core.rollout import SAMPLE_KEY, TASK_KEY, RolloutConfig, RolloutRequest
from outrider.core.seeds import derived_seed
from outrider.core.status import Mode
from outrider.core.task import Task
from outrider.store import Store

PLAN_FILE = "plan.json"
CHUNK = 10_000
"""Rollouts in one transaction: more would keep workers from renewing their leases."""

MAX_NAME = 80

RUN_KEY = "run"
"""Where a rollout's metadata says which run it is a part of."""

_FOLLOWS = {"tag": "mode", "timeout_seconds": "timeout"}
"""What a plan has of another setting: where both differ, that one is named."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Identity(Struct, frozen=True, kw_only=True):
    """What makes a plan the same plan, small enough to be saved beside the results."""

    run: str
    n_tasks: int
    tasks: str
    samples_per_task: int
    seed: int
    settings: Mapping[str, Any] = {}


class Plan(Struct, frozen=True, kw_only=True):
    """Which rollouts a run is made of. `settings` is what else must not change, such as mode, model and scorer."""

    run: str
    tasks: Sequence[Task]
    samples_per_task: PositiveCount = 1
    seed: Seed = 0
    tag: str | None = None
    mode: Mode = Mode.TEST
    config: RolloutConfig = RolloutConfig()
    settings: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise InvalidInput("the run has no name")

    def __len__(self) -> int:
        return len(self.tasks) * self.samples_per_task

    def requests(self) -> Iterator[RolloutRequest]:
        """The rollouts, all samples of a task together; a group is a task's samples."""
        for task in self.tasks:
            group_id = f"{safe_name(self.run)}/{safe_name(task.task_id)}"
            for sample in range(self.samples_per_task):
                yield RolloutRequest(
                    input=task.as_input(),
                    rollout_id=f"{group_id}:{sample}",
                    mode=self.mode,
                    tag=self.tag,
                    seed=derived_seed(self.seed, task.task_id, sample),
                    group_id=group_id,
                    config=self.config,
                    metadata={RUN_KEY: self.run, TASK_KEY: task.task_id, SAMPLE_KEY: sample},
                )

    def identity(self) -> Identity:
        config: dict[str, Any] = msgspec.to_builtins(self.config)
        config["retry_condition"] = sorted(config["retry_condition"])
        settings = {**config, "tag": self.tag, "purpose": self.mode, **self.settings}
        return Identity(
            run=self.run,
            n_tasks=len(self.tasks),
            tasks=_digest_of(self.tasks),
            samples_per_task=self.samples_per_task,
            seed=self.seed,
            settings=msgspec.to_builtins(settings),
        )


def safe_name(name: str) -> str:
    """`name` itself if it is short and plain; else what is plain of it and a digest, so that no two become one.

    `~` is left to retries and `:` to samples.
    """
    plain = _UNSAFE.sub("-", name)[:MAX_NAME]
    return plain if plain == name else f"{plain}={_digest(name, 8)}"


async def enqueue(store: Store, plan: Plan) -> int:
    """Put the plan's rollouts into the store; those that are there already stay as they are. How many there are."""
    requests = plan.requests()
    n_rollouts = 0
    while chunk := list(islice(requests, CHUNK)):
        await store.enqueue_many_rollouts(chunk)
        reached("plan.chunk_enqueued")
        n_rollouts += len(chunk)
    return n_rollouts


def save_identity(path: Path, identity: Identity) -> None:
    """Write it so that a reader finds the whole of it or nothing."""
    write_private_whole(path, msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")


def load_identity(path: Path) -> Identity:
    """The plan that a run was begun with."""
    try:
        return from_json(path.read_bytes(), Identity)
    except OSError as exc:
        raise InvalidInput(
            f"cannot read {path}: {exc.strerror}; this folder holds no run to go on with; start one without --resume"
        ) from exc
    except msgspec.DecodeError as exc:
        raise InvalidInput(f"{path} is not the plan of a run: {exc}") from exc


def check_goes_on(begun: Identity, plan: Plan) -> None:
    """Refuse to go on with a run by another plan, and say what differs.

    A plan may have more samples of each task, and more tasks behind those that it was begun with.
    """
    now = plan.identity()
    differing = {name: (then, given) for name, then, given in _compared(begun, now) if then != given}
    differences = [
        f"{name} was {_shown(then)}, now it is {_shown(given)}"
        for name, (then, given) in differing.items()
        if _FOLLOWS.get(name) not in differing
    ]
    if now.samples_per_task < begun.samples_per_task:
        differences.insert(0, f"samples_per_task was {begun.samples_per_task}, now it is {now.samples_per_task}")
    if _digest_of(plan.tasks[: begun.n_tasks]) != begun.tasks:
        counts = f"{begun.n_tasks:,} then, {now.n_tasks:,} now"
        differences.insert(0, f"the tasks are not the same ({counts})")
    if differences:
        raise InvalidInput(
            f"run {begun.run!r} was begun with another plan: {'; '.join(differences)}. "
            "Give what it was begun with, or start a new run"
        )


def _compared(begun: Identity, now: Identity) -> Iterator[tuple[str, Any, Any]]:
    yield "run", begun.run, now.run
    yield "seed", begun.seed, now.seed
    # As JSON gives them back: a tuple that was saved comes back as a list.
    settings = from_json(wire.to_json(now.settings))
    for name in sorted({*begun.settings, *settings} - {"samples_per_task"}):
        yield name, begun.settings.get(name), settings.get(name)


def _digest_of(tasks: Iterable[Task]) -> str:
    digest = blake2b(digest_size=16)
    for task in tasks:
        digest.update(msgspec.msgpack.encode(task, order="deterministic"))
    return digest.hexdigest()


def _shown(value: Any) -> str:
    return "not given" if value is None else wire.to_json(value)


def _digest(text: str, n_bytes: int) -> str:
    return blake2b(text.encode(), digest_size=n_bytes).hexdigest()
