"""The example of training: it learns to cross lakes it has not seen, synchronously and asynchronously."""

import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from markdown import blocks
from outrider.core.chat import assistant, system, user
from outrider.policy import Sampling

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "train_frozen_lake"
GUIDE = ROOT / "docs" / "guides" / "training.md"

N_STEPS = 15
SVG = "{http://www.w3.org/2000/svg}"

LAKE = "Turn 1:\nP_O_\n____\nO__G\n____\nActions left: 10"


class Example(NamedTuple):
    policy: ModuleType
    train: ModuleType
    curves: ModuleType


@pytest.fixture
def example() -> Iterator[Example]:
    """The modules of the example, as they are imported in its folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield Example(*(importlib.import_module(name) for name in Example._fields))
    finally:
        sys.path.remove(str(FOLDER))
        for name in Example._fields:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [pytest.param((), 0, marks=pytest.mark.soak), (("1",), 1)],
    ids=["synchronous", "asynchronous"],
)
def test_it_learns_to_cross_lakes_it_has_not_seen(arguments: tuple[str, ...], bound: int):
    command = [sys.executable, FOLDER / "train.py", *arguments]
    began = children_cpu_seconds()
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=200, check=True)
    steps = re.findall(r"^step +(\d+) +success +(\d+)% +staleness ([\d.]+) ", done.stdout, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, N_STEPS + 1))
    success = [int(percent) for _, percent, _ in steps]
    assert success[0] < 45
    assert np.mean(success[-5:]) > 80
    assert max(float(staleness) for _, _, staleness in steps) <= bound
    assert re.search(r"^on \d+ other lakes, greedily: \d+%$", done.stdout, re.MULTILINE)
    assert children_cpu_seconds() - began < 60  # on a core of its own, that is a minute


def children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def test_what_is_said_goes_on_token_by_token(example: Example):
    policy = example.policy.LinearPolicy()
    opening = (system("the rules"), user(LAKE))
    first = await policy.complete(opening, sampling=Sampling(seed=1))
    second = await policy.complete((*opening, first.message, user(LAKE)), sampling=Sampling(seed=2))
    assert first.tokens is not None
    assert second.tokens is not None
    assert second.tokens.prompt_ids.startswith(first.tokens.prompt_ids + first.tokens.completion_ids)
    assert np.exp(np.frombuffer(first.tokens.logprobs, "<f4")) == pytest.approx(0.25)


def test_the_policy_sees_what_lies_beside_it_and_where_the_goal_is(example: Example):
    policy = example.policy
    *beside, row, column = policy.seen(LAKE)
    assert [policy.BESIDE[(token - policy.SIGHTS) % 4] for token in beside] == [".", "_", ".", "_"]
    assert [token - policy.GOAL for token in (row, column)] == [2, 5]


def batch_of(example: Example, action: int, advantage: float, logprob: float) -> dict[str, np.ndarray]:
    """One trajectory of one turn."""
    tokens = np.array([[*example.policy.tokens_of([user(LAKE)]), action]], np.int32)
    mask = np.zeros_like(tokens, np.bool_)
    mask[0, -1] = True
    return {
        "tokens": tokens,
        "loss_mask": mask,
        "advantages": np.where(mask, advantage, 0).astype(np.float32),
        "logprobs": np.where(mask, logprob, 0).astype(np.float32),
    }


@pytest.mark.parametrize("advantage", [1.0, -1.0])
async def test_an_update_makes_what_went_well_likelier_up_to_the_clip(example: Example, advantage: float):
    policy = example.policy.LinearPolicy(learning_rate=0.001, clip=0.2, n_epochs=1000)
    right = list(example.policy.ACTIONS).index("Right")
    policy.update(batch_of(example, right, advantage, np.log(0.25)))
    logits = policy.weights[example.policy.tokens_of([user(LAKE)])].sum(axis=0)
    chances = np.exp(logits) / np.exp(logits).sum()
    assert chances[right] / 0.25 == pytest.approx(1 + advantage * 0.2, abs=0.02)


async def test_a_policy_that_has_moved_on_learns_nothing_more_from_an_old_batch(example: Example):
    policy = example.policy.LinearPolicy()
    policy.update(batch_of(example, 3, 1.0, np.log(0.1)))
    assert not policy.weights.any()
    assert policy.version == 1


def test_a_checkpoint_brings_weights_and_version_back(example: Example, tmp_path: Path):
    policy, restored = example.policy.LinearPolicy(), example.policy.LinearPolicy()
    policy.update(batch_of(example, 3, 1.0, np.log(0.25)))
    policy.save(tmp_path / "1.npz")
    restored.load(tmp_path / "1.npz")
    assert restored.version == 1
    assert np.array_equal(restored.weights, policy.weights)
    assert [path.name for path in tmp_path.iterdir()] == ["1.npz"]


async def test_at_temperature_zero_it_takes_the_likeliest_action(example: Example):
    policy = example.policy.LinearPolicy()
    policy.weights[:, 1] = 1.0
    completion = await policy.complete((user(LAKE),), sampling=Sampling(temperature=0.0))
    assert completion.message == assistant("<answer>Down</answer>")


def test_the_curves_are_drawn_side_by_side(example: Example):
    step = example.train.Step
    curves = {
        name: [step(number=n, success=n / 4, staleness=0.0, seconds=n * pace) for n in range(1, 5)]
        for name, pace in (("synchronous", 2.0), ("asynchronous", 1.0))
    }
    picture = ET.fromstring(example.curves.draw(curves))
    lines = picture.findall(f"{SVG}polyline")
    assert [line.findtext(f"{SVG}title") for line in lines] == ["synchronous", "asynchronous"] * 2
    assert len({line.get("points") for line in lines}) == 3  # by step they are the same here


def test_the_loop_in_the_guide_is_that_of_the_example():
    shown = {block.file: block.code for block in blocks(GUIDE)}
    assert shown["train.py"] == (FOLDER / "train.py").read_text()
    assert shown["frozen_lake.yaml"] == (FOLDER / "frozen_lake.yaml").read_text()
