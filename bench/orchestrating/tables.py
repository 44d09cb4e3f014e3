"""The section of ORCHESTRA in the results: all flows, who takes how long, switches, streams, memory, and the guide."""

from collections.abc import Iterator, Sequence

from goals import Line
from orchestrating import names
from orchestrating.found import Found, shown, table
from orchestrating.names import MASKS, US
from orchestrating.optimisations import HEAD, optimisations
from report import readable

PICTURE = "orchestra.svg"
FLOWS = ("critic ", "episode ", "math ")

METHOD = (
    "Teams, recording, rows, policy and tokenizer are ours and real; the model is the workload's: its texts, its "
    "verdicts, its times. A request waits its turn at 2 ms each and then takes 50 ms (flat), and by itself a lognormal "
    "time with a median of 100 ms besides (tail). No GPU is used, and none would be busy: there is no model. The "
    "tokenizer is byte-level BPE, trained on the text of this checkout; the prompts are ours, their lengths are told "
    "below. Wall time is what one idle core would show: the CPU time of the process, and the sleeps, which are "
    "skipped; below is a check on a real clock. CPU time is of the whole process: records, rows and the garbage "
    "collector are in it; the model's texts are made before, and kept from the collector. It grows when others use the "
    "machine: see the load. `samples` are requests that a model would answer for a "
    "sample. Medians over rounds; ours and the baseline took turns.\n\n"
    f"`{MASKS}` is our own `batch_synchronous` mode with agent skip, preprocessing cache and parallel agents off, and "
    "with a policy that tokenises the prompts of the whole batch in every call, also of samples that take no part: "
    "once, where Dr. MAS does it twice. Approved samples are left out of later calls there, as in Dr. MAS, so that "
    f"both send the same samples; `{names.ALL_OFF}` does not do even that. `{names.LEAST}` is what these calls take by "
    "the rules of the model alone, whoever makes them: all of them through its door, or those of the longest sample "
    f"one after the other. `{names.FREE}` is our own schedule on a CPU that takes no time. Dr. MAS itself takes "
    "no part: this is its way of working, in our code, on the same machine at the same time. So the goal of a quarter "
    "of Dr. MAS's wall time is not judged: its seconds are constants of another day and another machine, and it needs "
    "a GPU trainer around it, which cannot run here."
)
AGENTS_TEXT = (
    "Means of the largest batch in the first round. `queue` is what a call waits for at our end before the model is "
    "asked; the door of the model is in `model`. `critical` is the share of the samples' time that was spent waiting "
    "for this agent."
)
SWITCHES_TEXT = (
    "Each row is our own setting with one thing changed, or the batch-synchronous mode with one more. Gains are what "
    "that takes, divided by what ours takes: 1 is nothing. `for nothing` are calls that belong to no sample, "
    "`tokens/call` are those that were made of texts for each sample, `a rollout` is how long one takes on average. "
    "Below is what each switch gains in wall or CPU time where it gains most: the largest, over all cases, of the "
    "least gain of all rounds."
)
STREAMS_TEXT = (
    "Four batches: through one window of the size of a batch, or one batch after the other. `in flight` is how many "
    "calls are under way, on average over time, for each place in the window."
)

MAIN = (
    "case",
    "samples",
    "prompt tokens",
    "CPU ms/call",
    "of that tokenizer",
    "CPU s",
    "wall s",
    "samples/s",
    "rollouts/s",
)
OURS = (
    "samples",
    "prompt_tokens",
    "cpu_ms_per_call",
    "tokenising_ms_per_call",
    "cpu_seconds",
    "wall_seconds",
    "samples_per_second",
    "rollouts_per_second",
)
COUNTS = ("samples", "calls_for_nothing", "tokenised_per_call")
SECONDS = ("cpu_seconds", "wall_seconds", "rollout_mean_seconds")
THEIRS = ("masks: CPU s", "wall s", "wall x", "free CPU: wall s", "least s")


