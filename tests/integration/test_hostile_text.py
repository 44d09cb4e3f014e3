"""Tasks, errors, tags and worker names are written by others: commands show them, and do nothing else that they say."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outrider.core.attempt import Failure
from outrider.core.errors import Boundary
from outrider.core.event import Event, EventKind
from outrider.core.rollout import RolloutConfig
from outrider.store import Store, open_store
from processes import run_outrider
from terminal import run_on_terminal

HOSTILE = "[/INST] [bold]b \x1b]52;c;aGk=\x07\x1b[31mRED\r\u202egnp\x9b2J"
IN_FILES = HOSTILE.replace("/", "")
"""What may stand in the name of a file."""

LONG = f"{HOSTILE} first line " + "x" * 1000 + "\nsecond line of the message"

DRIVER = """
import json, sys
from outrider.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["outrider", *arguments]
    try:
        main()
    except SystemExit as exc:
        print("exit code", exc.code or 0, flush=True)
    else:
        print("exit code 0", flush=True)
"""


async def fail(store: Store, rollout_id: str, *, max_attempts: int) -> None:
    config = RolloutConfig(max_attempts=max_attempts)
    await store.enqueue_rollout(HOSTILE, rollout_id=rollout_id, tag=HOSTILE, config=config)
    claimed = await store.dequeue_rollout(worker_id=HOSTILE)
    assert claimed is not None
    attempt_id = claimed.attempt.attempt_id
    said = Event(kind=EventKind.LOG, name=HOSTILE, at=datetime.now(UTC), data={HOSTILE: HOSTILE})
    await store.append_events(rollout_id, attempt_id, [said])
    failure = Failure(boundary=Boundary.ENV, kind=HOSTILE, message=LONG, stage=HOSTILE, traceback=HOSTILE)
    await store.heartbeat(HOSTILE, [attempt_id], stats={HOSTILE: HOSTILE})
    noted = {HOSTILE: HOSTILE}
    await store.update_attempt(rollout_id, attempt_id, status="failed", error=failure, metadata=noted)


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTRIDER_STORE", "sqlite:///hostile.db")
    async with open_store("sqlite:///hostile.db") as store:
        await fail(store, f"one{HOSTILE}", max_attempts=1)
        await fail(store, "two", max_attempts=2)
    return "sqlite:///hostile.db"


def make_hostile_runs() -> tuple[str, str]:
    """Two runs of the same tasks whose names, models, task ids and results are such texts; their names."""
    names = f"a{IN_FILES}", f"b{IN_FILES}"
    for name, model in zip(names, ("builtin:solver", "builtin:random"), strict=True):
        game = ("--mode", "FrozenLake", "--limit", "2", "--seed", "1", "--env", "max_steps=2")
        run_outrider("run", *game, "--model", model, "--name", model[-6:], "--store", "sqlite:///runs.db")
        folder = Path("results", model[-6:]).rename(Path("results", name))
        plan = json.loads((folder / "plan.json").read_text())
        plan["run"] = plan["settings"]["model"] = plan["settings"]["tag"] = HOSTILE
        (folder / "plan.json").write_text(json.dumps(plan))
        lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        for number, line in enumerate(lines):
            line["rollout_id"] = f"{HOSTILE}/{number}:0"
            line["task_id"] = f"{HOSTILE}{number}"
            line["output"] = line["explanation"] = line["stop_reason"] = HOSTILE
            line["reward"] = float(name == names[0])
        (folder / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    broken = Path("results", f"c{IN_FILES}")
    broken.mkdir()
    (broken / "plan.json").write_text(HOSTILE)
    return names


async def test_no_command_lets_text_steer_the_terminal(url: str):
    one, other = make_hostile_runs()
    commands = [
        ["ls"],
        ["ls", "--json"],
        ["compare", one, other],
        ["compare", one, other, "--json"],
        ["compare", one, other, "--html", "compared.html"],
        ["compare", one, f"none{IN_FILES}"],
        ["status"],
        ["status", "--json"],
        ["show", f"one{HOSTILE}"],
        ["show", "two", "--json"],
        ["view", url],
        ["view", url, f"one{HOSTILE}"],
        ["view", url, "--html", "page.html"],
        ["export"],
        ["retry", f"one{HOSTILE}"],
        ["show", f"no{HOSTILE}"],
        ["status", "--tag", f"no{HOSTILE}"],
        ["work", "--until-done", "--workers", "1", "--agent", "outrider.testing.agents:practise"],
        ["cancel", "--all"],
    ]
    code, seen = run_on_terminal([sys.executable, "-c", DRIVER, json.dumps(commands)], columns=400)
    assert code == 0, seen
    assert "Traceback (most recent" not in seen
    codes = [line.split()[-1] for line in seen.splitlines() if line.startswith("exit code")]
    assert codes == ["0"] * 5 + ["2"] + ["0"] * 9 + ["2", "2", "0", "0"], seen
    for raw in ("\x1b]52", "\x1b[31mRED", "\u202e", "\x9b", "\x07", "RED\rgnp"):
        assert raw not in seen
    assert seen.count("[/INST] [bold]b") > 10
    assert seen.count("[INST] [bold]b") > 10


async def test_a_message_is_one_line_in_status_and_whole_in_show(url: str):
    status = run_outrider("status").stdout
    (line,) = [line for line in status.splitlines() if line.startswith("• two")]
    assert line.endswith("… (whole: `outrider show two`)")
    assert "second line" not in status
    shown = run_outrider("show", "two").stdout
    assert "x" * 1000 in shown
    assert "second line of the message" in shown


async def test_export_names_what_it_cannot_write_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///odd.db") as store:
        for rollout_id, task in (("good", 1), ("odd", {None: 1}), ("odder", {(1, 2): 3}), ("last", 2)):
            await store.enqueue_rollout(task, rollout_id=rollout_id)
            claimed = await store.dequeue_rollout(worker_id="w")
            assert claimed is not None
            await store.update_attempt(rollout_id, claimed.attempt.attempt_id, status="succeeded", reward=1.0)
    done = run_outrider("export", "--store", "sqlite:///odd.db", code=1)
    assert [json.loads(line)["rollout"]["rollout_id"] for line in done.stdout.splitlines()] == ["good", "last"]
    assert "odd is left out: " in done.stderr
    assert "odder is left out: " in done.stderr
    assert "2 rollouts exported, 2 left out" in done.stderr
    assert "Traceback" not in done.stderr
    only = run_outrider("show", "odd", "--json", "--store", "sqlite:///odd.db", code=2)
    assert "has no JSON form" in only.stderr
