"""What `outrider rollout` tells: a line a step, and a picture of the moment."""

import io
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from outrider.cli.rollout_trainer import Step
from outrider.cli.rollout_view import (
    JsonRolloutView,
    LiveRolloutView,
    Moment,
    open_rollout_view,
    step_text,
    validation_text,
)
from outrider.core.account import Fate
from outrider.runner.meter import Reading
from outrider.train.status import SchedulerStatus, what_blocks
from outrider.train.validation import TagResult, ValidationResult
from outrider.train.watch import Phase, Standing

NOW = datetime(2026, 1, 1, tzinfo=UTC)

STEP = Step(
    step=3, batch=2, version=2, published=3, groups=("r-4", "r-5"), n_trajectories=8, n_samples=8, reward=0.25,
    wait_seconds=1.5, staleness_mean=0.5, staleness_max=1, tokens={Fate.TRAINED: 900, Fate.SURPLUS: 100}, in_loss=900,
    masked=4000, text=0, zero_advantage=0.5, metrics={"batch/reward": 0.25}, delivered_at=NOW, published_at=NOW,
)  # fmt: skip

STATUS = SchedulerStatus(
    version=2, is_training=False, is_paused=False, n_batches=2, n_opened=3, n_complete=1, n_wanted=2, n_held=1,
    phases={Phase.HELD: 1, Phase.MODEL: 5}, n_slots=8, n_bytes=0, tokens={Fate.TRAINED: 1800}, dropped={"filtered": 4},
    blocking=[
        Standing(
            group_id="r-4", rollout_id="r-4.1", attempt_id="at-1", worker_id="0@here:1", tag="FrozenLake",
            phase=Phase.ENV, since=NOW - timedelta(seconds=42),
        )
    ],
)  # fmt: skip


def moment(status: SchedulerStatus = STATUS) -> Moment:
    return Moment(
        at=NOW.timestamp(), n_done=2, n_steps=20, n_slots=8, n_ended=16, status=status, reading=Reading(calls=10)
    )


def test_a_batch_that_waits_for_older_groups_is_not_said_to_lack_any():
    said = what_blocks(replace(STATUS, n_complete=127, n_wanted=32), NOW)
    assert said.startswith("127 groups are complete, enough for a batch of 32, but older ones")
    assert "r-4.1" in said


def picture(*moments: Moment) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    with LiveRolloutView(console) as view:
        view.step(STEP)
        for one in moments:
            view.update(one)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_a_step_is_a_line():
    assert step_text(STEP) == (
        "step 3: reward 0.250 of 8 in 2 groups, waited 1.50 s, staleness 0.50 (at most 1), "
        "900 tokens in the loss (100 surplus), now version 3"
    )


def test_a_validation_is_a_line():
    tag = TagResult(n=4, n_scored=3, n_failed=1, n_unfinished=0, reward=0.5, rewards=(0.5, 0.5, 0.5))
    none = TagResult(n=2, n_scored=0, n_failed=2, n_unfinished=0, reward=None, rewards=())
    result = ValidationResult(version=5, seconds=2.0, tags={"FrozenLake": tag, "Sokoban": none})
    text = validation_text(result)
    assert text == "validated version 5 in 2.0 s: FrozenLake 0.500 of 3/4, Sokoban no score of 0/2"


def test_the_picture_shows_slots_groups_the_batch_tokens_and_what_blocks():
    text = picture(moment())
    for part in (
        "1 of 2 groups; the trainer waits",
        "6 of 8 busy: 0 reset, 1 held, 5 model, 0 env, 0 score",
        "3 open, 1 complete, 4 dropped as filtered",
        "1,800 trained, 0 stale",
        "version 2, staleness 0.50 (at most 1)",
        "waits for r-4.1 (FrozenLake, worker 0@here:1): in a step of its environment for 42 s",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "says"), [({"is_training": True}, "the trainer trains"), ({"is_paused": True}, "paused")]
)
def test_the_picture_says_what_the_trainer_does(changes: dict[str, Any], says: str):
    assert says in picture(moment(replace(STATUS, **changes)))


def test_nothing_blocks_while_the_trainer_trains_or_for_a_moment_only():
    assert "waits for" not in picture(moment(replace(STATUS, is_training=True)))
    soon = replace(STATUS.blocking[0], since=NOW - timedelta(seconds=1))
    assert "waits for" not in picture(moment(replace(STATUS, blocking=[soon])))


def test_for_scripts_a_step_is_json_and_all_else_goes_to_standard_error(capsys: pytest.CaptureFixture[str]):
    view = JsonRolloutView()
    view.line("a note")
    view.step(STEP)
    view.update(moment())
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["kind"], found["batch"], found["groups"]) == ("step", 2, ["r-4", "r-5"])
    assert found["tokens"] == {"trained": 900, "surplus": 100}
    assert err == "a note\n"


def test_warnings_are_lines_of_the_view(capsys: pytest.CaptureFixture[str]):
    with open_rollout_view(as_json=True):
        logging.getLogger("outrider.train").warning("the store is %s", "away")
    assert capsys.readouterr().err == "warning: the store is away\n"
