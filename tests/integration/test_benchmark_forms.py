"""Benchmarks in the forms in which they are published: each is loaded as it is, asked in full, and scored."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from outrider.core.chat import assistant
from outrider.core.errors import InvalidInput
from outrider.core.task import AnswerKind, Task
from outrider.env.registry import environments_of
from outrider.evaluate.benchmark import Reading, read_benchmark
from warm_outrider import run_warm

FILES = Path(__file__).parent.parent / "benchmark_files"

CHOICES = {
    "mmlu.jsonl": ["5", "Danube"],
    "mmlu_pro.jsonl": ["100", "Six"],
    "gpqa.jsonl": ["64", "carbon dioxide"],
    "arc.jsonl": ["10", "iron"],
    "arc_original.jsonl": ["10"],
    "hellaswag.jsonl": ["whisks them."],
    "truthfulqa.jsonl": ["It passes through you"],
    "sciq.jsonl": ["honey", "hens", "all of the above"],
    "medmcqa.jsonl": ["4"],
    "medqa.jsonl": ["Vitamin D"],
    "race.jsonl": ["red", "Tom"],
    "aqua.jsonl": ["21"],
    "social_iqa.jsonl": ["to stay warm", "eat"],
    "winogrande.jsonl": ["bag"],
    "piqa.jsonl": ["a brush"],
    "copa.jsonl": ["It rained."],
    "mmlu_table.csv": ["5", "apple, red"],
}
"""The text of the right choice of each question."""

REPLIES: Mapping[str, tuple[str, list[str], str]] = {
    "gsm8k.jsonl": ("math", ["So it is \\boxed{42}.", "The answer is 1250."], "\\boxed{41}"),
    "math.jsonl": ("math", ["\\boxed{0.75}", "\\boxed{2}", "\\boxed{0.5}"], "\\boxed{7}"),
    "math_500.jsonl": ("math", ["\\boxed{42}"], "\\boxed{43}"),
    "humaneval.jsonl": (
        "py",
        [
            "```python\ndef total(xs: List[int]) -> int:\n    return sum(xs)\n```",
            "```python\ndef unshift(s):\n    return s[-1:] + s[:-1]\n```",
        ],
        "```python\ndef total(xs):\n    return 1\ndef unshift(s):\n    return s\n```",
    ),
    "mbpp.jsonl": (
        "py",
        ["```python\ndef add(a, b):\n    return a + b\n```"],
        "```python\ndef add(a, b):\n    pass\n```",
    ),
    "mbpp_sanitized.jsonl": (
        "py",
        ["```python\ndef up(x):\n    return -int(-x // 1)\n```"],
        "```python\ndef up(x):\n    return 0\n```",
    ),
    "ifeval.jsonl": ("math", ["An oak.", "* oak\n* elm"], "An oak, an elm"),
}
"""The mode, a right reply to each task, and one that is wrong for all."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tasks_of(name: str, **reading: Any) -> list[Task]:
    return read_benchmark(str(FILES / name), reading=Reading(**reading))


async def reward(mode: str, task: Task, reply: str) -> float:
    environments = environments_of(mode)
    try:
        environment = environments.make(task)
        await environment.reset(0)
        await environment.step(assistant(reply))
        score = await environment.score()
        assert score is not None
        return score.reward
    finally:
        await environments.close()


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("mode", ["math", "rag"])
@pytest.mark.parametrize("shuffle", [False, True])
async def test_multiple_choice_is_asked_with_letters_and_scored_by_them(name: str, mode: str, shuffle: bool):
    for task, text in zip(tasks_of(name, shuffle_choices=shuffle), CHOICES[name], strict=True):
        letters = dict(re.findall(r"^([A-Z])\. (.*)$", task.question, re.MULTILINE))
        assert letters[task.answer] == text
        wrong = next(letter for letter in letters if letter != task.answer)
        said = "\\boxed{{{}}}" if mode == "math" else "Answer: {}"
        assert await reward(mode, task, said.format(task.answer)) == 1.0
        assert await reward(mode, task, f"The answer is {text}") == 1.0
        assert await reward(mode, task, said.format(wrong)) == 0.0
        assert await reward(mode, task, "I do not know.") == 0.0


