"""Batches of real runs, from the store to files and back."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyarrow import parquet

from conversations import ids_turn, packed, tokens_between, trajectory_of, turn
from guessing import play, scripted
from outrider import Runner, RunnerConfig, open_store
from outrider.agent import ChatAgent, EpisodeKit
from outrider.core.chat import Image, Message, Role, ToolCall, assistant, system, tool_result, user
from outrider.core.errors import InvalidInput
from outrider.core.trajectory import Trajectory
from outrider.core.turn import StepRecord, Turn, turns_of
from outrider.env.registry import environments_of
from outrider.policy import PolicySpec, Sampling, open_policy
from outrider.policy.scripted.tokens import decode
from outrider.train import Batch, sampled
from outrider.train.atif import to_atif, write_atif
from outrider.train.atif_document import VERSION, Document, check
from outrider.train.atif_reading import read_atif
from outrider.train.export import exported, read_jsonl, write_jsonl
from outrider.train.parquet import read_parquet, write_parquet

FORMATS = [(write_jsonl, read_jsonl, "batch.jsonl"), (write_parquet, read_parquet, "batch.parquet")]
CALL = ToolCall(id="c1", name="look", arguments='{"at": 1}')


async def played(model: str, *, tag: str = "FrozenLake", n: int = 6, group_size: int = 3) -> list[Trajectory]:
    """Finished rollouts of a built-in policy that gives its tokens, as the store has them."""
    policy = await open_policy(PolicySpec(model=model))
    kit = EpisodeKit(
        policy=policy, environments={tag: environments_of(tag)}, agent=ChatAgent(), sampling=Sampling(logprobs=True)
    )
    async with open_store("memory://") as store:
        for number in range(n):
            group = number // group_size
            await store.enqueue_rollout({}, rollout_id=f"ro-{number}", tag=tag, seed=group, group_id=f"g-{group}")
        await Runner(store, episodes=kit.episodes, config=RunnerConfig()).iter(max_rollouts=n)
        rollouts = await store.query_rollouts()
        return [
            Trajectory(
                rollout=rollout,
                attempt=await store.get_latest_attempt(rollout.rollout_id),
                events=(await store.query_events(rollout.rollout_id)).items,
            )
            for rollout in rollouts
        ]


async def test_a_run_without_a_model_becomes_a_batch():
    trajectories = await played("builtin:solver")
    batch = Batch.of(map(sampled, trajectories), group_size=3)
    assert [group.tag for group in batch.groups] == ["FrozenLake", "FrozenLake"]
    assert batch.report.n_turns == sum(len(turns_of(one.events)) for one in trajectories)
    assert batch.report.n_turns > len(trajectories), "games of several turns"
    assert batch.report.n_sequences == len(trajectories), "each merged into one sequence"
    account, arrays = batch.token_accounting(), batch.to_numpy()
    used = sum(turn.record.completion_tokens for one in trajectories for turn in turns_of(one.events))
    assert account.trained == account.generated == used == arrays["loss_mask"].sum()
    assert not arrays["logprobs"].any(), "a solver is certain"
    for one, row in zip(trajectories, batch.rows, strict=True):
        last = turns_of(one.events)[-1]
        shown = decode(row.tokens.tobytes())
        assert all(message.content in shown for message in (*last.request, last.record.reply))
        said = [turn.record.reply.content + "<|end|>" for turn in turns_of(one.events)]
        assert decode(row.tokens[row.loss_mask].tobytes()) == "".join(said)


@pytest.fixture
def batch() -> Batch:
    look = (system("S"), user("U", (Image(data=b"\x89PNG"),)))
    turns = [
        turn(look, assistant("", (CALL,)), policy_version=1),
        turn((*look, assistant("", (CALL,)), tool_result(CALL, "é")), assistant("done"), policy_version=2),
        turn(look, assistant("no ids"), tokens={}, completion_tokens=3),
    ]
    unknown = turn((), assistant(""), tokens=tokens_between(packed([5]), packed([6, 7]), [float("nan"), -0.1]))
    return Batch.of(
        [
            sampled(trajectory_of(*turns, rollout_id="a", group_id="g", reward=0.1, tag="t", seed=2**40)),
            sampled(trajectory_of(("critic", unknown), rollout_id="b", group_id="g", reward=1.0, tag="t", seed=2**40)),
            sampled(trajectory_of(ids_turn([2**31 - 1], [0], policy_version=3), rollout_id="c", reward=-1 / 3)),
        ],
        version=3,
    )


@pytest.mark.parametrize(("write", "read", "name"), FORMATS)
def test_what_is_read_back_equals_what_was_written(batch: Batch, tmp_path: Path, write: Any, read: Any, name: str):
    assert write(batch, tmp_path / name) == len(batch.samples) == 4
    back = list(read(tmp_path / name))
    assert back == list(exported(batch))
    assert [each.sample for each in back] == list(batch.samples)
    assert back[0].staleness == 2
    write(back[1:], tmp_path / name)
    assert list(read(tmp_path / name)) == back[1:], "replaced, not added to"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("write", "read", "name"), FORMATS)
def test_an_empty_batch_is_an_empty_file(tmp_path: Path, write: Any, read: Any, name: str):
    assert write(Batch.of([]), tmp_path / name) == 0
    assert list(read(tmp_path / name)) == []


def test_a_line_is_plain_json(batch: Batch, tmp_path: Path):
    write_jsonl(batch, tmp_path / "b.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert lines[2]["ids"] == [5, 6, 7]
    assert lines[2]["mask"] == [0, 1, 1]
    assert lines[2]["logprobs"][:2] == [0.0, None]
    assert lines[2]["versions"] == [-1, 0, 0]
    assert (lines[2]["agent"], lines[2]["group_id"], lines[2]["reward"]) == ("critic", "g", 1.0)
    assert lines[2]["advantage"] > 0 > lines[0]["advantage"]
    assert lines[1]["text"][0]["reply"]["content"] == "no ids"


def test_other_tools_can_read_the_columns(batch: Batch, tmp_path: Path):
    write_parquet(batch, tmp_path / "b.parquet")
    table = parquet.read_table(tmp_path / "b.parquet")
    assert table.schema.field("ids").type == pa.list_(pa.int32())
    assert table.schema.field("logprobs").type == pa.list_(pa.float32())
    assert table.column("mask").to_pylist()[2] == [False, True, True]
    assert table.column("rollout_id").to_pylist() == ["a", "a", "b", "c"]


def test_more_samples_than_fit_into_one_chunk_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outrider.train.parquet.ROWS_AT_ONCE", 3)
    batch = Batch.of(sampled(trajectory_of(ids_turn([1] * n, [n]), rollout_id=str(n))) for n in range(1, 9))
    write_parquet(batch, tmp_path / "b")
    assert list(read_parquet(tmp_path / "b")) == list(exported(batch))


@pytest.mark.parametrize(("write", "read", "name"), FORMATS)
def test_an_export_that_fails_leaves_what_was_there(batch: Batch, tmp_path: Path, write: Any, read: Any, name: str):
    write(batch, tmp_path / name)

    def breaking() -> Any:
        yield next(exported(batch))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(breaking(), tmp_path / name)
    assert len(list(read(tmp_path / name))) == 4
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("write", "read", "name"), FORMATS)
def test_files_that_cannot_be_written_or_read_are_named(batch: Batch, tmp_path: Path, write: Any, read: Any, name: str):
    with pytest.raises(InvalidInput, match=r"cannot write .*missing"):
        write(batch, tmp_path / "missing" / name)
    with pytest.raises(InvalidInput, match=r"cannot read .*nothing"):
        list(read(tmp_path / "nothing"))
    (tmp_path / name).write_bytes(b"\x00\xff garbage\n")
    with pytest.raises(InvalidInput, match=name):
        list(read(tmp_path / name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [1, 2]}, "different lengths: ids 2"),
        ({"ids": [-1, 6, 7]}, "ids"),
        ({"mask": [0, 2, 1]}, "mask"),
        ({"versions": ["x", 0, 0]}, "versions"),
        ({"schema": 99}, "schema 99"),
        ({"reward": "high"}, "reward"),
    ],
)
def test_a_line_that_is_wrong_is_named_by_its_number(batch: Batch, tmp_path: Path, change: Any, message: str):
    path = tmp_path / "b.jsonl"
    write_jsonl(batch, path)
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), **change})
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidInput, match=f"b.jsonl:3: .*{message}"):
        list(read_jsonl(path))


def test_a_table_of_another_shape_is_refused(batch: Batch, tmp_path: Path):
    write_parquet(batch, tmp_path / "b")
    table = parquet.read_table(tmp_path / "b")
    for changed, message in [
        (table.drop_columns(["mask"]), "no column 'mask'"),
        (table.set_column(0, "rollout_id", pa.array([1, 2, 3, 4])), "'rollout_id' holds int64, not string"),
        (table.set_column(table.schema.get_field_index("text"), "text", pa.array(["["] * 4)), "cannot be read"),
        (table.replace_schema_metadata({"outrider.schema": "99"}), "schema 99"),
    ]:
        parquet.write_table(changed, tmp_path / "c")
        with pytest.raises(InvalidInput, match=message):
            list(read_parquet(tmp_path / "c"))


logprobs = st.floats(width=32, allow_infinity=False, max_value=0.0) | st.just(float("nan"))


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), logprobs), min_size=1, max_size=5), st.floats(-9, 9))
def test_every_number_survives(tmp_path_factory: Any, tokens: list[tuple[int, float]], reward: float):
    ids, given_logprobs = zip(*tokens, strict=True)
    record = turn((), assistant(""), tokens=tokens_between(packed([0]), packed(ids), given_logprobs))
    batch = Batch.of([sampled(trajectory_of(record, reward=reward))])
    folder = tmp_path_factory.mktemp("numbers")
    for write, read, name in FORMATS:
        write(batch, folder / name)
        assert list(read(folder / name)) == list(exported(batch))


# ATIF


def unfolded(trajectory: Trajectory) -> list[Turn]:
    """The turns with records that add their whole request, as a document gives them back."""
    turns = turns_of(trajectory.events)
    return [replace(turn, record=replace(turn.record, kept=0, added=turn.request)) for turn in turns]


def comes_back(trajectory: Trajectory, folder: Path) -> Document:
    write_atif(trajectory, folder / "trajectory.json")
    back = read_atif(folder / "trajectory.json")
    assert list(back.turns) == unfolded(trajectory)
    return back.document


@pytest.mark.parametrize("model", ["builtin:solver", "builtin:random"])
async def test_a_run_comes_back_from_its_document(model: str, tmp_path: Path):
    for number, trajectory in enumerate(await played(model, n=3)):
        (tmp_path / str(number)).mkdir()
        document = comes_back(trajectory, tmp_path / str(number))
        assert document.schema_version == VERSION
        assert document.session_id == trajectory.rollout.rollout_id
        assert document.extra["reward"] == trajectory.rollout.reward
        assert document.extra["result"]["stop_reason"] in {"terminated", "truncated"}


async def test_calls_and_their_results_stand_in_one_step(tmp_path: Path):
    game = await play(scripted(), seed=1, sampling=Sampling(logprobs=True))
    trajectory = Trajectory(rollout=game.rollout, attempt=None, events=tuple(game.events))
    document = comes_back(trajectory, tmp_path)
    assert [each.source for each in document.steps][:2] == ["system", "user"]
    guesses = document.steps[2:]
    assert len(guesses) == sampled(trajectory).report.n_turns > 1
    for step in guesses:
        assert [call.function_name for call in step.tool_calls] == ["guess"]
        assert step.observation.results[0].source_call_id == step.tool_calls[0].tool_call_id
        assert step.observation.results[0].content in {"higher", "lower", "right"}
        assert len(step.metrics.logprobs) == len(step.metrics.completion_token_ids) == step.metrics.completion_tokens
        assert len(step.metrics.prompt_token_ids) == step.metrics.prompt_tokens


def test_rewritten_histories_and_strange_messages_come_back(tmp_path: Path):
    picture = Image(data=b"\x89PNG...", media_type="image/png")
    first = (system("S"), user("look", (picture, picture)))
    torn = ToolCall(id="c2", name="f", arguments='{"half": ')
    reply = Message(role=Role.ASSISTANT, content="hm", reasoning="because", tool_calls=(CALL, torn))
    answers = (tool_result(CALL, "a", (picture,)), tool_result(torn, ""), Message(role=Role.TOOL, content="nobody's"))
    second = (*first, reply, *answers)
    trimmed = (system("S"), assistant("a summary"), reply, answers[0], user("", (picture,)))
    odd = (
        Message(role=Role.USER, content="u", reasoning="r", tool_call_id="x"),
        Message(role=Role.TOOL, images=(Image(data=b"BM", media_type="image/bmp"),), tool_call_id="y"),
        Message(role=Role.TOOL, tool_call_id=""),
        Message(role=Role.ASSISTANT, reasoning="r", tool_calls=(CALL,)),
    )
    trajectory = trajectory_of(
        turn(first, reply, model="m", finish_reason="tool_calls", seconds=0.1, n_retries=2, cached_tokens=1),
        StepRecord(observation=answers, reward=0.5),
        turn(second, assistant("x"), policy_version=4),
        turn(second, assistant("y"), policy_version=5),
        turn(trimmed, assistant("z")),
        turn(odd, Message(role=Role.USER, content="an odd reply", images=(picture,))),
        turn((), assistant("", (CALL,)), tokens={"prompt_ids": b"abc", "logprobs": packed([0x7FC00000])}),
        StepRecord(observation=(user("the end"),)),
    )
    document = comes_back(trajectory, tmp_path)
    assert [path.parent.name for path in tmp_path.rglob("*.png")] == ["images"]
    assert document.steps[-1].message == "the end"
    rewards = [step.extra["reward"] for step in document.steps if step.extra and "reward" in step.extra]
    assert rewards == [0.5, 0.0]
    assert sum(bool(step.is_copied_context) for step in document.steps) == 1, "the reply again"


def test_each_agent_has_a_document_of_its_own(tmp_path: Path):
    plan, judge = (user("plan"),), (user("judge"),)
    trajectory = trajectory_of(
        ("planner", turn(plan, assistant("p1"))),
        ("judge", turn(judge, assistant("j1"))),
        ("planner", turn((*plan, assistant("p1"), user("more")), assistant("p2"))),
        ("judge", turn((*judge, assistant("j1"), user("again")), assistant("j2"))),
    )
    document = comes_back(trajectory, tmp_path)
    (embedded,) = document.subagent_trajectories
    assert (document.agent.name, embedded.agent.name) == ("planner", "judge")
    assert [step.message for step in embedded.steps] == ["judge", "j1", "again", "j2"]
    assert embedded.trajectory_id != document.trajectory_id


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
pictures = st.lists(
    st.builds(Image, data=st.binary(max_size=2), media_type=st.sampled_from(["image/png", "x/y"])), max_size=1
)
calls = st.lists(
    st.builds(
        ToolCall,
        id=st.sampled_from("ab"),
        name=texts,
        arguments=st.sampled_from(["{}", "", '{"a": 1}', "[]", '{"a":1e999}']),
    ),
    max_size=2,
)
anything = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=texts,
    reasoning=texts,
    images=pictures.map(tuple),
    tool_calls=calls.map(tuple),
    tool_call_id=st.none() | st.sampled_from(["a", "b", ""]),
)
conversations = st.lists(
    st.tuples(st.sampled_from(["", "x"]), st.integers(0, 9), st.lists(anything, max_size=3), anything),
    min_size=1,
    max_size=5,
)


@given(conversations)
def test_whatever_was_said_comes_back(tmp_path_factory: Any, conversation: Any):
    records: list[tuple[str, Any]] = []
    for agent, n_kept, new, reply in conversation:
        before = (*records[-1][1].added, records[-1][1].reply) if records else ()
        records.append((agent, turn((*before[:n_kept], *new), reply)))
    comes_back(trajectory_of(*records), tmp_path_factory.mktemp("atif"))


def test_nothing_at_all_is_no_document():
    with pytest.raises(InvalidInput, match="neither turn nor observation"):
        to_atif(trajectory_of())
    document, _ = to_atif(trajectory_of(StepRecord(observation=(user("o"),))))
    assert [step.source for step in document.steps] == ["user"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "ATIF-v2.0"}, "schema_version"),
        ({"surprise": 1}, "surprise"),
        ({"steps": []}, "steps"),
        ({"steps": [{"step_id": 2, "source": "user", "message": ""}]}, "step 1 has the step_id 2"),
        ({"steps": [{"step_id": 1, "source": "robot", "message": ""}]}, "robot"),
        ({"steps": [{"step_id": 1, "source": "user", "message": "", "model_name": "m"}]}, "model_name"),
        ({"steps": [{"step_id": 1, "source": "agent", "message": "", "llm_call_count": 0, "metrics": {}}]}, "metrics"),
        (
            {
                "steps": [
                    {
                        "step_id": 1,
                        "source": "agent",
                        "message": "",
                        "observation": {"results": [{"source_call_id": "c"}]},
                    }
                ]
            },
            "'c'",
        ),
        ({"steps": [{"step_id": 1, "source": "user", "message": [{"type": "image", "text": "x"}]}]}, "wrong fields"),
        (
            {
                "steps": [
                    {
                        "step_id": 1,
                        "source": "user",
                        "message": [{"type": "image", "source": {"media_type": "a/b", "path": "p"}}],
                    }
                ]
            },
            "a/b",
        ),
        (
            {
                "steps": [
                    {
                        "step_id": 1,
                        "source": "user",
                        "message": [{"type": "image", "source": {"media_type": "image/png", "path": "../p"}}],
                    }
                ]
            },
            "not beside the document",
        ),
    ],
)
def test_what_is_no_valid_document_is_refused(tmp_path: Path, change: Any, message: str):
    path = tmp_path / "t.json"
    write_atif(trajectory_of(turn((user("u"),), assistant("a"))), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidInput, match=f"t.json: .*{message}"):
        read_atif(path)


def test_documents_keep_the_rules_of_the_format():
    trajectory = trajectory_of(("a", turn((user("u"),), assistant("a"))), ("b", turn((), assistant("b"))))
    document, _ = to_atif(trajectory)
    check(msgspec.json.decode(msgspec.json.encode(document), type=Document))
    twice = replace(document, subagent_trajectories=document.subagent_trajectories * 2)
    with pytest.raises(InvalidInput, match="trajectory_ids"):
        check(twice)
