"""The section of POOL in the results: the loads, what a warm acquire costs, each kind of machine, and the faults."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from goals import Line
from pooling.load import CLOUD, HEIGHT, SIGMA, WIDTH
from pooling.systems import US
from report import readable

PICTURE = "pool.svg"

LOADS = {
    "utilisation_pct": "used %",
    "utilisation_ceiling_pct": "ceiling %",
    "utilisation_by_pool_pct": "as the pool says %",
    "wait_p50_seconds": "wait p50 s",
    "wait_p95_seconds": "p95 s",
    "wait_p99_seconds": "p99 s",
    "handover_p50_seconds": "free until in hand p50 s",
    "handover_max_seconds": "most s",
    "release_p95_seconds": "release p95 s",
    "reset_p50_seconds": "reset p50 s",
    "reset_p95_seconds": "p95 s",
    "startup_seconds": "start-up s",
    "run_seconds": "all s",
    "host_busy_pct": "host busy %",
}
WARM = {"acquire_ms": "p50 ms", "acquire_p95_ms": "p95 ms", "acquire_p99_ms": "p99 ms"}
KINDS = {
    "reset_seconds": "reset s",
    "bare_reset_seconds": "of that the reset alone s",
    "create_seconds": "create s",
    "first_create_seconds": "the first one s",
    "memory_mb": "memory MB",
}

METHOD = (
    "Used is leased / (leased + not leased while somebody waits for it), in machine-seconds: a machine that is being "
    "reset while somebody waits counts as not leased. It is taken where machines are asked for, for all systems "
    "alike. `ceiling` is hold / (hold + reset), of the mean hold and the median reset of that run: where every machine "
    "is waited for, a reset cannot be hidden, so a goal above the ceiling cannot be met. "
    f"Hold times are lognormal about the median in the name of the case (sigma {SIGMA:g}), the same for all "
    f"systems; a holder looks at the screen, clicks, and then waits. Desktops have {WIDTH} by {HEIGHT} pixels. "
    "`host busy` counts all processes of the host. `model of AgentFlow` is written by us from the source of its "
    "resource pool (its manager cannot be installed): one lock for the pool, held during a reset in release; machines "
    "made one after the other. It has no overhead of its own, serves whoever came first, never gives up waiting, and "
    "its resets are neither marked nor proved. The other two systems are that model without the lock: whoever "
    "releases a machine waits for its reset, or for the end of it and the making of another. `modelled VMs` run on "
    f"virtual time and take {CLOUD['create']:g} s to be made and {CLOUD['reset']:g} s to be reset, about what "
    "AgentFlow's own log shows of cloud machines; how long they are held is our choice. Values are medians over rounds."
)
WARM_TEXT = "Taking and giving back one of four machines that are ready, which take no time by themselves."
KINDS_TEXT = (
    "One at a time; medians. A reset as the pool does it: a marker is planted, the machine is reset, the marker is "
    "looked for, and the machine has to answer. Memory is the proportional share of an idle machine's processes. "
    "The guest of qemu is the plain one, without KVM."
)
FAULTS_TEXT = (
    "Fake machines: creating, resetting, probing and ending fail and hang, resets leave what was there, machines die "
    "at any time, holders are cancelled or never give back, the journal cannot be reached, and the pool's process "
    "dies. Each hand-out is compared with what is true of the machine. Desktops: real ones are killed and frozen; "
    "each holder plants files, a process and a property of the screen, and looks for those of others before."
)

Row = dict[str, float]


def tables(lines: Sequence[Line]) -> list[str]:
    """The whole section below the goals."""
    parts = ["", f"![Utilisation and waits]({PICTURE})"]
    loads = load_rows(lines)
    for case in dict.fromkeys(case for case, _ in loads):
        found = {system: row for (one, system), row in loads.items() if one == case}
        parts += ["", f"### {case}", "", *_table("system", LOADS, found)]
    parts += _compared(lines)
    parts += _section(lines, "warm ", "What a warm acquire costs", WARM_TEXT, WARM)
    parts += _section(lines, "machine ", "Kinds of machines", KINDS_TEXT, KINDS)
    parts += _faults(lines)
    return parts


def load_rows(lines: Iterable[Line]) -> dict[tuple[str, str], Row]:
    """The figures of the loads, by case and system."""
    rows: dict[tuple[str, str], Row] = defaultdict(dict)
    for line in lines:
        if " hold=" in line["case"] and line["metric"] in LOADS:
            rows[line["case"], line["system"]][line["metric"]] = line["value"]
    return rows


def _compared(lines: Sequence[Line]) -> list[str]:
    ratios = [line for line in lines if line["metric"] == "ratio"]
    if not ratios:
        return []
    parts = ["", "### How many times theirs ours is", "", *_head(["case", "figure", "against", "ratio"])]
    return parts + [
        f"| {line['case']} | {line['of']} | {line['against']} | {readable(line['value'])} |" for line in ratios
    ]


def _section(lines: Sequence[Line], begin: str, title: str, text: str, columns: Mapping[str, str]) -> list[str]:
    rows: dict[str, Row] = defaultdict(dict)
    for line in lines:
        if line["case"].startswith(begin) and line["metric"] in columns:
            rows[line["case"].removeprefix(begin)][line["metric"]] = line["value"]
    return ["", f"### {title}", "", text, "", *_table("", columns, rows)] if rows else []


def _faults(lines: Sequence[Line]) -> list[str]:
    found = [line for line in lines if line["case"].endswith(" with faults") and line["system"] == US]
    if not found:
        return []
    parts = ["", "### Faults", "", FAULTS_TEXT, "", *_head(["", "", "n"])]
    return parts + [f"| {line['case']} | {line['metric']} | {readable(line['value'])} |" for line in found]


def _table(first: str, columns: Mapping[str, str], rows: Mapping[str, Row]) -> list[str]:
    known = [name for name in columns if any(name in row for row in rows.values())]
    parts = _head([first, *(columns[name] for name in known)])
    for title, row in rows.items():
        cells = [readable(row[name]) if name in row else "" for name in known]
        parts.append(f"| {' | '.join([title, *cells])} |")
    return parts


def _head(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
