"""Finding a run and its rollouts by what people type: a folder, a file, a store's URL, the beginning of an id."""

from collections.abc import AsyncIterator, Iterable
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from outrider.core.errors import InvalidInput
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.evaluate.plan import RUN_KEY
from outrider.evaluate.results import task_id_of
from outrider.store import Store, StoreUrl

STORE_FILE = "store.db"
RESULTS_FOLDER = "results"
PAGE = 500
MAX_NAMED = 5


class RunPlace(Struct, frozen=True, kw_only=True):
    """Where a run lies. `run` tells it from others in the same store; None: all the store holds."""

    name: str
    store_url: StoreUrl
    run: str | None = None
    folder: Path | None = None


def find_run(name: str, *, store_url: StoreUrl | None = None) -> RunPlace:
    """The run in a folder (as given, or in `results`), or in a store's file or URL.

    With `store_url`, the run of that name in that store, which may hold others.
    """
    if store_url is not None:
        return RunPlace(name=name, store_url=store_url, run=name)
    if "://" in name:
        url = StoreUrl(name)
        return RunPlace(name=url.shown, store_url=url)
    for folder in (Path(name), Path(RESULTS_FOLDER) / name):
        if (file := folder / STORE_FILE).is_file():
            return RunPlace(name=folder.resolve().name, store_url=_url(file), folder=folder)
    if Path(name).is_file():
        return RunPlace(name=name, store_url=_url(Path(name)))
    if Path(name).is_dir():
        raise InvalidInput(f"{name} is no run: it holds no {STORE_FILE}{_near(name, [Path(name)])}")
    raise InvalidInput(f"there is no run {name!r} here or in {RESULTS_FOLDER}{_near(name, _places(name))}")


async def run_rollouts(store: Store, run: str | None, *, status: RolloutStatus | None = None) -> AsyncIterator[Rollout]:
    """The rollouts of a run in the order they were enqueued, page by page."""
    offset = 0
    while page := (await store.query_rollouts(status=status, limit=PAGE, offset=offset)).items:
        offset += len(page)
        for rollout in page:
            if run is None or rollout.metadata.get(RUN_KEY) == run:
                yield rollout


async def find_rollout(store: Store, run: str | None, wanted: str) -> Rollout:
    """The rollout of that id or, the run before it or not, the only one of that task, or whose id begins so."""
    if (exact := await store.get_rollout_by_id(wanted)) is not None:
        return exact
    alike: list[Rollout] = []
    ids = []
    async for rollout in run_rollouts(store, run):
        short = rollout.rollout_id.rpartition("/")[2]
        if short == wanted:
            return rollout
        if rollout.rollout_id.startswith(wanted) or short.startswith(wanted):
            alike.append(rollout)
        ids.append(rollout.rollout_id)
    of_task = [rollout for rollout in alike if task_id_of(rollout) == wanted]
    for chosen in (alike, of_task):
        if len(chosen) == 1:
            return chosen[0]
    if alike:
        named = ", ".join(rollout.rollout_id for rollout in alike[:MAX_NAMED])
        raise InvalidInput(
            f"{len(alike)} rollouts begin with {wanted!r}: {named}{', …' if len(alike) > MAX_NAMED else ''}"
        )
    near = nearest(wanted, ids)
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    raise InvalidInput(f"no rollout of this run is called {wanted!r}{hint}")


async def refuse_empty(store: Store, place: RunPlace) -> None:
    """Refuse a run without rollouts; in a store that holds others, name those."""
    names: dict[str, None] = {}
    async for rollout in run_rollouts(store, None):
        if place.run is None or rollout.metadata.get(RUN_KEY) == place.run:
            return
        names[str(rollout.metadata.get(RUN_KEY))] = None
    near = get_close_matches(place.name, names, n=MAX_NAMED, cutoff=0.4) or list(names)[-MAX_NAMED:]
    hint = f"; this store holds {', '.join(near)}" if near else ""
    raise InvalidInput(f"{place.name} holds no rollouts{hint}")


def nearest(wanted: str, names: Iterable[str]) -> list[str]:
    """The names most like the one that was typed, whole or behind the last slash."""
    by_short = {name.rpartition("/")[2]: name for name in names}
    found = get_close_matches(wanted.rpartition("/")[2], by_short, n=MAX_NAMED, cutoff=0.5)
    return [by_short[name] for name in found]


def _url(file: Path) -> StoreUrl:
    return StoreUrl(f"sqlite:///{file}")


def _places(name: str) -> list[Path]:
    return [Path(name).parent, Path(RESULTS_FOLDER)]


def _near(name: str, folders: Iterable[Path]) -> str:
    """Runs there are instead, those of like names first."""
    runs = {
        file.parent.name: str(file.parent)
        for folder in dict.fromkeys(folders)
        if folder.is_dir()
        for file in sorted(folder.glob(f"*/{STORE_FILE}"))
    }
    chosen = get_close_matches(Path(name).name, runs, n=MAX_NAMED, cutoff=0.4) or list(runs)[-MAX_NAMED:]
    return f"; there are {', '.join(runs[run] for run in chosen)}" if chosen else ""
