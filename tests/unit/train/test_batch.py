import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations import ids_turn, packed, tokens_between, trajectory_of, turn
from outrider.core.chat import assistant, user
from outrider.core.errors import InvalidInput
from outrider.core.turn import StepRecord
from outrider.train import AdvantageRule, Batch, SampledTrajectory, sampled
from processes import output_of


def member(name: str, group: str | None, reward: float | None, *turns: Any, **fields: Any) -> SampledTrajectory:
    records = turns or (ids_turn([1, 2], [3, 4]),)
    return sampled(trajectory_of(*records, rollout_id=name, group_id=group, reward=reward, **fields))


@pytest.fixture
def batch() -> Batch:
    """Two groups. `b` has two samples, its first turn is older than its second; `d` has text only."""
    forked = (
        ids_turn([1], [2], policy_version=1),
        ids_turn([1, 2, 9], [3, 4], policy_version=2),
        ids_turn([1, 2, 8], [5], policy_version=2),
    )
    text = turn((user("u"),), assistant("x"), tokens={}, completion_tokens=7)
    return Batch.of(
        [
            member("a", "g", 0.0, ids_turn([1], [2, 3, 4], policy_version=3)),
            member("b", "g", 1.0, *forked),
            member("c", "h", 0.0, ids_turn([6, 7], [8]), tag="t", seed=5),
            member("d", "h", 4.0, text, tag="t", seed=5),
        ],
        version=3,
        rule=AdvantageRule(scale="none"),
        group_size=2,
    )


def test_a_batch_is_whole_groups_with_their_trajectories(batch: Batch):
    assert [(group.group_id, [one.rollout_id for one in group.trajectories]) for group in batch.groups] == [
        ("g", ["a", "b"]),
        ("h", ["c", "d"]),
    ]
    assert (batch.tags, batch.groups[1].seed, batch.agents) == ((None, "t"), 5, ("",))
    assert [sample.rollout_id for sample in batch.rows] == ["a", "b", "b", "c"]
    assert [sample.rollout_id for sample in batch.samples] == ["a", "b", "b", "c", "d"]


def test_rows_are_padded_on_the_right(batch: Batch):
    arrays = batch.to_numpy(pad_id=99)
    # The turn with the shorter prompt, or of equally long ones the earlier, continues: [1, 2, 9] does.
    assert arrays["tokens"].tolist() == [[1, 2, 3, 4, 99], [1, 2, 9, 3, 4], [1, 2, 8, 5, 99], [6, 7, 8, 99, 99]]
    assert arrays["attention_mask"].sum(1).tolist() == arrays["lengths"].tolist() == [4, 5, 4, 3]
    assert arrays["loss_mask"].astype(int).tolist() == [
        [0, 1, 1, 1, 0],
        [0, 1, 0, 1, 1],
        [0, 0, 0, 1, 0],
        [0, 0, 1, 0, 0],
    ]
    assert arrays["versions"].tolist()[1:3] == [[-1, 1, -1, 2, 2], [-1, 1, -1, 2, -1]]
    assert arrays["staleness"].tolist()[1:3] == [[0, 2, 0, 1, 1], [0, 2, 0, 1, 0]]
    assert arrays["position_ids"].tolist()[3] == [0, 1, 2, 0, 0]


def test_advantages_stand_on_the_tokens_of_the_loss(batch: Batch):
    arrays = batch.to_numpy()
    assert arrays["row_advantage"].tolist() == [-0.5, 0.5, 0.5, -2.0], "text counts in the baseline"
    assert arrays["advantages"].tolist() == (arrays["loss_mask"] * arrays["row_advantage"][:, None]).tolist()


def test_rows_know_their_trajectory_group_reward_and_age(batch: Batch):
    arrays = batch.to_numpy()
    assert arrays["row_trajectory"].tolist() == [0, 1, 1, 2]
    assert arrays["row_group"].tolist() == [0, 0, 0, 1]
    assert arrays["row_reward"].tolist() == [0, 1, 1, 0]
    assert arrays["row_weight"].tolist() == [1, 0.5, 0.5, 1]
    assert arrays["row_staleness"].tolist() == [0, 2, 2, 3]
    assert batch.staleness.tolist() == [0, 2, 3, 3]


def test_rows_are_padded_on_the_left_if_wanted(batch: Batch):
    right, left = batch.to_numpy(pad="right"), batch.to_numpy(pad="left")
    for name in ("tokens", "loss_mask", "logprobs", "advantages", "versions", "staleness", "position_ids"):
        for row, length in enumerate(right["lengths"]):
            assert left[name][row, -length:].tolist() == right[name][row, :length].tolist()
    assert left["tokens"].tolist()[3] == [0, 0, 6, 7, 8]
    assert left["attention_mask"].astype(int).tolist()[3] == [0, 0, 1, 1, 1]