@pytest.mark.parametrize("name", REPLIES)
async def test_each_published_form_is_scored_in_its_mode(name: str):
    mode, right, wrong = REPLIES[name]
    for task, reply in zip(tasks_of(name), right, strict=True):
        assert await reward(mode, task, reply) == 1.0, reply
        assert await reward(mode, task, wrong) == 0.0


def test_choices_are_shuffled_by_seed_whatever_their_place_in_the_file(folder: Path):
    rows = [
        {"id": n, "question": f"Which is {n}?", "choices": [str(n), "x", "y", "z"], "answer": 0} for n in range(1, 21)
    ]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("r.jsonl").write_text("\n".join(map(json.dumps, reversed(rows))))

    def answers(source: str, **reading: Any) -> dict[str, Any]:
        return {task.task_id: task.answer for task in read_benchmark(source, reading=Reading(**reading))}

    assert set(answers("t.jsonl").values()) == {"A"}
    shuffled = answers("t.jsonl", shuffle_choices=True)
    assert set(shuffled.values()) == {"A", "B", "C", "D"}
    assert shuffled == answers("r.jsonl", shuffle_choices=True)
    assert shuffled != answers("t.jsonl", shuffle_choices=True, seed=1)


def test_the_right_choice_of_a_form_that_puts_it_first_is_anywhere_with_all_of_the_above_last():
    rows = [
        {
            "Question": f"Which is {n}?",
            "Correct Answer": str(n),
            "Incorrect Answer 1": "x",
            "Incorrect Answer 2": "both A and B",
            "Incorrect Answer 3": "None of the above",
        }
        for n in range(20)
    ]
    Path("t.json").write_text(json.dumps(rows))
    tasks = read_benchmark("t.json")
    assert {task.answer for task in tasks} == {"A", "B", "C"}
    assert {task.metadata["choices"]["D"] for task in tasks} == {"None of the above"}


def test_questions_on_one_article_have_ids_of_their_own_which_a_longer_file_keeps():
    assert [task.task_id for task in tasks_of("race.jsonl")] == ["high1.txt", "high1.txt-2"]
    (first,) = read_benchmark(str(FILES / "race.jsonl"), limit=1)
    assert first.task_id == "high1.txt"


@pytest.mark.parametrize(("kind", "answer"), [("text", "A"), ("index", "B"), ("number", "A")])
@pytest.mark.parametrize("choices", ["columns", "a list"])
def test_a_setting_says_how_the_answers_of_a_file_name_the_right_choice(kind: str, answer: str, choices: str):
    if choices == "columns":
        Path("t.csv").write_text("question,A,B,C,D,answer\nWhat is 0 + 1?,1,2,3,4,1\n")
    else:
        Path("t.csv").write_text("question,choices,answer\nWhat is 0 + 1?,\"['1', '2', '3', '4']\",1\n")
    with pytest.raises(InvalidInput, match=r"t\.csv, row 2: answer is '1', the text of one choice and the index of"):
        read_benchmark("t.csv")
    (task,) = read_benchmark("t.csv", reading=Reading(answers_are=AnswerKind(kind)))
    assert task.answer == answer


def test_choices_that_speak_of_others_or_are_shown_already_keep_their_order():
    rows = [
        {"question": "Which?", "options": ["first", "second", "third", "All of the above"], "answer": "D"},
        {
            "question": "Which?\nA) one\nB) two\nC) three\nD) four",
            "options": ["one", "two", "three", "four"],
            "answer": "D",
        },
    ]
    Path("t.json").write_text(json.dumps(rows))
    for seed in range(5):
        first, second = read_benchmark("t.json", reading=Reading(shuffle_choices=True, seed=seed))
        assert (first.answer, second.answer) == ("D", "D")
        assert second.question == rows[1]["question"]


def test_forms_in_tables_are_read_too():
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("arc.jsonl", "mmlu.jsonl", "ifeval.jsonl"):
        rows = [json.loads(line) for line in (FILES / name).read_text().splitlines()]
        pq.write_table(pa.Table.from_pylist(rows), "t.parquet")
        known = [(task.question, task.answer, task.metadata) for task in tasks_of(name)]
        assert [(task.question, task.answer, task.metadata) for task in read_benchmark("t.parquet")] == known
    Path("t.csv").write_text('question,choices,answer\nq,"[""x"", ""y""]",1\nr,"[\'x\', \'y\']",B\n')
    assert [task.answer for task in read_benchmark("t.csv")] == ["B", "B"]


