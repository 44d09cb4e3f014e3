"""What rollouts left, as files: the pictures of their steps, and artifacts such as the recording of the screen."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote

from outrider.core.artifact import artifact_of
from outrider.core.event import Event
from outrider.core.files import PRIVATE_FOLDER, write_private
from outrider.core.rollout import Rollout
from outrider.core.turn import RESET
from outrider.evaluate.results import recorded_step
from outrider.store import Store

ENDINGS = {"image/png": ".png", "image/apng": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


def files_of(events: Iterable[Event]) -> Iterator[tuple[str, bytes]]:
    """Names and contents: `step_K.png` is what was seen after step K (0: the opening); artifacts by their own names."""
    taken: set[str] = set()
    n_steps = 0
    for event in events:
        if (step := recorded_step(event)) is not None:
            n_steps += event.name != RESET
            for image in (image for message in step.observation for image in message.images):
                yield _free(f"step_{n_steps}{ENDINGS.get(image.media_type, '')}", taken), image.data
        elif (artifact := artifact_of(event)) is not None:
            yield _free(file_name(artifact.name), taken), artifact.data


def file_name(text: str) -> str:
    """A name for a file in a folder and nowhere else, whatever the text is; another for every text."""
    name = quote(text, safe="", errors="replace") or "%"
    return f"%2E{name[1:]}" if name.startswith(".") else name


async def write_files(folder: Path, store: Store, rollout: Rollout) -> int:
    """Write what the latest attempt left into the folder, which is made if there is anything: the number of files."""
    events = await store.query_events(rollout.rollout_id)
    return await asyncio.to_thread(_write, folder, files_of(events.items))


def _write(folder: Path, files: Iterator[tuple[str, bytes]]) -> int:
    n_written = 0
    for name, data in files:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_private(folder / name, data)
        n_written += 1
    return n_written


def _free(name: str, taken: set[str]) -> str:
    """The name, or if it is taken the first of `name_2`, `name_3`… that is not."""
    stem, ending = Path(name).stem, Path(name).suffix
    found = next(
        one for one in (name if number == 1 else f"{stem}_{number}{ending}" for number in count(1)) if one not in taken
    )
    taken.add(found)
    return found
