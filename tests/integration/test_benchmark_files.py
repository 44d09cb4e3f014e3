"""The files of an evaluation: benchmarks in many forms, and results that survive whoever writes them."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from outrider import Store, open_store
from outrider.core.errors import InvalidInput
from outrider.core.event import Event
from outrider.core.status import RolloutStatus
from outrider.core.task import Task
from outrider.evaluate.benchmark import read_benchmark
from outrider.evaluate.plan import Plan, check_goes_on, enqueue, load_identity, save_identity
from outrider.evaluate.report import write_report
from outrider.evaluate.results import ResultLine
from outrider.evaluate.results_file import ResultsFile, next_results, read_results
from outrider.evaluate.summary import Scoreboard
from processes import line as next_line
from processes import program


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


ITEMS = [{"id": "a", "question": "1 + 1?", "answer": 2, "level": 1}, {"id": 7, "question": "2 + 2?", "answer": "4"}]
TASKS = [
    Task(task_id="a", question="1 + 1?", answer=2, metadata={"level": 1}),
    Task(task_id="7", question="2 + 2?", answer="4", metadata={}),
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", "\n".join(map(json.dumps, ITEMS))),
        ("t.jsonl", "\ufeff\r\n\r\n" + "\r\n\n".join(map(json.dumps, ITEMS)) + "\n\n"),
        ("t.json", "\n".join(map(json.dumps, ITEMS))),
        ("t.json", json.dumps(ITEMS, indent=2)),
        ("t.json", json.dumps({"version": 3, "items": ITEMS}, indent=2)),
        ("t.txt", json.dumps({"data": ITEMS})),
        ("t.jsonl", json.dumps({"examples": ITEMS})),
        ("t.json", json.dumps({"tasks": ITEMS})),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_json_comes_as_lines_as_a_list_or_as_a_list_in_an_object_packed_or_not(name: str, content: str, packed: bool):
    source = given(name + ".gz", gzip.compress(content.encode())) if packed else given(name, content)
    assert read_benchmark(source) == TASKS


def test_json_comes_from_standard_input_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(ITEMS).encode())))
    assert read_benchmark("-") == TASKS
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"question": 1}')))
    with pytest.raises(InvalidInput, match="standard input, line 1"):
        read_benchmark("-")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'id,question,answer,level\r\na,1 + 1?,2,1\r\n7,"2 + 2?",4,\r\n'),
        ("t.csv", "\ufeffID;Question;Answer;level\na;1 + 1?;2;1\n\n7;2 + 2?;4\n"),
        ("t.tsv", "id\tquestion\tanswer\tlevel\na\t1 + 1?\t2\t1\n7\t2 + 2?\t4\t\n"),
    ],
)
def test_tables_come_with_commas_semicolons_or_tabs_and_their_cells_are_text(name: str, content: str):
    first, second = read_benchmark(given(name, content))
    assert (first.task_id, first.question, first.answer, first.metadata) == ("a", "1 + 1?", "2", {"level": "1"})
    assert (second.task_id, second.answer, second.metadata) == ("7", "4", {})


def test_a_cell_may_hold_lines_and_be_longer_than_the_csv_module_likes():
    long = "x" * 200_000
    (task,) = read_benchmark(given("t.csv", f'question,answer\n"first\nsecond, ""third"" {long}",1\n'))
    assert task.question == f'first\nsecond, "third" {long}'


def test_parquet_keeps_numbers_and_lists_and_turns_dates_into_text():
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {
        "problem": ["p1", "p2"],
        "targets": [["4", "four"], ["5"]],
        "day": [date(2025, 6, 1), None],
        "price": [Decimal("1.50"), None],
        "nested": [{"at": datetime(2025, 6, 1, tzinfo=UTC)}, None],
        "picture": [b"\x89PNG", None],
    }
    pq.write_table(pa.table(rows), "t.parquet")
    first, second = read_benchmark("t.parquet")
    assert (first.question, first.answer) == ("p1", ["4", "four"])
    assert first.metadata["day"] == "2025-06-01"
    assert first.metadata["price"] == "1.50"
    assert first.metadata["nested"]["at"].startswith("2025-06-01T00:00:00")
    assert first.metadata["picture"] == b"\x89PNG"
    assert second.answer == ["5"]
    assert read_benchmark("t.parquet", limit=1) == [first]
    with pytest.raises(InvalidInput, match=r"cannot read broken.parquet"):
        read_benchmark(given("broken.parquet", b"PAR1 no"))
    pq.write_table(pa.table({"problem": ["p1", None]}), "t2.parquet")
    with pytest.raises(InvalidInput, match=r"t2.parquet, row 2: no question"):
        read_benchmark("t2.parquet")


@pytest.mark.parametrize(
    ("source", "library", "extra"), [("t.parquet", "pyarrow", "parquet"), ("hf:x", "datasets", "hf")]
)
def test_a_library_that_is_not_installed_is_named_by_its_extra(
    monkeypatch: pytest.MonkeyPatch, source: str, library: str, extra: str
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidInput, match=rf"pip install -e \S+\[{extra}\]"):
        read_benchmark(source)


HUGGING_FACE = """
import sys
from datasets import Dataset, DatasetDict
from outrider.core.errors import InvalidInput
from outrider.evaluate.benchmark import read_benchmark

