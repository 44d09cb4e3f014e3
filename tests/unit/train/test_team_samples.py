"""Samples and batches of teams: lineage, order, what was not used, agents, rounds and policies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversations import NOW, events_of, ids_turn, trajectory_of, turn
from outrider.core.chat import assistant, user
from outrider.core.errors import InvalidInput
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.turn import CALL, CallOutcome, CallRecord, TurnRecord, to_data
from outrider.train import AdvantageRule, Batch, SampleCall, SampledTrajectory, read_scheduler_config, sampled


def called(
    name: str, order: int, prompt: Sequence[int], completion: Sequence[int], **fields: Any
) -> tuple[str, TurnRecord]:
    """A call of the agent `name`, which its id begins with."""
    record = CallRecord(
        id=fields.pop("id", f"{name}.{fields.get('round', 0)}.0"),
        agent=name,
        order=(order,),
        **{key: fields.pop(key) for key in ("round", "policy", "route", "reads", "dropped") if key in fields},
    )
    return name, ids_turn(prompt, completion, call=record, completion_tokens=len(completion), **fields)


def outcome(of: CallOutcome) -> RecordedEvent:
    return RecordedEvent(
        kind=EventKind.LOG, at=NOW, name=CALL, data=to_data(of), rollout_id="ro", attempt_id="at-1", index=99
    )


def team_events(
    *turns: tuple[str, TurnRecord], became: Mapping[str, CallOutcome | None] | None = None
) -> tuple[Any, ...]:
    """The turns in the order in which they ended, and what became of them: all were used unless something is said."""
    ids = [record.call.id for _, record in turns if record.call is not None]
    told = {call_id: CallOutcome(id=call_id) for call_id in ids} | dict(became or {})
    return (*events_of(*turns), *(outcome(one) for one in told.values() if one is not None))


def member(name: str, reward: float, *turns: tuple[str, TurnRecord], group: str = "g") -> SampledTrajectory:
    whole = trajectory_of(rollout_id=name, group_id=group, reward=reward)
    return sampled(type(whole)(rollout=whole.rollout, attempt=None, events=team_events(*turns)))


def test_a_sample_tells_which_calls_it_is_and_what_became_of_them():
    first = called("solver", 1, [1], [2], round=0)
    judged = called("critic", 2, [5], [6], round=0, policy="judge", reads=("solver.0.0",), dropped=("x.0.0",))
    last = called("solver", 3, [7], [8], round=1, route="try again")
    became = {"critic.0.0": CallOutcome(id="critic.0.0", verdict="reject")}
    events = team_events(first, judged, last, became=became)
    samples = sampled(events).samples
    assert [(sample.agent, sample.turns, sample.round, sample.policy) for sample in samples] == [
        ("solver", (0,), 0, ""),
        ("solver", (2,), 1, ""),
        ("critic", (1,), 0, "judge"),
    ]
    assert samples[1].calls == (SampleCall(id="solver.1.0", round=1, route="try again"),)
    assert samples[2].calls == (
        SampleCall(id="critic.0.0", verdict="reject", reads=("solver.0.0",), dropped=("x.0.0",), policy="judge"),
    )


def test_calls_stand_in_the_order_of_the_program_whenever_they_ended():
    calls = [called("a", 1, [1], [2]), called("b", 2, [3], [4]), called("a", 3, [5], [6], id="a.0.1")]
    forwards, backwards = sampled(team_events(*calls)), sampled(team_events(*reversed(calls)))
    assert forwards == backwards
    assert [(sample.agent, sample.turns) for sample in backwards.samples] == [("a", (0,)), ("a", (2,)), ("b", (1,))]


def test_calls_of_an_agent_whose_ids_continue_are_one_sample():
    calls = [called("a", 1, [1], [2]), called("b", 2, [1, 2], [9]), called("a", 3, [1, 2, 3], [4], round=1)]
    merged, other = sampled(team_events(*calls)).samples
    assert (merged.tokens.tolist(), merged.turns) == ([1, 2, 3, 4], (0, 2))
    assert [call.id for call in merged.calls] == ["a.0.0", "a.1.0"]
    assert merged.round == 0, "where it begins"
    assert other.agent == "b"


def test_calls_of_two_policies_share_no_sample_even_if_one_agent_made_them():
    calls = [called("a", 1, [1], [2]), called("a", 2, [1, 2], [3], id="a.0.1", policy="p")]
    assert [(sample.policy, sample.turns) for sample in sampled(team_events(*calls)).samples] == [
        ("", (0,)),
        ("p", (1,)),
    ]


def test_calls_that_the_program_went_on_without_are_in_no_sample_and_counted():
    became = {"b.0.0": CallOutcome(id="b.0.0", used=False), "c.0.0": None}
    calls = [called("b", 1, [3], [4, 5], policy="p"), called("c", 2, [3], [4]), called("a", 3, [1], [2])]
    result = sampled(team_events(*calls, became=became))
    (sample,) = result.samples
    assert (sample.agent, sample.turns) == ("a", (0,)), "numbers do not depend on what was thrown away"
    report = result.report
    assert (report.n_turns, report.n_unused, report.n_unused_tokens) == (1, 2, 3)
    assert report.n_generated == 1 + 3
    assert result.reports["p"].n_unused == 1


def test_calls_without_ids_are_a_sample_each():
    calls = [CallRecord(id=f"a.{n}.0", agent="a", order=(n,), round=n) for n in range(2)]
    texts = [("a", turn((user("?"),), assistant("x"), tokens={}, call=call)) for call in calls]
    samples = sampled(team_events(*texts)).samples
    assert [(sample.is_text, sample.turns, sample.round) for sample in samples] == [(True, (0,), 0), (True, (1,), 1)]


def solved(name: str, reward: float, n_solved: int, *, is_judged: bool = True, group: str = "g") -> SampledTrajectory:
    """A solver that speaks so often, and a critic that speaks once, by a policy of its own."""
    turns = [called("solver", n, [n + 10], [1], round=n) for n in range(n_solved)]
    critic = called("critic", 99, [5], [6, 7], policy="judge", policy_version=1)
    return member(name, reward, *turns, *([critic] if is_judged else []), group=group)


BATCH = Batch.of(
    [solved("x", 1.0, 3), solved("y", 0.0, 1), solved("z", 0.5, 1, is_judged=False), solved("w", 1.0, 2, group="h")],
    version=2,
    rule=AdvantageRule(key="group+agent", scale="none"),
)


def test_an_agent_that_speaks_more_often_weighs_no_more_where_each_trajectory_counts_once():
    by_agent = BATCH.with_rule(AdvantageRule(key="group+agent+round"))
    for batch in (BATCH, by_agent):
        for one in range(len(batch.trajectories)):
            own = [place for place, row in enumerate(batch.to_numpy()["row_trajectory"]) if row == one]
            weights, agents = batch.weights[own], batch.to_numpy()["row_agent"][own]
            assert weights.sum() == pytest.approx(1.0)
            shares = np.bincount(agents, weights)
            assert shares[shares > 0].tolist() == pytest.approx([1 / len(set(agents.tolist()))] * len(set(agents)))
    together = BATCH.with_rule(AdvantageRule(key="group"))
    assert together.weights.tolist()[:4] == [0.25] * 4
    assert BATCH.with_rule(AdvantageRule(weighting="row")).weights.tolist() == [1.0] * 10


def test_the_baseline_of_an_agent_is_over_trajectories_not_over_how_often_it_spoke():
    rows = dict(zip([(row.rollout_id, row.calls[0].id) for row in BATCH.rows], BATCH.advantages.values, strict=True))
    assert rows["x", "solver.0.0"] == rows["x", "solver.2.0"] == 0.5
    assert (rows["y", "solver.0.0"], rows["z", "solver.0.0"]) == (-0.5, 0.0)
    assert (rows["x", "critic.0.0"], rows["y", "critic.0.0"]) == (0.5, -0.5)
    by_row = BATCH.with_rule(AdvantageRule(key="group+agent", scale="none", weighting="row"))
    assert by_row.advantages.values[0] == pytest.approx(1.0 - 3.5 / 5)


def test_rounds_can_be_compared_apart():
    batch = BATCH.with_rule(AdvantageRule(key="group+agent+round", scale="none"))
    arrays = batch.to_numpy()
    assert arrays["row_round"].tolist()[:4] == [0, 1, 2, 0]
    assert arrays["row_advantage"].tolist()[:3] == [0.5, 0.0, 0.0], "the second and third round are only in one of them"
    assert ("g", "solver.1") in batch.advantages.single


def test_each_policy_has_a_batch_of_its_own():
    streams = BATCH.by_policy()
    assert list(streams) == list(BATCH.policies) == ["", "judge"]
    own, judge = streams[""], streams["judge"]
    assert (own.agents, judge.agents) == (("solver",), ("critic",))
    assert [row.rollout_id for row in judge.rows] == ["x", "y", "w"]
    assert {one.rollout_id for one in judge.trajectories} == {"x", "y", "w"}, "it had no part in z"
    assert [group.group_id for group in judge.groups] == ["g", "h"]
    arrays = judge.to_numpy()
    assert arrays["row_advantage"].tolist() == [0.5, -0.5, 0.0]
    assert arrays["versions"].max() == 1
    assert own.to_numpy()["versions"].max() == 0
    assert arrays["row_weight"].tolist() == [1.0, 1.0, 1.0]
    assert own.token_accounting().trained + judge.token_accounting().trained == BATCH.token_accounting().trained
    assert (own.report.n_turns, judge.report.n_turns) == (7, 3)
    assert all(row.policy == "judge" for row in judge.rows)


def test_advantages_of_a_policy_are_computed_within_its_own_rows():
    batch = BATCH.with_rule(AdvantageRule(key="group", scale="none"))
    assert batch.by_policy()["judge"].to_numpy()["row_advantage"].tolist() == [0.5, -0.5, 0.0]
    turned = Batch.of([solved("x", 1.0, 1), solved("z", 0.0, 1, is_judged=False)], version=1)
    assert turned.to_numpy()["row_advantage"].any()
    assert not turned.by_policy()["judge"].to_numpy()["row_advantage"].any(), "there is nobody to compare with"


def test_a_batch_of_one_policy_is_its_own_stream():
    silent = sampled(trajectory_of(rollout_id="s", group_id="g", reward=0.0))
    batch = Batch.of([solved("x", 1.0, 2, is_judged=False), solved("y", 0.5, 1, is_judged=False), silent])
    (stream,) = batch.by_policy().values()
    assert stream.trajectories == batch.trajectories, "one without any turn counts in the baseline"
    arrays, again = batch.to_numpy(), stream.to_numpy()
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    assert Batch.of([]).by_policy() == {}


def test_the_settings_of_a_scheduler_say_how_advantages_are_computed(tmp_path: Path):
    file = tmp_path / "train.yaml"
    file.write_text("advantages: {estimator: rloo, key: group+agent}\n")
    assert read_scheduler_config(file).advantages == AdvantageRule(estimator="rloo", key="group+agent")
    file.write_text("advantages: {kee: group}\n")
    with pytest.raises(InvalidInput, match=r"did you mean key\?"):
        read_scheduler_config(file)
    file.write_text("advantages: {key: agent}\n")
    with pytest.raises(InvalidInput, match=r"Invalid enum value 'agent' - at `\$.advantages.key`"):
        read_scheduler_config(file)
