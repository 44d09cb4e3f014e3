"""`outrider rollout`, as people use it: batches for a trainer, killed and resumed in between, and seen."""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outrider.core.ledger import GroupEntry, GroupState
from outrider.store import open_store
from processes import OUTRIDER, run_outrider
from terminal import run_on_terminal

CONFIG = """
train_env_manager:
  max_env_num_per_worker: 16
  num_env_groups: 4
  # members of a group share configuration and seed
  group_size: 2
  tags: [FrozenLake]
  num_groups_partition: [4]

val_env_manager:
  max_env_num_per_worker: 32
  num_env_groups: 4
  group_size: 1
  tags: [SimpleSokoban, LargerSokoban, SokobanDifferentGridVocab, FrozenLake]
  num_groups_partition: [1, 1, 1, 1]
"""
"""The document's configuration, cut down to a size for tests."""

N_GROUPS = 4

OWN = """
import asyncio

from outrider.env.games import FrozenLakeEnvironments


class Hangs(FrozenLakeEnvironments):
    def make(self, task):
        environment = super().make(task)
        environment.step = self.step
        return environment

    async def step(self, action):
        await asyncio.sleep(3600)


class RaisesInReset:
    def reset(self, seed=None):
        raise RuntimeError("no level today")

    def step(self, action):
        return "", 0.0, True, False, {}


class Nonsense(Hangs):
    async def step(self, action):
        return 42


def drops_all(group):
    return "never good enough"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "frozen_lake.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OUTRIDER_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def rollout(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_outrider("rollout", *arguments, code=code)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def new(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    return lines_of(rollout("-c", "frozen_lake.yaml", *arguments, "--json", code=code).stdout)


def started(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*OUTRIDER, "rollout", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def read_steps(process: "subprocess.Popen[str]", n: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(n)]


def kill_all_of(process: "subprocess.Popen[str]") -> None:
    """The command and its worker processes, as at a power cut."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


async def ledger_of(run: str) -> list[GroupEntry]:
    async with open_store(f"sqlite:///results/{run}/store.db", create=False) as store:
        return list(await store.query_groups(run))


def check_batches(groups: list[GroupEntry], n_steps: int) -> None:
    """Every batch is there, whole and once: nothing was skipped, nothing trained on twice."""
    trained = [group for group in groups if group.state is GroupState.ACKNOWLEDGED]
    assert Counter(group.batch for group in trained) == dict.fromkeys(range(n_steps), N_GROUPS)
    assert not [group for group in groups if group.state is GroupState.DELIVERED]
    members = Counter(member for group in trained for member in group.members)
    assert set(members.values()) == {1}
    assert len(members) == n_steps * N_GROUPS * 2


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
async def test_the_documents_configuration_runs_in_one_process_and_in_several(workers: int):
    *steps, end = new("--steps", "3", "--name", "first", "--workers", str(workers), "--validate-every", "2")
    validation = steps.pop(2)

    assert [step["kind"] for step in steps] == ["step"] * 3
    assert [(step["step"], step["batch"], step["version"], step["published"]) for step in steps] == [
        (1, 0, 0, 1),
        (2, 1, 1, 2),
        (3, 2, 2, 3),
    ]
    assert all(step["staleness_max"] == 0 and step["n_trajectories"] == 8 for step in steps)
    assert (validation["kind"], validation["version"]) == ("validation", 2)
    assert {tag: found["n_scored"] for tag, found in validation["tags"].items()} == {
        "SimpleSokoban": 1, "LargerSokoban": 1, "SokobanDifferentGridVocab": 1, "FrozenLake": 1,
    }  # fmt: skip
    assert (end["kind"], end["complete"], end["steps"], end["version"]) == ("end", True, 3, 3)
    assert end["tokens"]["trained"] == sum(step["in_loss"] for step in steps)
    groups = await ledger_of("first")
    check_batches(groups, 3)
    assert [group_id for step in steps for group_id in step["groups"]] == [
        group.group_id for group in groups if group.batch is not None
    ]
    noted = lines_of(Path("results/first/steps.jsonl").read_text())
    assert [line["groups"] for line in noted] == [step["groups"] for step in steps]