def rows(*names):
    return Dataset.from_list([{"question": name, "answer": {"text": [name, name.upper()]}} for name in names])

SOURCES = "single hf:single several hf:several:dev hf:./raw:train hf:several:nope hf:nobody/has/this"
rows("one", "two").save_to_disk("single")
DatasetDict({"train": rows("x"), "test": rows("y", "z"), "dev": rows("w")}).save_to_disk("several")
rows("p").to_parquet("raw/train.parquet")
for source in SOURCES.split():
    try:
        tasks = read_benchmark(source)
        print(source, [task.question for task in tasks], tasks[0].answer)
    except InvalidInput as exc:
        print(source, "refused:", str(exc).splitlines()[0])
"""


def test_hugging_face_datasets_come_from_folders_and_the_split_can_be_chosen(folder: Path):
    Path("raw").mkdir()
    offline = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", HUGGING_FACE],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **offline},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert found[0] == "single ['one', 'two'] ['one', 'ONE']"
    assert found[1] == "hf:single ['one', 'two'] ['one', 'ONE']"
    assert found[2] == "several ['y', 'z'] ['y', 'Y']"
    assert found[3] == "hf:several:dev ['w'] ['w', 'W']"
    assert found[4] == "hf:./raw:train ['p'] ['p', 'P']"
    assert found[5] == "hf:several:nope refused: hf:several:nope has no split 'nope'; add one of: :train, :test, :dev"
    assert found[6].startswith("hf:nobody/has/this refused: cannot load hf:nobody/has/this: ")


@pytest.mark.parametrize(
    ("item", "task_id", "question", "answer", "metadata"),
    [
        ({"qid": 3, "prompt": "p", "target": "t"}, "3", "p", "t", {}),
        ({"ID": "x", "Problem": "p", "Correct Answer": "t"}, "x", "p", "t", {}),
        ({"id": 1, "prompt": "p", "question": "q", "gold": 0}, "1", "q", 0, {"prompt": "p"}),
        ({"id": 1, "question": "", "input": "i", "label": False}, "1", "i", False, {"question": ""}),
        ({"id": 1, "instruction": "do", "input": "this", "output": "o"}, "1", "do", "o", {"input": "this"}),
        ({"id": 1, "problem": "p", "solution": "long", "answer": "5"}, "1", "p", "5", {"solution": "long"}),
        ({"id": 1, "question": "q"}, "1", "q", None, {}),
        (
            {"id": 1, "question": "q", "answer": "3 + 4 = 7\n#### 7 "},
            "1",
            "q",
            "7",
            {"worked_answer": "3 + 4 = 7\n#### 7 "},
        ),
        ({"id": 1, "question": "q", "answer": "#### title\ntext"}, "1", "q", "#### title\ntext", {}),
        (
            {"id": 1, "question": "q", "answer": {"value": "a", "aliases": ["a", "b"]}},
            "1",
            "q",
            ["a", "b"],
            {"answer": {"value": "a", "aliases": ["a", "b"]}},
        ),
    ],
)
def test_fields_go_by_many_names_and_the_rest_is_metadata(
    item: dict[str, Any], task_id: str, question: str, answer: Any, metadata: dict[str, Any]
):
    (task,) = read_benchmark(given("t.jsonl", json.dumps(item)))
    assert (task.task_id, task.question, task.answer, task.metadata) == (task_id, question, answer, metadata)


def test_a_field_of_any_name_can_be_pointed_at():
    source = given("t.jsonl", '{"Ask This": "q", "question": "other", "key": "k"}')
    (task,) = read_benchmark(source, fields={"question": "ask this", "id": "key"})
    assert (task.task_id, task.question, task.metadata) == ("k", "q", {"question": "other"})
    with pytest.raises(InvalidInput, match="there is no field 'quest'"):
        read_benchmark(source, fields={"quest": "x"})


def test_a_prompt_may_be_a_list_of_messages():
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}
    parts = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]}
    shots = [user, {"role": "assistant", "content": "42"}, {"role": "user", "content": "7 * 7?"}]
    content = "\n".join(json.dumps({"prompt": prompt}) for prompt in ([user], [system, user], [parts], shots))
    tasks = read_benchmark(given("t.jsonl", content))
    assert [task.question for task in tasks] == [
        "6 * 7?",
        "Be brief.\n\n6 * 7?",
        "look",
        "user: 6 * 7?\n\nassistant: 42\n\nuser: 7 * 7?",
    ]
    assert tasks[1].metadata == {"messages": [system, user]}


def test_tasks_without_an_id_get_the_same_one_every_time():
    content = '{"question": "same"}\n{"question": "same"}\n{"question": "other"}\n'
    ids = [task.task_id for task in read_benchmark(given("t.jsonl", content))]
    assert len(set(ids)) == 3
    assert ids == [task.task_id for task in read_benchmark(given("copy.jsonl", content.replace("\n", "\n\n")))]
    changed = read_benchmark(given("t.jsonl", content.replace("other", "else")))
    assert [task.task_id for task in changed][:2] == ids[:2]
    assert changed[2].task_id != ids[2]


def test_a_limit_reads_the_first_and_looks_at_no_more():
    source = given("t.jsonl", '{"question": "q"}\n{"question": "r"}\nnonsense')
    assert [task.question for task in read_benchmark(source, limit=2)] == ["q", "r"]
    with pytest.raises(InvalidInput, match="limit is 0"):
        read_benchmark(source, limit=0)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.jsonl", b"", "t.jsonl holds no task"),
        ("t.jsonl", b"\n \n", "t.jsonl holds no task"),
        ("t.json", b"[]", "t.json holds no task"),
        ("t.json", b'{"items": []}', "t.json holds no task"),
        ("t.csv", b"question,answer\n", "t.csv holds no task"),
        ("t.jsonl", b'{"question": "q"}\n\n{"question": \n', "t.jsonl, line 3: "),
        (
            "t.jsonl",
            b'{\n "question": "q"\n}\n{\n "question": "r"\n}',
            "line 1: Input data was truncated; each line must hold",
        ),
        ("t.json", b'{\n "items": [\n  {"question" "q"}\n ]\n}', "t.json, line 3: "),
        ("t.json", b'[\n {"question": "q"},\n {"question": NaN}\n]', "t.json, line 3: "),
        ("t.json", b'[{"question": "q"}', "t.json, line 1: "),
        ("t.jsonl", b'{"question": "q"}\n{"question": "\xff"}', "t.jsonl, line 2: "),
        ("t.json", b'[{"question": "q"},\n{"question": "\xff"}]', "t.json, line 2: "),
        ("t.csv", b"question\nq\n\xff\n", "t.csv, line 3: "),
        ("t.jsonl", b'{"question": "\\ud800 half"}', "t.jsonl, line 1: "),
        ("t.jsonl", b'{"question": "a\\u0000b"}', "has a NUL character"),
        ("t.jsonl", b'{"id": "a\\u0000b", "question": "q"}', "t.jsonl, line 1: the id has a NUL character"),
        ("t.jsonl", '{"question": "q"}'.encode("utf-16"), "t.jsonl is written in UTF-16"),
        ("t.jsonl", b"\x1f\x8bnot gzip at all", "cannot unpack t.jsonl"),
        ("t.jsonl", gzip.compress(b'{"question": "q"}', mtime=0)[:-9], "cannot unpack t.jsonl"),
        ("t.jsonl", b'{"text_of": 1, "level": 2}', "line 1: no question; it has the fields text_of, level."),
        ("t.jsonl", b"{}", "line 1: no question; it has no fields."),
        ("t.csv", b"question,answer\nq,1\n,2\n", "t.csv, row 3: no question; it has the fields answer."),
        (
            "t.json",
            b'[{"question": "q"}, "text"]',
            "t.json, item 2: an item must be an object with a question, not text",
        ),
        ("t.jsonl", b"[1]", "t.jsonl, item 1: an item must be an object with a question, not a number"),
        ("t.jsonl", b"3", "t.jsonl, line 1: an item must be an object with a question, not a number"),
        ("t.jsonl", b'{"question": {"stem": "q"}}', "field 'question' is an object; a question is text"),
        ("t.jsonl", b'{"question": ["a", "b"]}', "field 'question' is a list, but not of messages"),
        ("t.jsonl", b'{"question": [{"role": "user", "content": 3}]}', "the content of a message is a number"),
        ("t.jsonl", b'{"question": [{"role": "user"}]}', "none of the messages has a text"),
        ("t.jsonl", b'{"id": [1], "question": "q"}', "line 1: the id is a list; give text or a number"),
        (
            "t.jsonl",
            b'{"id": "x", "question": "q"}\n\n{"id": "x", "question": "r"}',
            "t.jsonl, line 3 has the id 'x' of t.jsonl, line 1",
        ),
        ("t.jsonl", b'{"id": "7", "question": "q"}\n{"id": 7, "question": "r"}', "has the id '7' of t.jsonl, line 1"),
        ("t.jsonl", b'{"question": "q", "n": 1' + b"0" * 40 + b"}", "t.jsonl, line 1: "),
        ("t.jsonl", b'{"question": "q", "n": ' + b"[" * 5000, "t.jsonl, line 1: "),
        ("t.csv", b"question,answer,question\nq,1,r\n", "t.csv, row 1: two columns are called 'question'"),
        ("t.csv", b"question,answer\nwhat, is this,1\n", "t.csv, row 2: 3 cells under 2 headings"),
        ("t.csv", b'question,answer\n"q,1\n', "t.csv: unexpected end of data"),
        ("folder", b"", "folder is a folder"),
        ("nowhere.jsonl", b"", "cannot read nowhere.jsonl: No such file"),
        ("a\0b.jsonl", b"", "cannot read a\0b.jsonl"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_the_place_is_named(name: str, content: bytes, says: str):
    if name == "folder":
        Path(name).mkdir()
    elif name.startswith("t."):
        given(name, content)
    with pytest.raises(InvalidInput) as caught:
        read_benchmark(name)
    assert says in str(caught.value)


PLAN = Plan(
    run="demo", tasks=tuple(Task(task_id=f"q{n}", question="?", answer="1") for n in range(5)), samples_per_task=2
)


async def finish_all(store: Store, n: int = 10) -> None:
    for claimed in await store.dequeue_many_rollouts(n, worker_id="w"):
        attempt = claimed.attempt
        result = Event(kind="reward", at=attempt.started_at, name="result", data={"reward": 1.0, "output": "1"})
        await store.update_attempt(
            claimed.rollout_id, attempt.attempt_id, status="succeeded", reward=1.0, events=[result]
        )


async def test_a_plan_can_be_enqueued_again_and_its_results_are_written_once(store: Store, folder: Path):
    assert await enqueue(store, PLAN) == await enqueue(store, PLAN) == 10
    assert (await store.query_rollouts(limit=0)).total == 10
    await store.enqueue_rollout("another run's", rollout_id="other")
    await finish_all(store, 4)
    with ResultsFile(folder / "results.jsonl") as results:
        lines, cursor = await next_results(store, results, 0, run="demo")
        assert len(results.append(lines)) == len(lines) == 4
        assert results.append(lines) == []
    await finish_all(store, 100)
    with ResultsFile(folder / "results.jsonl") as results:
        lines, cursor = await next_results(store, results, 0, run="demo")
        results.append(lines)
        assert (len(lines), len(results), lines[0].rollout_id in results) == (6, 10, True)
        assert await next_results(store, results, cursor, run="demo") == ([], cursor)
    found = list(read_results(folder / "results.jsonl"))
    assert sorted(line.rollout_id for line in found) == sorted(str(r.rollout_id) for r in PLAN.requests())
    assert {(line.reward, line.output, line.expected, line.status) for line in found} == {(1.0, "1", "1", "succeeded")}

    board = Scoreboard(samples_per_task=2)
    for line in found:
        board.add(line)
    write_report(folder, board.summary(), run="demo", facts={"model": "m"})
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["run"], summary["total"]["n"], summary["total"]["pass_at"]["2"]["all"]["mean"]) == ("demo", 10, 1.0)
    assert "plot.svg" in (folder / "summary.md").read_text()
    assert (folder / "plot.svg").read_text().startswith("<svg")
    assert not list(folder.glob("*.new"))


def test_a_plan_is_known_again_from_its_file(folder: Path):
    save_identity(folder / "plan.json", PLAN.identity())
    check_goes_on(load_identity(folder / "plan.json"), PLAN)
    with pytest.raises(InvalidInput, match="holds no run to go on with"):
        load_identity(folder / "nothing.json")
    with pytest.raises(InvalidInput, match=r"broken.json is not the plan"):
        load_identity(Path(given("broken.json", "{}")))


WRITER = """
import sys
from pathlib import Path
from outrider.evaluate.results import ResultLine
from outrider.evaluate.results_file import ResultsFile