def test_a_passage_is_shown_before_its_question():
    task, _ = tasks_of("race.jsonl")
    assert task.question.startswith("Tom has a red boat.\n\nWhat colour is the boat?\n\nA. red\n")


def test_choices_bring_their_own_letters_only_once():
    Path("t.json").write_text('[{"question": "q?", "options": ["(A) one", "(B) two"], "label": "B"}]')
    (task,) = read_benchmark("t.json")
    assert task.metadata["choices"] == {"A": "one", "B": "two"}


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"choices": ["a", "b"], "answer": 2}, "answer is 2, and none of 2 choices has this letter, index (from 0)"),
        ({"choices": ["a", "b"], "answer": "c"}, "none of 2 choices has this letter, text, index (from 0)"),
        ({"choices": ["x"], "answer": 0}, "1 choices; there may be 2 to 26"),
        ({"choices": ["x"] * 27, "answer": 0}, "27 choices; there may be 2 to 26"),
        ({"choices": ["B", "A"], "answer": "A"}, "the letter of one choice and the text of another"),
        ({"choices": ["x", "y"], "answer": ["A", "B"]}, "give the letter, the index or the text of one choice"),
        ({"choices": ["x", "y"], "answer": True}, "give the letter, the index or the text of one choice"),
        ({"options": ["x", "y"], "answer": "A", "answer_index": 1}, "another field names another choice"),
        ({"answerA": "x", "answerB": "y", "label": "0"}, "none of 2 choices has this letter, text"),
        ({"answerA": "x", "answerB": "y", "label": 3}, "none of 2 choices has this letter"),
        ({"choices": ["1", "2", "3", "4"], "answer": "1"}, "--answers-are text or --answers-are index"),
        ({"A": "1", "B": "2", "C": "3", "answer": "1"}, "the text of one choice and the index of another"),
        ({"solution": "It is $\\boxed{42$."}, "solution has a box from which no answer can be read"),
        ({"instruction_id_list": ["a:b"], "kwargs": ["x"]}, "kwargs must be a list of as many objects"),
        ({"instruction_id_list": ["a:b"], "kwargs": [{}, {}]}, "kwargs must be a list of as many objects"),
    ],
)
def test_choices_that_do_not_fit_their_answer_are_refused_with_their_place(item: dict[str, Any], says: str):
    Path("t.jsonl").write_text(json.dumps({"question": "q", **item}))
    with pytest.raises(InvalidInput) as caught:
        read_benchmark("t.jsonl")
    assert "t.jsonl, line 1: " in str(caught.value)
    assert says in str(caught.value)


def test_an_environment_of_ones_own_gets_the_fields_as_the_file_has_them():
    item = {"question": "q", "choices": ["up", "down"], "answer": ["up", "up"], "test": "t", "entry_point": "e"}
    Path("t.jsonl").write_text(json.dumps(item))
    (task,) = read_benchmark("t.jsonl", reading=Reading(by_form=False))
    assert (task.question, task.answer) == ("q", ["up", "up"])
    assert task.metadata == {"choices": ["up", "down"], "test": "t", "entry_point": "e"}


@pytest.mark.parametrize(
    ("content", "questions"),
    [
        ('{\n  "id": "a/b",\n  "question": "q",\n  "answer": 1\n}\n', ["q"]),
        ('{\n "x/1": {"question": "q"},\n "x/2": {"question": "r"}\n}', ["q", "r"]),
    ],
)
@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_a_pretty_printed_object_is_a_task_or_holds_tasks_by_id(name: str, content: str, questions: list[str]):
    Path(name).write_text(content)
    tasks = read_benchmark(name)
    assert [task.question for task in tasks] == questions
    assert all("/" in task.task_id for task in tasks)


