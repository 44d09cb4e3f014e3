import numpy as np
import pytest

from conversations import events_of, ids_turn, packed, packed_floats, result_event, tokens_between, trajectory_of, turn
from outrider.core.chat import Message, Role, assistant, system, user
from outrider.core.errors import InvalidInput
from outrider.core.turn import StepRecord, TurnRecord
from outrider.policy.scripted.tokens import decode
from outrider.train import Sample, sampled, samples_of

S, U = system("S"), user("U")


def bits(sample: Sample) -> str:
    return "".join(str(int(bit)) for bit in sample.loss_mask)


def test_turns_that_continue_are_one_sample_and_observations_are_not_trained():
    first = (S, U)
    second = (*first, assistant("ab"), user("o"))
    (sample,) = samples_of(events_of(turn(first, assistant("ab")), turn(second, assistant("c"))))
    text = "<|system|>S<|end|><|user|>U<|end|><|assistant|>ab<|end|><|user|>o<|end|><|assistant|>c<|end|>"
    assert decode(sample.tokens.tobytes()) == text
    assert bits(sample) == "0000000" + "111" + "0000" + "11"
    assert sample.turns == (0, 1)


def test_arrays_have_their_types_and_cannot_be_written_to():
    (sample,) = samples_of(events_of(ids_turn([1, 2], [3])))
    kinds = [array.dtype for array in (sample.tokens, sample.loss_mask, sample.logprobs, sample.versions)]
    assert kinds == [np.int32, np.bool_, np.float32, np.int32]
    for name in ("tokens", "loss_mask", "logprobs", "versions"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(sample, name)[0] = 1


def test_each_token_has_the_version_of_its_policy_and_its_logprob():
    events = events_of(ids_turn([1, 2], [3, 4], policy_version=5), ids_turn([1, 2, 3, 4, 9], [6], policy_version=7))
    (sample,) = samples_of(events)
    assert sample.versions.tolist() == [-1, -1, 5, 5, -1, 7]
    assert sample.logprobs.tolist() == [0, 0, 0, -0.125, 0, 0]


def test_one_id_that_differs_starts_a_new_sample():
    one, other = samples_of(events_of(ids_turn([1, 2], [3, 4]), ids_turn([1, 2, 3, 5, 9], [6])))
    assert one.tokens.tolist() == [1, 2, 3, 4]
    assert other.tokens.tolist() == [1, 2, 3, 5, 9, 6]
    assert (bits(one), bits(other)) == ("0011", "000001")


def test_a_retried_turn_repeats_the_shared_completion_as_context():
    events = events_of(
        ids_turn([1], [2], policy_version=1),
        ids_turn([1, 2, 3], [4], policy_version=2),
        ids_turn([1, 2, 3], [5], policy_version=3),
    )
    result = sampled(events)
    assert [(s.tokens.tolist(), bits(s), s.turns) for s in result.samples] == [
        ([1, 2, 3, 4], "0101", (0, 1)),
        ([1, 2, 3, 5], "0001", (2,)),
    ]
    assert result.samples[1].versions.tolist() == [-1, 1, -1, 3], "the repeated token keeps its version"
    assert result.samples[1].logprobs.tolist() == [0, 0, 0, 0]
    report = result.report
    assert (report.n_turns, report.n_sequences, report.n_forks) == (3, 2, 1)
    assert (report.n_trained, report.n_masked, report.merge_ratio) == (3, 5, 1.5)


def test_a_return_to_an_earlier_conversation_goes_on_there():
    events = events_of(ids_turn([1], [2]), ids_turn([7, 8], [9]), ids_turn([1, 2, 3], [4]), ids_turn([7, 8, 9], [5]))
    assert [sample.turns for sample in samples_of(events)] == [(0, 2), (1, 3)]


def test_a_fork_of_a_fork_knows_all_versions_before_it():
    events = events_of(
        ids_turn([1], [2], policy_version=1),
        ids_turn([1, 2], [3], policy_version=2),
        ids_turn([1, 2], [4], policy_version=3),
        ids_turn([1, 2, 4], [5], policy_version=4),
        ids_turn([1, 2, 4], [6], policy_version=5),
    )
    last = samples_of(events)[-1]
    assert (last.tokens.tolist(), bits(last)) == ([1, 2, 4, 6], "0001")
    assert last.versions.tolist() == [-1, 1, 3, 5]


def test_of_two_equal_ends_the_latest_open_one_goes_on():
    events = events_of(ids_turn([1], [2]), ids_turn([1], [2]), ids_turn([1, 2], [3]), ids_turn([1, 2], [4]))
    assert [sample.turns for sample in samples_of(events)] == [(0, 3), (1, 2)]


def test_agents_do_not_share_samples():
    events = events_of(("a", ids_turn([1], [2])), ("b", ids_turn([1, 2], [3])), ("a", ids_turn([1, 2], [4])))
    assert [(sample.agent, sample.turns) for sample in samples_of(events)] == [("a", (0, 2)), ("b", (1,))]


def test_a_turn_without_ids_is_kept_as_text_and_what_follows_goes_on():
    said = assistant("unseen")
    events = events_of(
        ids_turn([1], [2]),
        turn((S, U), said, tokens={}, completion_tokens=4, policy_version=3),
        ids_turn([1, 2, 8, 8, 8], [3]),
    )
    result = sampled(events)
    merged, text = result.samples
    assert (merged.turns, bits(merged)) == ((0, 2), "010001")
    assert text.is_text
    assert text.n_tokens == 0
    (only,) = text.text
    assert (only.index, only.request, only.reply, only.n_tokens, only.version) == (1, (S, U), said, 4, 3)
    report = result.report
    assert (report.n_text_turns, report.n_text, report.n_generated) == (1, 4, 6)


@pytest.mark.parametrize(
    "tokens",
    [
        {"prompt_ids": packed([1]), "completion_ids": packed([2]), "logprobs": packed_floats([0, 0])},
        {"prompt_ids": packed([1]), "completion_ids": packed([2])[:-1], "logprobs": b""},
        {"prompt_ids": packed([1])[:-1], "completion_ids": packed([2]), "logprobs": b""},
        {"prompt_ids": packed([-1]), "completion_ids": packed([2]), "logprobs": b""},
        {"prompt_ids": packed([1]), "completion_ids": packed([-2]), "logprobs": b""},
        {"prompt_ids": b"", "completion_ids": packed([2]), "logprobs": b""},
        {"prompt_ids": packed([1])},
        {"completion_ids": packed([1])},
    ],
)
def test_ids_that_cannot_be_right_are_no_ids(tokens: dict[str, bytes]):
    (sample,) = samples_of(events_of(turn((U,), assistant("x"), tokens=tokens)))
    assert sample.is_text


@pytest.mark.parametrize("logprobs", [[], [float("nan"), -1.0], [float("-inf"), -1.0]])
def test_logprobs_that_are_not_known_are_nan_and_counted(logprobs: list[float]):
    tokens = tokens_between(packed([1]), packed([2, 3]), logprobs)
    result = sampled(events_of(turn((U,), assistant("x"), tokens=tokens)))
    (sample,) = result.samples
    assert np.isnan(sample.logprobs).tolist() == [False, True, not logprobs]
    assert result.report.n_without_logprobs == (1 if logprobs else 2)


def test_history_that_was_tokenised_anew_is_reported_as_drift():
    said = (S, U, assistant("ab"), user("o"))
    kept = [turn((S, U), assistant("ab")), turn(said, assistant("c"))]
    assert sampled(events_of(*kept)).report.n_drifted == 0
    drifted = turn(said, assistant("c"), tokens=tokens_between(packed([1, 2]), packed([3])))
    result = sampled(events_of(kept[0], drifted))
    assert (result.report.n_drifted, result.report.n_sequences, result.report.merge_ratio) == (1, 2, 1.0)
    rewritten = turn((S, U, assistant("another"), user("o")), assistant("c"))
    assert sampled(events_of(kept[0], rewritten)).report.n_drifted == 0


def test_a_trajectory_says_whose_it_is_and_how_it_ended():
    trajectory = trajectory_of(ids_turn([1], [2]), rollout_id="r", group_id="g", reward=0.5, tag="t", seed=3)
    result = sampled(trajectory)
    (sample,) = result.samples
    assert (sample.rollout_id, sample.group_id, sample.reward) == ("r", "g", 0.5)
    assert (result.tag, result.seed, result.first_version, result.last_version) == ("t", 3, 0, 0)
    assert sampled(trajectory, reward=2.0).samples[0].reward == 2.0


def step(**fields: bool) -> StepRecord:
    return StepRecord(observation=(user("o"),), **fields)


@pytest.mark.parametrize(
    ("events", "truncated"),
    [
        (events_of(ids_turn([1], [2]), step()), False),
        (events_of(ids_turn([1], [2]), step(truncated=True)), True),
        (events_of(ids_turn([1], [2]), step(truncated=True, terminated=True)), False),
        (events_of(ids_turn([1], [2], finish_reason="length")), True),
        ((*events_of(ids_turn([1], [2])), result_event("terminated")), False),
        ((*events_of(ids_turn([1], [2])), result_event("max_turns")), True),
        ((*events_of(ids_turn([1], [2])), result_event("context")), True),
    ],
)
def test_a_sample_is_truncated_if_a_limit_ended_it(events: tuple[object, ...], truncated: bool):
    (sample,) = samples_of(events)
    assert sample.truncated is truncated


def test_the_reason_for_stopping_comes_along():
    assert samples_of((*events_of(ids_turn([1], [2])), result_event("answered")))[0].stop_reason == "answered"


def test_nothing_said_is_nothing_to_train_on():
    result = sampled(events_of(step()))
    assert (result.samples, result.first_version, result.report.merge_ratio) == ((), None, 0.0)
    assert samples_of(()) == ()


@pytest.mark.parametrize("version", [-1, 2**31])
def test_a_version_that_cannot_be_one_is_refused(version: int):
    with pytest.raises(InvalidInput, match=f"turn 0 is by policy version {version}"):
        samples_of(events_of(ids_turn([1], [2], policy_version=version)))


def test_samples_are_equal_if_all_of_them_is():
    one, same = (samples_of(events_of(ids_turn([1], [2])))[0] for _ in range(2))
    unknown = [
        samples_of(events_of(turn((), assistant(""), tokens=tokens_between(packed([1]), packed([2]), []))))[0]
    ] * 2
    assert one == same
    assert unknown[0] == unknown[1]
    assert one != unknown[0]
    assert one != samples_of(events_of(ids_turn([1], [3])))[0]
    assert one != "a sample"


def test_reports_add_up():
    one = sampled(events_of(ids_turn([1], [2]))).report
    assert one + one == sampled(events_of(ids_turn([1], [2]), ids_turn([5], [6]))).report


def test_messages_of_any_kind_may_stand_in_a_text_turn():
    odd = Message(role=Role.TOOL, content="x", tool_call_id="c")
    record = TurnRecord(kept=0, added=(odd,), reply=assistant("r"))
    assert samples_of(events_of(record))[0].text[0].request == (odd,)
