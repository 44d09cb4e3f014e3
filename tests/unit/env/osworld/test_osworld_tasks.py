"""Task files as they stand, and what is found wrong with them before a run."""

from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.osworld import LocalFiles, check_tasks, osworld_task, task_of

RULE = {"type": "rule", "rules": {"expected": "a"}}
LINE = {"type": "vm_command_line", "command": "true"}


def task(task_id: str = "t1", *, config: Any = (), **evaluator: Any) -> Task:
    written = {"func": "exact_match", "result": LINE, "expected": RULE, **evaluator}
    return task_of({"id": task_id, "instruction": "Do it.", "config": list(config), "evaluator": written})


def problems(*tasks: Task, files: LocalFiles | None = None) -> str:
    try:
        check_tasks(tasks, files)
    except InvalidInput as exc:
        return str(exc)
    return ""


def test_a_task_file_is_taken_as_it_stands():
    found = task_of(
        {
            "id": "94d95f96",
            "snapshot": "init_state",
            "instruction": "Install Spotify.",
            "source": "https://example.com",
            "config": [{"type": "execute", "parameters": {"command": ["true"]}}],
            "trajectory": "trajectories/94d95f96",
            "related_apps": ["os"],
            "evaluator": {
                "postconfig": [{"type": "sleep", "parameters": {"seconds": 1}}],
                "func": ["check_include_exclude", "exact_match"],
                "conj": "or",
                "result": [{"type": "vm_command_line", "command": "which spotify", "shell": True}, LINE],
                "expected": [{"type": "rule", "rules": {"include": ["spotify"]}}, RULE],
            },
            "proxy": False,
            "fixed_ip": False,
            "possibility_of_env_change": "low",
        }
    )
    assert (found.task_id, found.question) == ("94d95f96", "Install Spotify.")
    assert found.metadata["related_apps"] == ["os"]
    read = osworld_task(found)
    assert [check.func for check in read.evaluator.checks] == ["check_include_exclude", "exact_match"]
    assert read.evaluator.conj == "or"
    assert problems(found) == ""
    assert osworld_task(Task.of(found.as_input(), task_id="x")) == read


def test_an_infeasible_task_has_no_checks():
    assert osworld_task(task(func="infeasible", result=None, expected=None)).evaluator.checks == ()


@pytest.mark.parametrize("data", [[], {"id": "a"}, {"id": 3, "instruction": "x"}, {"id": "a", "instruction": " "}])
def test_what_is_no_task_is_refused(data: Any):
    with pytest.raises(InvalidInput, match=r"tasks\.json: "):
        task_of(data, where="tasks.json")


def test_all_that_is_unknown_is_listed_with_the_tasks_that_ask_for_it():
    step = {"type": "googledrive", "parameters": {}}
    said = problems(
        task("a", config=[step]),
        task("b", config=[step], func="compare_pptx_files"),
        task("c", result={"type": "vlc_playing_info"}),
        task("d"),
    )
    assert "- unknown setup type 'googledrive': tasks a, b" in said
    assert "- unknown metric 'compare_pptx_files': task b" in said
    assert "- unknown getter 'vlc_playing_info': task c" in said
    assert len(said.splitlines()) == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config": [{"type": "sleep", "parameters": {"seconds": "long"}}]}, "setup sleep"),
        ({"config": [{"type": "launch", "parameters": {"command": []}}]}, "setup launch"),
        ({"config": [{"parameters": {}}]}, "type"),
        ({"config": [{"type": "download", "parameters": {"files": [{"url": "u"}]}}]}, "path"),
        ({"func": []}, "empty list"),
        ({"func": ["exact_match"]}, "result must be a list of 1"),
        ({"result": [LINE]}, "result must be an object"),
        ({"conj": "xor"}, "conj"),
        ({"expected": None}, "nothing that is expected"),
        ({"expected": LINE}, "compares with a rule, not with vm_command_line"),
        ({"expected": {"type": "rule", "rules": {}}}, "rules of exact_match"),
        ({"func": "compare_text_file", "expected": RULE}, "compares with a file"),
        ({"func": "check_list", "expected": {"type": "rule", "rules": {"expect": ["("]}}}, "not a regular expression"),
        (
            {
                "func": "check_json",
                "expected": {"type": "rule", "rules": {"expect": [{"key": ["a"], "method": "like", "ref": 1}]}},
            },
            "no such method",
        ),
        (
            {"func": "check_accessibility_tree", "expected": {"type": "rule", "rules": [{"xpath": "//a[last()-"}]}},
            "XPath",
        ),
        (
            {"func": "check_accessibility_tree", "expected": {"type": "rule", "rules": [{"selectors": ["a:hover"]}]}},
            "CSS",
        ),
        ({"func": "literal_match", "options": {"case": 1}}, "options of literal_match"),
        ({"result": {"type": "vm_file", "path": ["a"]}}, "only then"),
        ({"result": {"type": "vm_file", "path": "a", "time_suffix": True}}, "time_suffix"),
        ({"result": {"path": "a"}}, "no type"),
        ({"postconfig": [{"type": "act", "parameters": {}}]}, "unknown setup type 'act'"),
    ],
)
def test_what_cannot_be_run_or_scored_is_pointed_at(given: dict[str, Any], message: str):
    said = problems(task(**given))
    assert message in said
    assert "task t1" in said


def test_files_that_are_not_here_are_named(tmp_path: Path):
    (tmp_path / "here.txt").write_text("x")
    files = LocalFiles(folder=tmp_path, addresses={"https://example.com/known": tmp_path / "here.txt"})
    wanted = ["https://example.com/known", "https://example.com/unknown", "here.txt", "../secret"]
    step = {"type": "download", "parameters": {"files": [{"url": url, "path": "/tmp/x"} for url in wanted]}}
    said = problems(task(config=[step]), files=files)
    assert "'https://example.com/unknown'" in said
    assert "'../secret'" in said
    assert len(said.splitlines()) == 3
    assert problems(task(config=[step])) == ""


def test_a_download_is_found_under_the_name_that_the_cache_of_osworld_gives_it(tmp_path: Path):
    import uuid

    url = "https://example.com/a.txt"
    name = f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_b.txt"
    (tmp_path / name).write_text("x")
    files = LocalFiles(folder=tmp_path)
    assert files.read(url, saved_as="/home/user/b.txt") == b"x"
    assert files.find(url, saved_as="/home/user/c.txt") is None


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "link").symlink_to(tmp_path / "secret")
    assert LocalFiles(folder=tmp_path / "files").find("link") is None
    assert LocalFiles(folder=tmp_path / "files").find(str(tmp_path / "secret")) is None
