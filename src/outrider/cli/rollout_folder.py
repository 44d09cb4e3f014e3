"""The folder of one `outrider rollout`: its settings, its store, its steps."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from outrider.cli.rollout_config import RolloutSettings, check_same, read_settings, write_settings
from outrider.cli.rollout_trainer import Step
from outrider.cli.run_folder import STORE_FILE, fresh_path
from outrider.core import wire
from outrider.core.crash_points import reached
from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.files import append_whole, explaining_disk, private
from outrider.evaluate.runs import SETTINGS_FILE, STEPS_FILE
from outrider.store import StoreUrl
from outrider.train.timeline import Mark, MarkKind


@dataclass(frozen=True, slots=True)
class RolloutFolder:
    """Where a run keeps what it has. Its name is that of its ledger too."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def settings(self) -> Path:
        return self.path / SETTINGS_FILE

    def store_url(self, settings: RolloutSettings) -> StoreUrl:
        return settings.store or StoreUrl(f"sqlite:///{self.path / STORE_FILE}")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Show that the run is under way, for as long as the block or its process lasts; `outrider ls` looks."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # not exclusive: another process may take the run over
            yield
        finally:
            os.close(descriptor)

    def note(self, step: Step) -> None:
        """Write down a step that was trained on. One whose line is lost in a crash is still in the store.

        Raises `StoreUnavailable` if the disk is full; it may be noted again.
        """
        path = self.path / STEPS_FILE
        with explaining_disk(path), open(path, "ab", buffering=0, opener=private) as file:
            append_whole(file.fileno(), (wire.to_json(step) + "\n").encode())

    def steps(self) -> Iterator[Step]:
        """The steps that are written down."""
        path = self.path / STEPS_FILE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                yield from_json(line, Step)
            except msgspec.DecodeError:  # the end of a line that a crash cut off
                continue

    def marks(self) -> Iterator[Mark]:
        """When batches were delivered and versions published, as noted."""
        for step in self.steps():
            yield Mark(kind=MarkKind.DELIVERED, at=step.delivered_at, batch=step.batch, label=f"batch {step.batch}")
            yield Mark(kind=MarkKind.PUBLISHED, at=step.published_at, batch=step.batch, label=f"v{step.published}")


def new_folder(settings: RolloutSettings, now: datetime) -> RolloutFolder:
    """A fresh folder with the settings in it."""
    words = ("rollout", settings.train_env_manager.tags[0], settings.model)
    folder = RolloutFolder(fresh_path(settings.output_dir, settings.name, words, now))
    reached("rollout.folder_made")
    write_settings(folder.settings, settings)
    return folder


def folder_to_resume(wanted: str, output_dir: str, settings: RolloutSettings | None) -> RolloutFolder:
    """The run named `wanted`, or, if that is empty, the newest one; with `settings`, the newest that has those."""
    if wanted:
        below = Path(output_dir) / wanted
        folder = RolloutFolder(below if below.is_dir() or not Path(wanted).is_dir() else Path(wanted))
        if not folder.settings.is_file():
            raise InvalidInput(
                f"{folder.path} holds no rollout to go on with; look into {output_dir}, or start it anew"
            )
        return folder
    paths = sorted(Path(output_dir).glob(f"*/{SETTINGS_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        folder = RolloutFolder(path.parent)
        if settings is None or _is_same(folder, settings):
            return folder
    what = "no rollout" if settings is None else "no rollout with these settings"
    raise InvalidInput(f"{output_dir} holds {what}; start one without --resume, or name it: --resume RUN")


def _is_same(folder: RolloutFolder, settings: RolloutSettings) -> bool:
    try:
        check_same(read_settings(folder.settings), settings, folder.name)
    except InvalidInput:
        return False
    return True