def test_rows_are_packed_without_padding(batch: Batch):
    packed_rows, padded = batch.to_numpy(pad=None), batch.to_numpy()
    assert packed_rows["cu_seqlens"].tolist() == [0, 4, 9, 13, 16]
    assert packed_rows["cu_seqlens"].dtype == np.int32
    assert "attention_mask" not in packed_rows
    for name in ("tokens", "loss_mask", "logprobs", "advantages", "versions", "staleness", "position_ids"):
        assert packed_rows[name].tolist() == padded[name][padded["attention_mask"]].tolist()


def test_lengths_can_be_rounded_up(batch: Batch):
    assert batch.to_numpy(pad_to_multiple_of=8)["tokens"].shape == (4, 8)
    assert batch.to_numpy(pad_to_multiple_of=5)["tokens"].shape == (4, 5)
    assert batch.to_numpy(pad_to_multiple_of=8, max_length=5)["tokens"].shape == (4, 8)


def test_a_row_that_is_too_long_is_an_error_that_names_it(batch: Batch):
    assert batch.to_numpy(max_length=5)["n_cut"] == 0
    with pytest.raises(InvalidInput, match=r"3 of 4 rows have more than 3 tokens, the longest 5 \(rollout 'b'"):
        batch.to_numpy(max_length=3)


@pytest.mark.parametrize("pad", ["right", "left", None])
def test_a_row_that_is_cut_loses_its_end_and_says_so(batch: Batch, pad: Any):
    arrays = batch.to_numpy(pad=pad, max_length=3, overlong="truncate")
    assert arrays["lengths"].tolist() == [3, 3, 3, 3]
    assert arrays["is_cut"].tolist() == [True, True, True, False]
    assert arrays["tokens"].reshape(4, 3).tolist() == [[1, 2, 3], [1, 2, 9], [1, 2, 8], [6, 7, 8]]
    assert arrays["n_cut"] == 1 + 2 + 1, "tokens of the loss that nobody trains on"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": "middle"}, "pad is 'middle'"),
        ({"overlong": "drop"}, "overlong is 'drop'"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": True}, "max_length is True"),
        ({"pad_to_multiple_of": -8}, "pad_to_multiple_of is -8"),
        ({"pad": None, "pad_to_multiple_of": 8}, "packed rows are not padded"),
        ({"pad_id": -1}, "pad_id is -1"),
        ({"pad_id": 2**31}, "pad_id is 2147483648"),
    ],
)
def test_a_layout_that_there_is_not_is_refused(batch: Batch, options: dict[str, Any], message: str):
    with pytest.raises(InvalidInput, match=message):
        batch.to_numpy(**options)


def test_tokens_are_accounted_for(batch: Batch):
    account = batch.token_accounting()
    assert (account.trained, account.masked, account.text, account.without_logprobs) == (8, 8, 7, 0)
    arrays = batch.to_numpy()
    assert account.trained == arrays["loss_mask"].sum()
    assert account.trained + account.masked == arrays["lengths"].sum()
    assert account.generated == 15
    assert batch.report.n_forks == 1


def test_unknown_logprobs_stay_unknown():
    unknown = turn((), assistant(""), tokens=tokens_between(packed([1]), packed([2, 3]), []))
    batch = Batch.of([member("a", None, 1.0, unknown)])
    logprobs = batch.to_numpy()["logprobs"][0]
    assert logprobs[0] == 0
    assert np.isnan(logprobs[1:]).all()
    assert batch.token_accounting().without_logprobs == 2


def test_a_trajectory_without_turns_counts_in_the_baseline():
    silent = sampled(trajectory_of(StepRecord(observation=(user("o"),)), rollout_id="s", group_id="g", reward=0.0))
    batch = Batch.of([member("a", "g", 1.0), member("b", "g", 0.5), silent], rule=AdvantageRule(scale="none"))
    assert batch.to_numpy()["row_advantage"].tolist() == [0.5, 0.0]
    assert batch.staleness.tolist() == [0, 0, 0]


def test_agents_can_be_compared_apart():
    turns = [("planner", ids_turn([1], [2])), ("critic", ids_turn([3], [4]))]
    rule = AdvantageRule(key="group+agent", scale="none")
    batch = Batch.of([member("a", "g", 0.0, *turns), member("b", "g", 1.0, turns[0])], rule=rule)
    arrays = batch.to_numpy()
    assert batch.agents == ("planner", "critic")
    assert arrays["row_agent"].tolist() == [0, 1, 0]
    assert arrays["row_advantage"].tolist() == [-0.5, 0.0, 0.5]
    assert batch.advantages.single == (("g", "critic"),)