with ResultsFile(Path("results.jsonl"), sync=True) as results:
    number = len(results)
    while True:
        results.append([ResultLine(rollout_id=str(number), task_id="t", status="succeeded", output="x" * 3000)])
        print(number, flush=True)
        number += 1
"""


def test_every_line_that_was_acknowledged_is_there_after_sigkill(folder: Path):
    acknowledged = -1
    for _ in range(3):
        with program(WRITER) as writer:
            for _ in range(20):
                acknowledged = int(next_line(writer))
            writer.send_signal(signal.SIGKILL)
            writer.wait(timeout=10)
        with ResultsFile(folder / "results.jsonl") as results:
            assert str(acknowledged) in results
    ids = [line.rollout_id for line in read_results(folder / "results.jsonl")]
    assert ids == [str(number) for number in range(len(ids))]


def result(rollout_id: str, **facts: Any) -> ResultLine:
    return ResultLine(rollout_id=rollout_id, task_id="t", status=RolloutStatus.SUCCEEDED, **facts)


@pytest.mark.parametrize("torn_at", [1, 20, 100_000, -1])
def test_a_torn_last_line_is_cut_off_and_a_whole_one_without_its_end_is_kept(folder: Path, torn_at: int):
    path = folder / "results.jsonl"
    with ResultsFile(path) as results:
        results.append([result("a"), result("b", output="x" * 200_000)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:torn_at])
    with ResultsFile(path) as results:
        assert ("a" in results, "b" in results) == (True, torn_at == -1)
        results.append([result("b", output="x" * 200_000), result("c")])
    assert path.read_bytes().count(b"\n") == 3
    assert [line.rollout_id for line in read_results(path)] == ["a", "b", "c"]


def test_a_line_that_is_no_result_is_named_and_nothing_is_changed(folder: Path):
    path = folder / "results.jsonl"
    path.write_bytes(b'{"rollout_id": "a", "task_id": "t", "status": "succeeded"}\n\0\0\0\n')
    with pytest.raises(InvalidInput, match=r"results.jsonl, line 2 is not a result"):
        ResultsFile(path)
    assert path.read_bytes().endswith(b"\0\0\0\n")
    path.write_bytes(b"")
    ResultsFile(path).close()


def test_a_second_writer_is_refused(folder: Path):
    path = folder / "results.jsonl"
    with ResultsFile(path), pytest.raises(InvalidInput, match="another process is writing"):
        ResultsFile(path)
    ResultsFile(path).close()
    with pytest.raises(InvalidInput, match="cannot open"):
        ResultsFile(folder / "nowhere" / "results.jsonl")


FULL_DISK = """
import resource
from pathlib import Path
from outrider.core.errors import OutriderError
from outrider.evaluate.results import ResultLine
from outrider.evaluate.results_file import ResultsFile

line = lambda id, n: ResultLine(rollout_id=id, task_id="t", status="succeeded", output="x" * n)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
with ResultsFile(Path("results.jsonl")) as results:
    results.append([line("a", 10)])
    try:
        results.append([line("b", 20_000)])
    except OutriderError as exc:
        print(exc)
    results.append([line("c", 10)])
"""


def test_a_line_that_does_not_fit_on_the_disk_is_not_there_and_the_file_stays_whole(folder: Path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK], capture_output=True, text=True, timeout=60, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cannot write results.jsonl: File too large" in done.stdout
    assert [line.rollout_id for line in read_results(folder / "results.jsonl")] == ["a", "c"]


async def test_results_of_a_cancelled_rollout_have_no_attempt(store_url: str, folder: Path):
    async with open_store(store_url) as store:
        await enqueue(store, PLAN)
        await store.cancel_rollouts(["demo/q0:0"])
        with ResultsFile(folder / "results.jsonl") as results:
            lines, _ = await next_results(store, results, 0)
            assert [(line.status, line.seconds, line.is_missing) for line in lines] == [("cancelled", None, True)]