def outrider(*arguments: str, code: int = 0) -> str:
    done = run_warm("run", "--model", "builtin:solver", *arguments, seconds=60)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_file_of_choices_is_run_and_its_ids_and_unused_fields_are_shown():
    said = outrider("--mode", "math", "--data", str(FILES / "arc.jsonl"), "--limit", "1", "--name", "arc")
    assert "does not use" not in said
    (line,) = map(json.loads, Path("results/arc/results.jsonl").read_text().splitlines())
    assert (line["task_id"], line["reward"], line["output"], line["expected"]) == ("Own_2024/1", 1.0, "C", "C")
    assert ">Own_2024/1:0<" in Path("results/arc/page.html").read_text()
    shown = run_warm("view", "results/arc", "Own_2024/1", seconds=60)
    assert "What is 9 + 1?" in shown.stdout
    assert "✅ Own_2024/1:0 reward 1" in said
    assert "Own_2024-1" not in said + shown.stdout
    said = outrider("--mode", "rag", "--data", str(FILES / "ifeval.jsonl"), "--dry-run")
    assert "does not use" not in said
    said = outrider("--mode", "math", "--data", str(FILES / "gpqa.jsonl"), "--limit", "1", "--name", "gpqa")
    assert said.count("does not use the fields Explanation, Subdomain, High-level domain;") == 1


ODD_IDS = ("a/b", "two words", "x:1", "q7")


def test_ids_of_tasks_are_shown_as_they_are_wherever_people_look():
    Path("fails.py").write_text("async def fails(task, ctx):\n    raise ValueError(task['task_id'] + '\\nand more')\n")
    rows = [{"id": one, "question": "1 + 1", "answer": 2} for one in ODD_IDS]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ("--mode", "math", "--data", "t.jsonl", "--agent", "fails:fails", "--max-attempts", "1")
    said = outrider(*arguments, "--name", "odd", code=1)
    report = Path("results/odd/summary.md").read_text().replace("\\", "")
    page = Path("results/odd/page.html").read_text()
    listed = run_warm("view", "odd", seconds=60).stdout
    for one in ODD_IDS:
        assert f"❌ {one}:0 failed" in said
        assert f"outrider view odd {shlex.quote(f'{one}:0')}`" in said
        assert f"one of them: outrider view odd {shlex.quote(f'odd/{one}:0')}" in said
        assert re.search(f"^odd/{one}:0 +{one} ", listed, re.MULTILINE)
        assert f"odd/{one}:0" in report
        assert f'id="odd/{one}:0"' in page
        assert f'href="#{quote(f"odd/{one}:0", safe="")}">{one}:0<' in page
        for name in (f"{one}:0", f"odd/{one}:0", one):
            assert f"odd/{one}:0" in run_warm("view", "odd", name, seconds=60).stdout.splitlines()[0]
    assert "=" not in listed
    refused = run_warm("view", "odd", "two wor", "--artifacts", "files", seconds=60)
    assert refused.returncode == 0
    assert "the nearest are odd/two words:0" in run_warm("view", "odd", "tow words:0", seconds=60).stderr


