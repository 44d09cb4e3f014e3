"""What the metadata of a web task may say."""

import re

import msgspec
from msgspec import Struct

from outrider.core.decoding import convert
from outrider.core.errors import InvalidInput
from outrider.core.task import Task


class PageCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold of the page on which an episode ends: all that is given.

    `url`: its address, in which `*` stands for anything. `text`: words that it shows. `js`: an expression that is true.
    """

    url: str | None = None
    text: str | None = None
    js: str | None = None

    def fits(self, url: str) -> bool:
        return self.url is None or re.fullmatch(re.escape(self.url).replace(r"\*", ".*"), url) is not None


class WebTask(Struct, frozen=True, kw_only=True):
    """`site`: the task's own pages. `url`: where it starts, if not there. `allowed_hosts` narrows those of the run."""

    site: str | None = None
    url: str | None = None
    check: PageCheck | None = None
    allowed_hosts: tuple[str, ...] | None = None


def web_task(task: Task) -> WebTask:
    try:
        found = convert(dict(task.metadata), WebTask)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"task {task.task_id!r}: metadata: {exc}") from exc
    if task.answer is None and found.check is None:
        raise InvalidInput(f"task {task.task_id!r} has neither an answer nor a metadata.check, so it cannot be scored")
    return found
