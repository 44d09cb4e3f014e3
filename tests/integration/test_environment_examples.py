"""The example of environments that share a database: it runs, conforms, and withstands what agents write."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from outrider.core.chat import ToolCall, assistant
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.registry import environments_of

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "environments" / "orders.py"


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("orders", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "orders", module)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("What is the sum of all amounts ordered from ")
    assert done.stdout.splitlines()[-1] == "reward 1.0"


@pytest.mark.usefixtures("orders")
async def test_the_example_is_found_by_its_name_and_refuses_bad_settings():
    with pytest.raises(InvalidInput, match="did you mean n_orders"):
        environments_of("orders:Orders", {"n_order": 3})
    empty = environments_of("orders:Orders", {"n_orders": 0})
    with pytest.raises(InvalidInput, match="n_orders must be at least 1"):
        await empty.check()
    await empty.close()


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT count(*) FROM orders", "(7,)"),
        ("SELECT * FROM orders WHERE id > 99", "no rows"),
        ("SELEC", 'error: the database says: near "SELEC": syntax error'),
        ("DELETE FROM orders", "error: the database says: attempt to write a readonly database"),
        ("SELECT 1; SELECT 2", "error: the database says: You can only execute one statement at a time."),
    ],
)
async def test_whatever_is_asked_of_the_database_is_answered(sql: str, told: str):
    environments = environments_of("orders:Orders", {"n_orders": 7})
    env = environments.make(Task(task_id="t"))
    await env.reset(0)
    arguments = f'{{"sql": "{sql}"}}'
    step = await env.step(assistant(tool_calls=(ToolCall(id="1", name="query", arguments=arguments),)))
    assert step.observation[0].content == told
    await env.close()
    await environments.close()