def test_the_number_of_workers_changes_nothing_in_what_is_trained_on():
    alone = new("--steps", "2", "--name", "same", "--output-dir", "alone")
    several = new("--steps", "2", "--name", "same", "--output-dir", "several", "--workers", "2")
    for name in ("groups", "reward", "in_loss", "masked", "zero_advantage"):
        assert [step.get(name) for step in alone[:2]] == [step.get(name) for step in several[:2]]


async def test_generation_goes_on_during_training_within_the_bound():
    *steps, end = new(
        "--steps", "4", "--name", "ahead", "--train-seconds", "0.3", "--sync-seconds", "0.05",
        "--set", "async_generation_ratio=1", "--set", "model=builtin:random?latency=0.01",
    )  # fmt: skip
    assert max(step["staleness_max"] for step in steps) == 1, "made while the trainer trained, and no earlier"
    assert end["complete"]
    check_batches(await ledger_of("ahead"), 4)


@pytest.mark.parametrize(
    ("ratio", "workers"),
    [(0, 1), (1, 2), pytest.param(0, 2, marks=pytest.mark.soak), pytest.param(1, 1, marks=pytest.mark.soak)],
)
async def test_killed_as_a_whole_it_goes_on_and_no_batch_is_skipped_or_repeated(workers: int, ratio: int):
    slow = ("--set", "model=builtin:random?latency=0.02", "--set", f"async_generation_ratio={ratio}")
    with started(
        "-c", "frozen_lake.yaml", *slow, "--steps", "6", "--workers", str(workers), "--train-seconds", "0.05",
        "--name", "killed",
    ) as process:  # fmt: skip
        before = read_steps(process, 2)
        kill_all_of(process)
        rest, _ = process.communicate()
    before += lines_of(rest[: rest.rfind("\n") + 1])
    *after, end = lines_of(rollout("--resume", "killed", "--json", "--timeline", "slots.html").stdout)

    batches = [step["batch"] for step in after]
    assert batches == list(range(batches[0], 6))
    assert batches[0] - len(before) in (0, 1)  # a step may have been trained on and not told before the kill
    assert not {group for step in before for group in step["groups"]} & {g for step in after for g in step["groups"]}
    assert end["complete"]
    check_batches(await ledger_of("killed"), 6)
    data = page_data("slots.html")
    assert len([mark for mark in data["marks"] if mark[1] == "published"]) == 6
    assert len(data["workers"]) == 2 * workers


