"""What somebody does on the first day who knows the README: three evaluations on a server, and ten mistakes."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from processes import marked
from warm_outrider import run_warm

FILES = Path(__file__).parent / "benchmark_files"
AGENT = """
async def ask(task, ctx):
    completion = await ctx.policy.complete(ctx.opening)
    return completion.message.content
"""
SECONDS = 120


def outrider(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run_warm("run", *arguments, seconds=SECONDS, **variables)


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("results", name, "results.jsonl").read_text().splitlines()]


def evaluate_three_things(server: tuple[str, ...], **variables: str) -> None:
    """An MMLU-form file, a HumanEval-form file and an agent of one's own, on the server of these flags."""
    Path("my_agents.py").write_text(AGENT)
    Path("questions.jsonl").write_text('{"id": "sum", "question": "What is 17 + 25?", "answer": "42"}\n')
    for name, flags in {
        "mmlu": ("--mode", "math", "--data", str(FILES / "mmlu.jsonl")),
        "humaneval": ("--mode", "py", "--data", str(FILES / "humaneval.jsonl")),
        "own": ("--mode", "math", "--data", "questions.jsonl", "--agent", "my_agents:ask"),
    }.items():
        done = outrider(*server, *flags, "--max-tokens", "12", "--name", name, **variables)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        lines = lines_of(name)
        assert len(lines) == (1 if name == "own" else 2)
        assert [(line["status"], line["reward"] is not None) for line in lines] == [("succeeded", True)] * len(lines)
        assert Path("results", name, "page.html").is_file()


def mistakes(url: str, model: str, key: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each with its flags, and what the answer must name. The run "mmlu" is there already."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    Path("wrong.jsonl").write_text('{"quesion": "What is 1 + 1?", "answer": "2"}\n')
    Path("untested.jsonl").write_text('{"id": "a", "question": "Write a function that adds two numbers."}\n')
    server = ("--base-url", url, "--model", model, *key)
    task = ("--mode", "math", "--limit", "1")
    nowhere = ("--base-url", f"http://127.0.0.1:{port}/v1", "--model", model, *key)
    yield "wrong model name", ("--base-url", url, "--model", "nosuch/model", *key, *task), "nosuch/model"
    yield "wrong port", (*nowhere, *task), f"no connection to http://127.0.0.1:{port}: Connection refused."
    yield "no key", (*server[:4], "--api-key-env", "NOT_SET", *task), "NOT_SET"
    yield "no such file", (*server, *task, "--data", "nowhere.jsonl"), "cannot read nowhere.jsonl"
    yield "wrong mode", (*server, "--mode", "maths"), "did you mean math?"
    yield "wrong field", (*server, *task, "--data", "wrong.jsonl"), "wrong.jsonl, line 1: no question"
    yield "unknown flag", (*server, *task, "--num-rollout", "3"), "--num-rollouts"
    yield "name used twice", (*server, *task, "--name", "mmlu"), "results/mmlu is there already"
    yield "no tests", (*server, "--mode", "py", "--data", "untested.jsonl"), "has no tests; mode py needs `tests`"
    yield "resume of an unknown run", ("--resume", "nosuch"), "nosuch"


def make_ten_mistakes(url: str, model: str, *key: str, **variables: str) -> dict[str, str]:
    """Each is answered in one line with exit code 2, and leaves no file and no process behind; the answers."""
    answers = {}
    mark = f"FIRST_DAY_{uuid4().hex}"
    for name, flags, says in mistakes(url, model, key):
        before = files()
        done = outrider(*flags, **variables, **{mark: "1"})
        answers[name] = done.stderr.strip()
        assert (done.returncode, done.stdout) == (2, ""), (name, done.stdout, done.stderr)
        assert says in done.stderr, (name, done.stderr)
        assert len(answers[name].splitlines()) == 1, (name, done.stderr)
        assert (files(), marked(mark)) == (before, []), name
    return answers


def files() -> dict[Path, bytes | None]:
    """All that is in the folder, but for what the server writes."""
    paths = (path for path in Path().rglob("*") if path.suffix != ".log" and "venv" not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in paths}