def test_a_file_with_names_of_its_own_is_loaded_by_flags_or_settings_that_a_resumed_run_keeps():
    rows = [
        {
            "nr": n,
            "ask": f"Which is {n}?",
            "options": [f"{n}", "x"],
            "gold index": 0,
            "answer": "x",
            "question": "other",
        }
        for n in range(2)
    ]
    Path("own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fields = ("--id-field", "nr", "--question-field", "ask", "--answer-field", "gold index")
    data = ("--mode", "math", "--data", "own.jsonl")
    outrider(*data, *fields, "--answers-are", "index", "--limit", "1", "--name", "own")
    Path("own.yaml").write_text(
        "mode: math\ndata: own.jsonl\nid_field: nr\nquestion_field: ask\nanswer_field: gold index\nlimit: 1\n"
    )
    outrider("--config", "own.yaml", "--name", "yaml")
    outrider("--resume", "own", "--limit", "2")
    written = "".join(Path(f"results/{name}/results.jsonl").read_text() for name in ("own", "yaml"))
    lines = list(map(json.loads, written.splitlines()))
    assert [(line["task_id"], line["expected"]) for line in lines] == [("0", "A"), ("1", "A"), ("0", "A")]
    assert "Which is 1?" in run_warm("view", "own", "1", seconds=60).stdout
    assert "no item has the answer field 'gold'" in outrider(*data, "--answer-field", "gold", code=2)
    assert "A question is called quest; --question-field" in outrider(*data, "--question-field", "quest", code=2)
    for flag in (("--id-field", "nr"), ("--answers-are", "text")):
        said = outrider("--mode", "math", *flag, code=2)
        assert f"{flag[0][2:].replace('-', '_')} is about a file, and there is none; give --data" in said
    assert "answer_field was" in outrider("--resume", "own", "--answer-field", "nr", code=2)


def test_a_run_is_extended_by_tasks_behind_those_of_its_file_and_refuses_them_elsewhere():
    rows = [json.dumps({"id": f"t{n}", "question": f"What is {n} + 1?", "answer": n + 1}) for n in range(4)]
    grown, between = [*rows[:2], rows[3]], [rows[0], rows[2], rows[1]]
    Path("t.jsonl").write_text("\n".join(rows[:2]))
    outrider("--mode", "math", "--data", "t.jsonl", "--name", "grows")
    begun = Path("results/grows/results.jsonl").read_text()
    Path("t.jsonl").write_text("\n".join(between))
    assert "the tasks are not the same (2 then, 3 now)" in outrider("--resume", "grows", code=2)
    Path("t.jsonl").write_text("\n".join(grown))
    for _ in range(2):
        outrider("--resume", "grows")
        after = Path("results/grows/results.jsonl").read_text()
        assert after.startswith(begun), "what was done is not done again"
        (line,) = map(json.loads, after.removeprefix(begun).splitlines())
        assert (line["task_id"], line["reward"]) == ("t3", 1.0)


def test_the_seed_of_a_run_draws_the_letters_of_shuffled_choices():
    rows = [{"id": n, "question": f"Which is {n}?", "choices": [str(n), "x", "y", "z"], "answer": 0} for n in range(12)]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def letters(name: str, *flags: str) -> dict[str, str]:
        outrider("--mode", "math", "--data", "t.jsonl", "--name", name, *flags)
        lines = map(json.loads, Path(f"results/{name}/results.jsonl").read_text().splitlines())
        return {line["task_id"]: line["expected"] for line in lines}

    assert set(letters("in-order", "--seed", "1").values()) == {"A"}
    first = letters("first", "--shuffle-choices", "--seed", "1")
    assert len(set(first.values())) > 1
    assert first == letters("again", "--shuffle-choices", "--seed", "1")
    assert first != letters("second", "--shuffle-choices", "--seed", "2")


def test_shuffled_choices_are_a_setting_that_a_resumed_run_keeps():
    arguments = ("--mode", "math", "--data", str(FILES / "mmlu_pro.jsonl"), "--limit", "1", "--seed", "3")
    outrider(*arguments, "--shuffle-choices", "--name", "shuffled")
    outrider("--resume", "shuffled")
    outrider(*arguments, "--name", "in-order")
    assert "shuffle_choices" in outrider("--shuffle-choices", "--resume", "in-order", code=2)


@pytest.mark.parametrize(
    ("mode", "name", "says"),
    [
        ("math", "humaneval.jsonl", "has no answer to compare with; give it one in the field `answer`; it has tests"),
        ("py", "mmlu.jsonl", "has no tests; it has an answer, which other modes score"),
        ("FrozenLake", "gsm8k.jsonl", "FrozenLake asks none of the questions in"),
        *(
            (mode, ".", ". is a folder, and no dataset was saved in it; give a file")
            for mode in ("math", "py", "rag", "web", "FrozenLake", "Sokoban", "own:Guess")
        ),
        ("osworld", ".", ". has no task: there is no .json file in it"),
    ],
)
def test_a_file_from_which_nothing_can_be_scored_is_refused_with_the_reason(mode: str, name: str, says: str):
    Path("own.py").write_text("class Guess:\n    def reset(self, seed=None): ...\n    def step(self, action): ...\n")
    data = name if name == "." else str(FILES / name)
    assert says in outrider("--mode", mode, "--data", data, code=2)
    assert not Path("results").exists()


def test_a_folder_of_desktop_tasks_is_read_as_osworld_lays_them_out():
    task = {"id": "own/1", "instruction": "Wait.", "evaluator": {"func": "infeasible"}, "config": []}
    Path("examples/chrome").mkdir(parents=True)
    Path("examples/chrome/own.json").write_text(json.dumps(task, indent=2))
    for data in ("examples", "examples/chrome/own.json"):
        said = outrider("--mode", "osworld", "--data", data, "--dry-run")
        assert '"tasks":1' in said
