"""Finding a run and its rollouts by what people type: a folder, a file, a store's URL, the beginning of an id."""

from collections.abc import AsyncIterator, Iterable
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from outrider.core.errors import InvalidInput
from outrider.core.nearest import nearest as nearest_of
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.evaluate.plan import PLAN_FILE, RUN_KEY
from outrider.evaluate.results import name_of, task_id_of
from outrider.store import Store, StoreUrl

STORE_FILE = "store.db"
RESULTS_FOLDER, RESULTS_FILE = "results", "results.jsonl"
SETTINGS_FILE, STEPS_FILE = "rollout.yaml", "steps.jsonl"
"""Of a training run."""

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
        raise InvalidInput(f"{name} is not a run: it holds no {STORE_FILE}; {known_runs(name, [Path(name)])}")
    raise InvalidInput(f"there is no run {name!r} here or in {RESULTS_FOLDER}; {known_runs(name, _places(name))}")


def results_of(name: str) -> Path:
    """The results file of a run: in its folder (as given, or in `results`), or the file itself."""
    for path in (Path(name) / RESULTS_FILE, Path(RESULTS_FOLDER) / name / RESULTS_FILE, Path(name)):
        if path.is_file():
            return path
    raise InvalidInput(
        f"there is no run {name!r} with results here or in {RESULTS_FOLDER}; {known_runs(name, _places(name))}"
    )


async def run_rollouts(store: Store, run: str | None, *, status: RolloutStatus | None = None) -> AsyncIterator[Rollout]:
    """The rollouts of a run in the order they were enqueued, page by page."""
    offset = 0
    while page := (await store.query_rollouts(status=status, limit=PAGE, offset=offset)).items:
        offset += len(page)
        for rollout in page:
            if run is None or rollout.metadata.get(RUN_KEY) == run:
                yield rollout


async def find_rollout(store: Store, run: str | None, wanted: str) -> Rollout:
    """The rollout of that id or name or, the run before it or not, the only one of that task, or that begins so."""
    if (exact := await store.get_rollout_by_id(wanted)) is not None:
        return exact
    alike: dict[str, Rollout] = {}
    of_task: dict[str, Rollout] = {}
    known = []
    async for rollout in run_rollouts(store, run):
        run_name, name = name_of(rollout.rollout_id, task_id_of(rollout))
        full_name = f"{run_name}/{name}" if run_name else name
        names = name, full_name, rollout.rollout_id, rollout.rollout_id.rpartition("/")[2]
        if wanted in names:
            return rollout
        if any(one.startswith(wanted) for one in names):
            alike[full_name] = rollout
        if task_id_of(rollout) == wanted:
            of_task[full_name] = rollout
        known.append(full_name)
    for chosen in (of_task, alike):
        if len(chosen) == 1:
            return next(iter(chosen.values()))
    if alike := of_task or alike:
        named = ", ".join(list(alike)[:MAX_NAMED])
        raise InvalidInput(
            f"{len(alike)} rollouts begin with {wanted!r}: {named}{', …' if len(alike) > MAX_NAMED else ''}"
        )
    near = nearest(wanted, known)
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


def known_runs(name: str, folders: Iterable[Path]) -> str:
    """How many runs there are in these folders, and those with the names most like this one."""
    runs = {
        file.parent.name: str(file.parent)
        for folder in dict.fromkeys(folders)
        if folder.is_dir()
        for file in sorted((*folder.glob(f"*/{STORE_FILE}"), *folder.glob(f"*/{PLAN_FILE}")))
    }
    if not runs:
        return "there are no runs yet; `outrider run` makes one"
    alike = nearest_of(Path(name).name, runs, MAX_NAMED, cutoff=0.4)
    chosen = alike or list(runs)[-MAX_NAMED:]
    which = "the nearest" if alike else "among them"
    names = ", ".join(runs[run] for run in chosen)
    count = "is 1 run" if len(runs) == 1 else f"are {len(runs):,} runs"
    return f"there {count}, {which} {names}; `outrider ls` lists them"