def test_ctrl_c_stops_cleanly_and_tells_how_to_go_on():
    slow = ("--set", "model=builtin:random?latency=0.02", "--name", "stopped")
    with started("-c", "frozen_lake.yaml", *slow, "--steps", "1000") as process:
        read_steps(process, 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    end = lines_of(out)[-1]
    assert process.returncode == 3
    assert "Stopping" in err
    assert "Traceback" not in err
    assert "never retrieved" not in err
    assert (end["kind"], end["complete"], end["resume"]) == ("end", False, "outrider rollout --resume stopped")
    n_done = end["steps"]

    again = lines_of(rollout("--resume", "stopped", "--steps", str(n_done + 1), "--json").stdout)
    assert [step["step"] for step in again[:-1]] == [n_done + 1]
    done = rollout("--resume", "stopped", "--steps", str(n_done + 1))
    assert "acknowledged" in done.stdout
    assert "Not complete" not in done.stdout


def test_a_run_is_resumed_by_its_settings_by_its_name_or_as_the_newest():
    new("--steps", "1", "--name", "one")
    new("--steps", "1", "--name", "two", "--set", "seed=5")
    by_settings = new("--steps", "2", "--resume")
    assert [line.get("run") for line in by_settings] == [None, "one"]
    newest = lines_of(rollout("--resume", "--steps", "2", "--json").stdout)
    assert newest[-1]["run"] == "one"  # the one that was resumed last
    assert lines_of(rollout("--resume", "two", "--json").stdout)[-1]["steps"] == 1
    refused = rollout("-c", "frozen_lake.yaml", "--resume", "two", code=2)
    assert "two was begun with seed 5, and it is 0 now" in refused.stderr


BAD = [
    (["--set", "train_env_manager.group_size=0"], "group_size is 0; give 1 or more"),
    (["--set", "rollout_batch_size=3"], "a batch of 3 is not a multiple of group_size 2; 4 would be"),
    (["--set", "train_env_manager.tags=[FrozenLak]"], "did you mean FrozenLake?"),
    (["--set", "train_env_manager.tags=[own:Nobody]"], "module 'own' has no 'Nobody'"),
    (["--set", "train_env_manager.num_groups_partition=[3]"], "3 = 3, but num_env_groups is 4"),
    (["--set", "train_env_manager.num_env_groups=4000000", "--set", "train_env_manager.num_groups_partition=null"],
     "fit; lower num_env_groups or group_size"),
    (["--set", "custom_envs.FrozenLake.sise=3"], "custom_envs.FrozenLake`; there are env, max_steps"),
    (["--set", "custom_envs.FrozenLake.config.sise=3"], "did you mean size?"),
    (["--set", "custom_envs.FrozenLake.max_step=3"], "did you mean max_steps?"),
    (["--set", "custom_envs.FrozenLake.turn_template=nothing"], "turn_template"),
    (["--set", "filters=[zero]"], "there is no filter 'zero'"),
    (["--set", "filters=[own:drop_all]"], "did you mean drops_all?"),
    (["--set", "async_generation_ratio=-1"], "async_generation_ratio is -1"),
    (["--set", "seeed=1"], "did you mean seed?"),
    (["--steps", "0"], "steps is 0"),
    (["--model", "builtin:nobody"], "nobody"),
    (["--store", "memory://", "--workers", "2"], "lives in one process"),
    (["--timeline", "nowhere/page.html"], "there is no folder nowhere"),
    (["--resume", "nobody"], "results/nobody holds no rollout to go on with"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), BAD, ids=[" ".join(bad[0][:2]) for bad in BAD])
def test_bad_input_is_one_line_with_what_to_do_and_changes_nothing(arguments: list[str], says: str):
    refused = rollout("-c", "frozen_lake.yaml", *arguments, code=2)
    assert says in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""
    assert not Path("results").exists()


def test_a_file_that_is_not_there_and_no_file_are_refused():
    assert "cannot read nowhere.yaml" in rollout("-c", "nowhere.yaml", code=2).stderr
    assert "give the settings with -c" in rollout(code=2).stderr
    assert "results holds no rollout" in rollout("--resume", code=2).stderr


@pytest.mark.parametrize(
    ("tag", "seconds", "says"),
    [
        ("own:RaisesInReset", 3, "no level today"),
        ("own:Nonsense", 3, "env.step"),
        ("own:Hangs", 8, "in a step of its environment for"),  # all have begun by then, on a busy machine too
    ],
)
def test_an_environment_that_never_works_ends_the_run_by_its_deadline_and_is_named(tag: str, seconds: int, says: str):
    done = rollout(
        "-c", "frozen_lake.yaml", "--set", f"train_env_manager.tags=['{tag}']", "--set", f"batch_seconds={seconds}",
        "--set", "max_refills=1", "--workers", "2", "--no-fail-fast", "--name", "broken", code=3,
    )  # fmt: skip
    text = " ".join(done.stdout.replace("│", " ").split())
    assert f"no batch after {seconds} s" in text
    assert tag in text
    assert says in text
    assert "outrider rollout --resume broken" in text


def test_groups_that_a_filter_drops_are_told_with_the_reason():
    *_, end = new("--set", "filters=[own:drops_all]", "--set", "batch_seconds=2", "--name", "picky", code=3)
    assert end["steps"] == 0
    assert end["dropped"]["filtered"]["n"] >= N_GROUPS
    assert "never good enough" in end["dropped"]["filtered"]["latest"]
    assert end["tokens"]["filtered"] > 0


def test_everything_is_checked_and_nothing_run_in_a_dry_run():
    found = json.loads(
        rollout("-c", "frozen_lake.yaml", "--dry-run", "--set", "custom_envs.FrozenLake.penalty=-1").stdout
    )
    assert found["settings"]["custom_envs"]["FrozenLake"]["penalty"] == -1
    assert not Path("results").exists()


def page_data(path: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', Path(path).read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


async def test_the_timeline_shows_every_attempt_in_its_slot_and_every_batch():
    new("--steps", "3", "--name", "drawn", "--train-seconds", "0.1", "--timeline", "slots.html",
        "--set", "model=builtin:random?latency=0.01", "--validate-every", "3")  # fmt: skip
    data = page_data("slots.html")
    async with open_store("sqlite:///results/drawn/store.db", create=False) as store:
        rollouts = await store.query_rollouts()
        attempts = [attempt for one in rollouts for attempt in await store.query_attempts(one.rollout_id)]
    assert len(data["attempts"]) == len(attempts)
    assert Counter(row[2] for row in data["attempts"]) == Counter(attempt.rollout_id for attempt in attempts)
    assert len([row for row in data["attempts"] if row[2].startswith("drawn-val-3-")]) == 4
    assert [(kind, label) for _, kind, label in data["marks"]] == [
        ("delivered", "batch 0"), ("published", "v1"), ("delivered", "batch 1"), ("published", "v2"),
        ("delivered", "batch 2"), ("published", "v3"),
    ]  # fmt: skip
    assert len(data["training"]) == 3
    assert all(end - begin >= 100 for begin, end, _ in data["training"])
    phases = [data["phases"][number] for row in data["attempts"] for number in row[7][::2]]
    assert {"reset", "held", "model"} <= set(phases)
    for row in range(len(data["rows"])):  # no two attempts share a slot
        stays = sorted((one[1], one[1] + sum(one[7][1::2])) for one in data["attempts"] if one[0] == row)
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(stays))


def test_on_a_terminal_it_shows_slots_groups_tokens_and_the_version():
    code, text = run_on_terminal(
        [*OUTRIDER, "rollout", "-c", "frozen_lake.yaml", "--steps", "2", "--train-seconds", "0.7", "--name", "seen"]
    )
    assert code == 0, text
    for part in (
        "step 2: reward",
        "of 8 busy",
        "of 4 groups",
        "the trainer trains",
        "0 surplus",
        "version 1",
        "calls/s",
    ):
        assert part in text
    assert "Traceback" not in text


def status(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*OUTRIDER, "status", "--store", "sqlite:///results/stuck/store.db", *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)


def test_status_names_what_a_ledger_waits_for():
    with started(
        "-c", "frozen_lake.yaml", "--set", "train_env_manager.tags=['own:Hangs']", "--workers", "2", "--name", "stuck",
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while True:
                if Path("results/stuck/store.db").exists():
                    (ledger,) = json.loads(status("--json").stdout)["ledgers"] or [{"phases": {"env": 0}}]
                    if ledger["phases"]["env"] == 8:
                        break
                assert time.monotonic() < deadline
                time.sleep(0.1)
            shown = status().stdout
        finally:
            kill_all_of(process)
    assert (ledger["name"], ledger["version"], ledger["epoch"]) == ("stuck", 0, 1)
    assert ledger["groups"]["opened"] == 4
    assert set(ledger["tokens"]) == {"trained", "stale", "filtered", "failed", "surplus", "aborted", "open"}
    oldest = ledger["live"][0]
    assert (oldest["tag"], oldest["phase"]) == ("own:Hangs", "env")
    assert oldest["rollout_id"].startswith(oldest["group_id"])
    assert [one["since"] for one in ledger["live"]] == sorted(one["since"] for one in ledger["live"])
    assert {one["worker_id"].partition("@")[0] for one in ledger["live"]} == {"0", "1"}
    for part in ("Ledger stuck", "4 opened", "What stuck waits for", "stuck-0.0", "own:Hangs"):
        assert part in shown


def test_the_timeline_is_drawn_in_a_browser_and_tells_what_a_bar_is():
    from playwright.sync_api import sync_playwright

    from outrider.pool.browser.executable import find_chromium

    new("--steps", "1", "--name", "drawn", "--timeline", "slots.html", "--set", "model=builtin:random?latency=0.05")
    data = page_data("slots.html")
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1680, "height": 1000})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(Path("slots.html").absolute().as_uri())
        canvas = page.locator("#chart")
        box = canvas.bounding_box()
        assert box is not None
        row, began, rollout_id, group = data["attempts"][0][:4]
        model = data["phases"].index("model")
        at, lengths = began, data["attempts"][0][7]
        for phase, length in zip(lengths[::2], lengths[1::2], strict=True):
            if phase == model:
                break
            at += length
        across = 150 + (at + length / 2) / data["span"] * (box["width"] - 158)
        page.mouse.move(box["x"] + across, box["y"] + 58 + 18 * row + 9)
        tip = page.locator("#tip").inner_text()
        browser.close()
    assert said == []
    for part in ("model for", f"rollout {rollout_id}", f"group {data['groups'][group]}", "tag FrozenLake", "version 0"):
        assert part in tip
