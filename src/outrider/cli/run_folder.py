"""The folder of one run: its plan, its settings, its store, its results."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from outrider.cli.kept_settings import settings_to_keep
from outrider.cli.machine_settings import HOW_FAST
from outrider.cli.model_settings import lasting_policy
from outrider.cli.run_config import RunConfig
from outrider.core.errors import InvalidInput
from outrider.core.files import PRIVATE_FOLDER, write_private_whole
from outrider.core.settings import read_yaml
from outrider.evaluate.plan import PLAN_FILE, Identity, load_identity
from outrider.evaluate.runs import RESULTS_FILE, known_runs
from outrider.store import StoreUrl

CONFIG_FILE = "config.yaml"
STORE_FILE = "store.db"

_WRITTEN_FIRST = frozenset({CONFIG_FILE, f"{CONFIG_FILE}.new", f"{PLAN_FILE}.new", "rollout.yaml.new"})
"""What may be in the folder of a run that has not begun."""

MAY_CHANGE = frozenset({
    "data", "num_rollouts", "workers", "output_dir", "name", "store", "base_url", "api_key_env",
    "max_retries", "silence_seconds", "record", "limit", "samples_per_task", "no_check", "pass_env",
    "budget_tokens", "budget_money", "budget_seconds", "prompt_price", "completion_price", "client_password",
    "ray", "cpus_per_worker", "max_block", "fail_fast", *HOW_FAST,
})  # fmt: skip
"""Settings that change how fast or how far a run goes, but not what its results mean; tasks are compared themselves."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run keeps what it has."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def results(self) -> Path:
        return self.path / RESULTS_FILE

    @property
    def plan(self) -> Path:
        return self.path / PLAN_FILE

    def store_url(self, config: RunConfig) -> StoreUrl:
        return config.store or StoreUrl(f"sqlite:///{self.path / STORE_FILE}")

    def kept(self) -> dict[str, Any]:
        """The settings that the run was begun with, as a file of them would give them; secrets are not among them."""
        path = self.path / CONFIG_FILE
        return {**read_yaml(path), "output_dir": str(self.path.parent)} if path.is_file() else {}

    def write_config(self, config: RunConfig) -> None:
        """The settings as `--config` takes them, for a run like this one; secrets stay out."""
        values = {name: value for name, value in settings_to_keep(config).items() if value is not None}
        del values["client_password"]
        write_private_whole(self.path / CONFIG_FILE, msgspec.yaml.encode(values))


def lasting_settings(config: RunConfig) -> dict[str, Any]:
    """The settings by which a run must be gone on with; of its further policies, all but where they are served."""
    lasting = {name: value for name, value in settings_to_keep(config).items() if name not in MAY_CHANGE}
    policies = {name: lasting_policy(policy) for name, policy in config.policies.items()}
    del lasting["policies"]
    return {**lasting, "policies": policies} if policies else lasting


def new_folder(config: RunConfig, now: datetime) -> RunFolder:
    """A fresh folder below the output folder."""
    return RunFolder(fresh_path(config.output_dir, config.name, (config.mode, config.model), now))


def check_name(name: str) -> None:
    """Refuse a name that would lead out of the output folder, or cannot be one of a folder."""
    if name in ("", ".", "..") or set(name) & {"/", "\0"} or name != name.strip():
        raise InvalidInput(f"--name {name!r} cannot name a folder in the output folder; give letters, digits, . _ -")


def fresh_path(output_dir: str, name: str | None, words: Sequence[str], now: datetime) -> Path:
    """Make a folder of this name, or of one made up from `words`. A name that is taken is refused if it was given."""
    if name is not None:
        check_name(name)
    made_up = "-".join([*words, f"{now.astimezone(UTC):%Y%m%d-%H%M%S}"])
    chosen = name or re.sub(r"[^A-Za-z0-9._-]+", "-", made_up)
    path = Path(output_dir) / chosen
    for number in range(100):
        candidate = path if number == 0 else path.with_name(f"{chosen}-{number}")
        try:
            candidate.mkdir(mode=PRIVATE_FOLDER, parents=True)
        except FileExistsError:
            if name is not None and is_unbegun(candidate):
                return candidate
            if name is not None:
                raise InvalidInput(
                    f"{candidate} is there already; go on with it by --resume {name}, or give another --name"
                ) from None
        except OSError as exc:
            raise InvalidInput(f"cannot make {candidate}: {exc.strerror}; give another --output-dir") from exc
        else:
            return candidate
    raise InvalidInput(f"{path} and a hundred names like it are taken; give a --name")


def is_unbegun(path: Path) -> bool:
    """Whether a run was killed before it had written what it is: another may begin in its place."""
    return path.is_dir() and {file.name for file in path.iterdir()} <= _WRITTEN_FIRST


def named_folder(output_dir: str, name: str) -> RunFolder:
    """The folder of a run by its name, or by its path."""
    below = Path(output_dir) / name
    return RunFolder(below if below.is_dir() or not Path(name).is_dir() else Path(name))


def newest_folder(output_dir: str) -> RunFolder:
    """The run that was begun or extended last."""
    plans = sorted(Path(output_dir).glob(f"*/{PLAN_FILE}"), key=lambda path: path.stat().st_mtime)
    if not plans:
        raise InvalidInput(f"{output_dir} holds no run to go on with; start one without --resume")
    return RunFolder(plans[-1].parent)


def kept_settings(
    config_file: str | None, given: Mapping[str, Any], resume: str | None
) -> tuple[str | None, dict[str, Any]]:
    """Which run is resumed, and the settings it has kept, over which those that are given go.

    A run that is not named is the newest, unless what is given says which tasks and model it must have.
    """
    if resume is None or (not resume and (config_file is not None or "mode" in given)):
        return resume, {}
    output_dir = str(given.get("output_dir", RunConfig().output_dir))
    folder = named_folder(output_dir, resume) if resume else newest_folder(output_dir)
    if not folder.plan.is_file():
        raise InvalidInput(
            f"{folder.path} holds no run to go on with; {known_runs(resume, [Path(output_dir)])}; start one without "
            "--resume"
        )
    return resume or folder.name, folder.kept()


def folder_to_resume(config: RunConfig, wanted: str, now: Identity) -> RunFolder:
    """The run named `wanted`, or, if that is empty, the newest one with the same tasks, mode and model."""
    if wanted:
        return named_folder(config.output_dir, wanted)
    candidates = []
    for path in Path(config.output_dir).glob(f"*/{PLAN_FILE}"):
        begun = load_identity(path)
        same_settings = all(begun.settings.get(name) == getattr(config, name) for name in ("mode", "model"))
        if begun.tasks == now.tasks and same_settings:
            candidates.append((path.stat().st_mtime, path.parent))
    if not candidates:
        raise InvalidInput(
            f"{config.output_dir} holds no run of these tasks in mode {config.mode} with model {config.model}; "
            "start one without --resume, or name the run: --resume RUN"
        )
    return RunFolder(max(candidates)[1])