def test_zero_variance_is_reported_by_group():
    batch = Batch.of([member(name, "g", 0.1) for name in "abc"] + [member("d", None, 2.0)])
    assert batch.to_numpy()["advantages"].any() == np.False_
    assert batch.advantages.zero_variance == (("g", ""),)
    assert batch.advantages.single == (("d", ""),)


def test_a_batch_of_nothing_is_empty():
    batch = Batch.of([])
    assert batch.to_numpy()["tokens"].shape == (0, 0)
    assert batch.to_numpy(pad=None)["cu_seqlens"].tolist() == [0]
    assert batch.to_numpy(pad="left", max_length=4)["loss_mask"].dtype == np.bool_
    assert batch.token_accounting().generated == 0


@pytest.mark.parametrize(
    ("trajectories", "options", "message"),
    [
        ([member("a", "g", None)], {}, "rollout 'a' has no reward"),
        ([member("a", "g", math.nan)], {}, "the reward of row 0 is nan"),
        ([member("a", "g", 1.0), member("a", "g", 1.0)], {}, "rollout 'a' is given 2 times"),
        ([member("a", "g", 1.0)], {"group_size": 2}, "group 'g' has 1 trajectories, not 2"),
        ([member("a", "g", 1.0, tag="t"), member("b", "g", 1.0, tag="u")], {}, "group 'g' mixes tags or seeds"),
        ([member("a", "g", 1.0, seed=1), member("b", "g", 1.0, seed=2)], {}, "group 'g' mixes tags or seeds"),
        ([member("a", "g", 1.0, ids_turn([1], [2], policy_version=4))], {"version": 3}, "policy version 4, and .* 3"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(trajectories: list[SampledTrajectory], options: Any, message: str):
    with pytest.raises(InvalidInput, match=message):
        Batch.of(trajectories, **options)


def test_tensors_are_made_of_the_very_arrays(batch: Batch):
    class Tensor:
        """Like torch's: it shares memory, and refuses what it could not share."""

        def __init__(self, array: np.ndarray) -> None:
            assert array.flags.writeable
            assert array.dtype in (np.int32, np.int64, np.float32, np.bool_)
            assert all(stride >= 0 for stride in array.strides)
            self.array = array

    for layout in ({}, {"pad": "left", "pad_id": 3}, {"pad": None}):
        tensors = batch.to_torch(from_numpy=Tensor, **layout)
        arrays = batch.to_numpy(**layout)
        assert tensors.keys() == arrays.keys()
        assert all(np.array_equal(tensors[name].array, array) for name, array in arrays.items())


def test_arrays_are_new_each_time(batch: Batch):
    batch.to_numpy(pad=None)["tokens"][:] = 0
    assert batch.to_numpy(pad=None)["tokens"].any()


@pytest.mark.parametrize(
    ("library", "use", "advice"),
    [
        ("numpy", "import outrider.train", "[train]'"),
        ("torch", "from outrider.train import Batch; Batch.of([]).to_torch()", "pip install torch"),
    ],
)
def test_without_its_library_a_part_says_what_to_install(library: str, use: str, advice: str):
    source = f"""
import sys
from outrider.core.errors import InvalidInput
sys.modules[{library!r}] = None
try:
    {use}
except InvalidInput as exc:
    print(exc)
"""
    assert advice in output_of(source)


def test_importing_outrider_brings_no_numpy():
    assert output_of("import sys; from outrider import *; print('numpy' in sys.modules)").strip() == "False"


lengths = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6)


@given(lengths, st.sampled_from(["right", "left", None]), st.none() | st.integers(1, 8), st.integers(1, 4))
def test_whatever_the_layout_rows_come_back_from_it(sizes: Any, pad: Any, max_length: int | None, step: int):
    members = [
        member(str(i), "g", float(i), ids_turn(range(1, 1 + p), range(50, 50 + c))) for i, (p, c) in enumerate(sizes)
    ]
    batch = Batch.of(members)
    options = {} if pad is None else {"pad_to_multiple_of": step}
    arrays = batch.to_numpy(pad=pad, max_length=max_length, overlong="truncate", **options)
    for number, row in enumerate(batch.rows):
        kept = row.n_tokens if max_length is None else min(row.n_tokens, max_length)
        if pad is None:
            place: Any = slice(arrays["cu_seqlens"][number], arrays["cu_seqlens"][number + 1])
        else:
            width = arrays["tokens"].shape[1]
            assert width % step == 0
            place = (number, slice(0, kept) if pad == "right" else slice(width - kept, width))
        for name in ("tokens", "loss_mask", "logprobs", "versions"):
            assert arrays[name][place].tolist() == getattr(row, name)[:kept].tolist()
    assert arrays["loss_mask"].sum() + arrays["n_cut"] == batch.token_accounting().trained
