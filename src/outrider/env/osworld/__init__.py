"""OSWorld's tasks, actions, observations and evaluators, on any machine that is a `Computer`."""

from outrider.env.osworld.checking import check_tasks
from outrider.env.osworld.environment import ActionSpace, OsworldConfig, OsworldEnvironment
from outrider.env.osworld.files import LocalFiles
from outrider.env.osworld.observation import ObservationType
from outrider.env.osworld.task import load_tasks, osworld_task, task_of

__all__ = [
    "ActionSpace",
    "LocalFiles",
    "ObservationType",
    "OsworldConfig",
    "OsworldEnvironment",
    "check_tasks",
    "load_tasks",
    "osworld_task",
    "task_of",
]
