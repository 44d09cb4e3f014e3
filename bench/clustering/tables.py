"""The section of CLUSTER in the results: a table for each figure, and what ours is of theirs."""

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

from clustering.names import COPY, COPY_FRESH, HANG_SECONDS, LOCAL, QUEUE, RLINF, STORE, US
from goals import Line
from report import readable

PICTURE = "cluster.svg"


def _ray_version() -> str:
    try:
        return f"Ray {version('ray')}"
    except PackageNotFoundError:
        return "Ray is not installed"


METHOD = (
    f"Values are medians over rounds, with the least and the most in brackets; in a round the systems take their turns "
    f"one after the other, each round in another order. A ratio is the median over rounds. {_ray_version()}, for all "
    f"alike; `{US}` is on a Ray of its own, as are the peers that use Ray, and `{LOCAL}` is its worker processes "
    "without Ray. CPU time is that of all processes of a system, its Ray included. All on one machine."
)
TEXTS = {
    "start": "Each time in a new process: until there is a cluster (Ray is started in it), until a first group of 4 "
    "workers has answered, and until a second has.",
    "call": "A method that does nothing, of a group of 4 and of one worker: `handle.wait()` against `ray.get(list)`, "
    "`await handle` against `asyncio.gather` of the references, and 200 calls made before the first wait, per call. "
    "The median of the calls in a round.",
    "channel": f"Items are dicts of 1 KB; from the first put until the last item is taken, between worker processes, "
    f"on a channel that has been used before. `1to1` and `4to1`: `put` and `get` of one item after the other. "
    f"`batch=32`: `put_many` and `get_batch`; `put_nowait_batch` and `get_nowait_batch` of {QUEUE}, asked again after "
    f"1 ms when there is nothing; `put` one by one and `get_batch` of {RLINF}, which has no put of many. `async=64`: "
    "puts and gets of one item, 64 at once in each process.",
    "carry": f"A float32 array from one worker to another, which waits for it: from before the send until it is "
    f"there, and until the receiver has read all of it. {STORE}: from before the call of the actor that returns the "
    f"array until `ray.get` has it, which lets it be read but not written. {COPY}: inside one process, into an array "
    f"that is there; {COPY_FRESH}: into a new one.",
    "death": "From SIGKILL until the one who waits has the error: the worker that is called, the sender of a pending "
    "`recv` (plain Ray: the actor whose result a peer waits for), the process of a channel under a pending `get`. "
    f"Nothing is waited for longer than {HANG_SECONDS:g} s: a hang counts as that. Where no error comes at all, "
    "the case did not run.",
}
TITLES = {
    "start": "Start",
    "call": "Group calls",
    "channel": "Channels",
    "carry": "Payloads",
    "death": "Death of a peer",
}


def tables(lines: Sequence[Line]) -> list[str]:
    """The whole section below the goals."""
    parts = ["", f"![Calls, channels and payloads]({PICTURE})"]
    for part, title in TITLES.items():
        own = [line for line in lines if line["case"].split()[:1] == [part]]
        if own:
            parts += ["", f"### {title}", "", TEXTS[part]]
            parts += _deaths(own) if part == "death" else _figures(own)
            parts += _compared(own)
    return parts


def _figures(lines: Sequence[Line]) -> list[str]:
    """A table for each metric: a row for each system, a column for each case."""
    parts: list[str] = []
    found = [line for line in lines if line["metric"] not in ("ratio", "unavailable")]
    for metric in _order(line["metric"] for line in found):
        own = [line for line in found if line["metric"] == metric]
        cases = _order(line["case"] for line in own)
        cells = {(line["system"], line["case"]): _told(line) for line in own}
        parts += ["", *_head([f"{metric} ({own[0]['unit']})", *cases])]
        parts += [
            _row(system, *(cells.get((system, case), "") for case in cases))
            for system in _order(line["system"] for line in own)
        ]
    return parts


def _deaths(lines: Sequence[Line]) -> list[str]:
    seconds = {(line["system"], line["case"]): _told(line) for line in lines if line["metric"] == "death_seconds"}
    raised = {(line["system"], line["case"]): line["reason"] for line in lines if line["metric"] == "raised"}
    cases = _order(line["case"] for line in lines)
    parts = ["", *_head(["death_seconds (s)", *cases])]
    for system in _order(system for system, _ in raised):
        told = [", ".join(filter(None, (seconds.get((system, c)), raised.get((system, c))))) for c in cases]
        parts.append(_row(system, *told))
    return parts


def _compared(lines: Sequence[Line]) -> list[str]:
    ratios = [line for line in lines if line["metric"] == "ratio"]
    if not ratios:
        return []
    parts = ["", *_head(["case", "figure", "of", "against", "ratio"])]
    return parts + [
        _row(line["case"], line["of"], line["system"], line["against"], readable(line["value"])) for line in ratios
    ]


def _told(line: Line) -> str:
    if line["value"] is None:
        return str(line["reason"])
    value = readable(line["value"])
    return f"{value} ({readable(line['least'])} to {readable(line['most'])})" if "least" in line else value


def _order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(names: Sequence[str]) -> list[str]:
    return [_row(*names), "|---" * len(names) + "|"]
