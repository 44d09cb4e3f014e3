"""Variables that hold keys are taken out of the environment, and found by our own code all the same."""

import os
import subprocess
import sys

import pytest

from outrider.core.errors import described
from outrider.core.secret import Secret
from outrider.core.variables import holds_key, keys_here, variable, withheld, withheld_names


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in list(os.environ.items()):
        if holds_key(name, value):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("OPENAI_API_KEY", "", True),
        ("openai_api_key", "", True),
        ("AWS_SECRET_ACCESS_KEY", "", True),
        ("AWS_SESSION_TOKEN", "", True),
        ("AWS_ACCESS_KEY_ID", "", False),
        ("GITHUB_TOKEN", "", True),
        ("CLIENT_SECRET_2", "", True),
        ("PGPASSWORD", "", True),
        ("MYSQL_PASSWD", "", True),
        ("SSH_PRIVATE_KEY", "", True),
        ("GPG_KEY", "", False),
        ("MAX_TOKENS", "", False),
        ("PATH", "", False),
        ("OUTRIDER_STORE", "postgresql://me:secret@host/db", True),
        ("DATABASE_URL", "postgres://host/db?user=me&password=secret", True),
        ("OUTRIDER_STORE", "postgresql://me@host:5432/db", False),
        ("OUTRIDER_STORE", "sqlite:///a:b@c.db", False),
    ],
)
def test_a_key_is_known_by_its_name_or_its_form(name: str, value: str, holds: bool):
    assert holds_key(name, value) is holds


def test_keys_are_out_of_the_environment_within_the_block_only(monkeypatch: pytest.MonkeyPatch):
    values = {"MINE": "a", "MY_TOKEN": "b", "PASSED_TOKEN": "c", "PLAIN": "d"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with withheld(keys_here({"MINE", "NOT_SET"}, {"PASSED_TOKEN"}), {"PASSED_TOKEN"}):
        assert not {"MINE", "MY_TOKEN"} & os.environ.keys()
        assert {name: variable(name) for name in values} == values
        assert withheld_names() == ["MINE", "MY_TOKEN"]
        assert variable("NOT_SET") is None
    assert {name: os.environ[name] for name in values} == values
    assert withheld_names() == []


def test_keys_are_not_seen_from_outside_either():
    """`/proc/PID/environ` shows the variables that a process began with."""
    look = "open('/proc/self/environ', 'rb').read().split(b'\\0')"
    program = f"""
import os
from outrider.core.variables import variable, withheld
before = {look}
with withheld({{}}):
    during = {look}
    value = variable("MY_TOKEN")
assert b"MY_TOKEN=a" in before and b"PLAIN=b" in before, before
assert b"MY_TOKEN=a" not in during and b"MY_TOKEN=" in during and b"PLAIN=b" in during, during
assert [value, os.environ["MY_TOKEN"]] == ["a", "a"]
"""
    variables = {**os.environ, "MY_TOKEN": "a", "PLAIN": "b"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_knows_the_keys_it_was_given_and_those_of_its_node(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OF_THE_NODE_TOKEN", "a")
    monkeypatch.setenv("MINE", "another")
    with withheld({"MINE": Secret("b"), "UNKNOWN_TOKEN": Secret("")}):
        assert not {"OF_THE_NODE_TOKEN", "MINE"} & os.environ.keys()
        assert (variable("MINE"), variable("UNKNOWN_TOKEN"), variable("OF_THE_NODE_TOKEN")) == ("b", None, "a")
        assert withheld_names() == ["MINE", "OF_THE_NODE_TOKEN", "UNKNOWN_TOKEN"]


def test_an_error_that_names_a_withheld_variable_says_how_to_hand_it_on():
    with withheld({"MY_TOKEN": Secret("a")}):
        hint = "; MY_TOKEN is not in the environment of agents, --pass-env MY_TOKEN hands it on"
        assert described(KeyError("MY_TOKEN")) == f"KeyError: 'MY_TOKEN'{hint}"
        assert described(ValueError("set the variable MY_TOKEN.")).endswith(hint)
        assert described(ExceptionGroup("two", [KeyError("MY_TOKEN")])).count("--pass-env") == 1
        assert described(KeyError("MY_TOKENS")) == "KeyError: 'MY_TOKENS'"
    assert described(KeyError("MY_TOKEN")) == "KeyError: 'MY_TOKEN'"
