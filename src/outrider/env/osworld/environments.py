"""The OSWorld environments of one worker."""

from pathlib import Path
from typing import ClassVar

from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.osworld.environment import OsworldConfig, OsworldEnvironment
from outrider.env.osworld.files import LocalFiles
from outrider.env.osworld.observation import ObservationType
from outrider.env.protocol import Environments, Needs
from outrider.pool.provider import Ability

_SEEN = {
    ObservationType.SCREENSHOT: {Ability.SCREEN},
    ObservationType.A11Y_TREE: {Ability.TREE},
    ObservationType.SCREENSHOT_A11Y_TREE: {Ability.SCREEN, Ability.TREE},
    ObservationType.TERMINAL: {Ability.TERMINAL},
}
"""What a machine must show for each type of observation."""


class OsworldEnvironments(Environments):
    """Each episode boards a machine that its worker has leased."""

    Config: ClassVar[type[OsworldConfig]] = OsworldConfig
    task_fields = frozenset({
        "config", "evaluator", "snapshot", "source", "trajectory", "related_apps", "proxy", "fixed_ip",
        "possibility_of_env_change",
    })  # fmt: skip
    """Those of OSWorld's files; some of them tell people where a task comes from."""

    def __init__(self, config: OsworldConfig | None = None) -> None:
        self._config = config or OsworldConfig()
        folder = None if self._config.files is None else Path(self._config.files)
        if folder is not None and not folder.is_dir():
            raise InvalidInput(f"files {self._config.files!r} is not a folder")
        self._files = LocalFiles(folder=folder)

    @property
    def needs(self) -> Needs:
        seen = _SEEN[self._config.observation_type]
        return Needs(abilities=frozenset({Ability.COMMANDS, *seen}))

    def make(self, task: Task) -> OsworldEnvironment:
        return OsworldEnvironment(task, self._config, files=self._files)

    async def check(self) -> None: ...

    async def close(self) -> None: ...
