"""No test of chaos ends without the history checker, and none that is named as harmful has gone."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
CHECKER = "check_store"
OF_THE_SOURCE = {"test_every_point_in_the_source_is_one_that_a_scenario_reaches"}
"""Tests that look at files and run nothing."""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def mentioned(function: ast.AST) -> Iterator[str]:
    """The names in a function, and the programs it starts."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".py"):
            yield node.value


def checked(names: dict[str, set[str]], name: str) -> bool:
    """Whether what this function mentions, and what that mentions, has the checker in it."""
    seen, upcoming = {name}, [name]
    while upcoming:
        found = names[upcoming.pop()] - seen
        seen |= found
        upcoming += [each for each in found if each in names]
    return CHECKER in seen


def test_every_test_of_chaos_ends_in_the_checker():
    names: dict[str, set[str]] = defaultdict(set)
    tests = []
    for path in sorted((TESTS / "chaos").glob("*.py")):
        for function in functions(path):
            names[function.name] |= set(mentioned(function))
            if not path.name.startswith("test_"):
                names[path.name].add(function.name)
            elif function.name.startswith("test_") and function.name not in OF_THE_SOURCE:
                tests.append(function.name)
    assert len(tests) > 10
    assert [test for test in tests if not checked(names, test)] == []


@pytest.mark.parametrize("folder", ["chaos", "contract"])
def test_all_that_is_asked_of_stores_is_recorded(folder: str):
    (fixture,) = [one for one in functions(TESTS / folder / "conftest.py") if one.name == "_checked"]
    assert "autouse=True" in ast.unparse(fixture.decorator_list[0])
    assert [argument.arg for argument in fixture.args.args] == ["history"]


def assigned(source: ast.Module, name: str) -> ast.expr:
    (value,) = [
        node.value for node in source.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return value


def test_what_is_named_as_harmful_is_there_and_would_not_be_found_without_its_name():
    source = ast.parse((TESTS / "integration" / "conftest.py").read_text())
    names = {node.value for node in ast.walk(assigned(source, "HARMFUL")) if isinstance(node, ast.Constant)}
    patterns = []
    for name in ("KILLS", "OPENS_A_STORE"):
        (pattern,) = [node.value for node in ast.walk(assigned(source, name)) if isinstance(node, ast.Constant)]
        patterns.append(re.compile(pattern))
    files = {path.stem: path.read_text() for path in (TESTS / "integration").rglob("test_*.py")}
    found = {name for name, text in files.items() if all(pattern.search(text) for pattern in patterns)}
    assert names - files.keys() == set()
    assert names & found == set()
    assert found >= {
        "test_failing_runs",
        "test_pool_service",
        "test_run_on_ray",
        "test_store_outage",
        "test_supervisor",
    }