def tables(lines: Sequence[Line]) -> list[str]:
    """The whole section below the goals."""
    found = Found(lines)
    entries, differing = found.value("tokenizer", US, "vocabulary"), found.value("rows", US, "rows_differing")
    compared = next((line["unit"] for line in lines if line["metric"] == "rows_differing"), "")
    parts = ["", f"![Wall time by flow and batch, and what each switch is worth]({PICTURE})", ""]
    tokens, cpu, tokenizer = (
        shown(found.value("calls", US, f"mean_{name}"))
        for name in ("prompt_tokens", "cpu_ms_per_call", "tokenising_ms")
    )
    parts.append(f"Over all calls of the largest batch a prompt has {tokens} tokens, and a call takes {cpu} ms of CPU,")
    parts.append(f"{tokenizer} ms of them in the tokenizer.")
    told = f"The tokenizer has {shown(entries)} entries. {shown(differing)} rows and outcomes differ {compared}, of any"
    parts.append(f"{told} system and latency, from those of the first run of the same work.")
    parts += ["", "### Flows", "", *table((*MAIN, *THEIRS), _flows(found))]
    parts += ["", "### Mean time of each agent", "", AGENTS_TEXT, "", *_agents(found)]
    parts += ["", "### Switches", "", SWITCHES_TEXT, "", *_switches(found)]
    parts += ["", *_best_gains(found)]
    parts += ["", "### Streams", "", STREAMS_TEXT, "", *_streams(found)]
    parts += [
        "",
        "### Memory",
        "",
        "The most that Python held at once, rows and replies included.",
        "",
        *_memory(found),
    ]
    parts += ["", "### The real clock", "", *_clock(found)]
    return [*parts, "", "### The guide's optimisations", "", *table(HEAD, optimisations(lines))]


def _flows(found: Found) -> Iterator[list[str]]:
    for case in found.cases(*FLOWS):
        forms = ("", "", ".2f", ".2f", ".2f", ".2f", "", "")
        ours = [shown(found.value(case, US, metric), form) for metric, form in zip(OURS, forms, strict=True)]
        theirs = [shown(found.value(case, MASKS, metric), ".2f") for metric in ("cpu_seconds", "wall_seconds")]
        theirs.append(shown(found.quotient(case, "wall_seconds", MASKS, US), ".2f"))
        others = (names.FREE, names.LEAST)
        theirs += [shown(found.value(case, system, "wall_seconds"), ".2f") for system in others]
        yield [case, *ours, *theirs]


def _agents(found: Found) -> Iterator[str]:
    columns = ("calls", "total_mean_ms", "queue_mean_ms", "model_mean_ms", "parse_mean_ms", "critical_pct")
    cases = found.cases("agent ", metric="calls")
    batch = max((case.split()[2] for case in cases), key=lambda text: int(text[2:]), default="")
    rows = (
        [case.removeprefix("agent "), *(shown(found.value(case, US, metric)) for metric in columns)]
        for case in cases
        if case.split()[2] == batch
    )
    head = ("agent", "calls", "mean ms", "queue ms", "model ms", "parse ms", "critical %")
    return table(head, rows)


def _switches(found: Found) -> Iterator[str]:
    counts, gains_of = ("samples", "for nothing", "tokens/call"), ("gain: CPU x", "wall x", "a rollout x")
    head = ("case", "system", *counts, "CPU s", "wall s", "a rollout s", *gains_of)
    rows = []
    for case in found.cases("switches "):
        for system in found.systems(case):
            figures = [shown(found.value(case, system, metric)) for metric in COUNTS]
            figures += [shown(found.value(case, system, metric), ".3f") for metric in SECONDS]
            gains = [
                "" if system == US else shown(found.quotient(case, metric, system, US), ".2f") for metric in SECONDS
            ]
            rows.append([case.removeprefix("switches "), system, *figures, *gains])
    return table(head, rows)


def _best_gains(found: Found) -> Iterator[str]:
    cases = found.cases("switch: ", metric="best_gain")
    rows = [[case.removeprefix("switch: "), shown(found.value(case, US, "best_gain"), ".2f")] for case in cases]
    return table(("switch", "best gain x"), rows)


def _streams(found: Found) -> Iterator[str]:
    rows = [
        [
            case.removeprefix("stream "),
            system,
            shown(found.value(case, system, "wall_seconds"), ".2f"),
            shown(found.value(case, system, "rollouts_per_second")),
            shown(found.value(case, system, "in_flight"), ".2f"),
            shown(found.quotient(case, "wall_seconds", system, names.STREAM), ".2f"),
        ]
        for case in found.cases("stream ")
        for system in found.systems(case)
    ]
    return table(("case", "how", "wall s", "rollouts/s", "in flight", "x one stream's wall"), rows)


def _memory(found: Found) -> Iterator[str]:
    rows = [
        [
            case.removeprefix("memory "),
            system,
            *(shown(found.value(case, system, m)) for m in ("peak_mb", "kb_per_rollout")),
        ]
        for case in found.cases("memory ", metric="peak_mb")
        for system in found.systems(case, "peak_mb")
    ]
    return table(("case", "system", "peak MB", "KB a rollout"), rows)


def _clock(found: Found) -> Iterator[str]:
    rows = [
        [
            case.removeprefix("clock "),
            system,
            *(readable(found.value(case, system, m) or 0) for m in ("cpu_seconds", "wall_seconds")),
        ]
        for case in found.cases("clock ")
        for system in found.systems(case)
    ]
    return table(("case", "system", "CPU s", "wall s"), rows)
