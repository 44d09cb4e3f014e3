"""Questions about a shop's orders: environments that share a database, with a tool to query it.

Check it and play one episode by hand with `python orders.py`; let a model play it with
`outrider run --mode orders:Orders --model NAME`.
"""

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from msgspec import Meta, Struct

from outrider.core.chat import Message, ToolCall, ToolSpec, assistant, system, user
from outrider.core.errors import InvalidInput, ToolRefusal
from outrider.core.task import Task
from outrider.env import Environment, Environments, Observation, Score, Step
from outrider.env.adapter import with_task_seed
from outrider.env.tools import answer_calls, tool
from outrider.testing import check_environment

CITIES = ("Aarhus", "Bergen", "Cork", "Delft")
MAX_ROWS = 20


class Query(Struct):
    """What the agent gives to the tool."""

    sql: Annotated[str, Meta(description="One SELECT over orders(id INTEGER, city TEXT, amount INTEGER).")]


class Orders(Environments):
    """Owns the database that all episodes of a worker read. It is made once, and removed at the end."""

    class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """`n_orders` is the size of the shop."""

        n_orders: int = 500

    def __init__(self, config: Config) -> None:
        self._folder = TemporaryDirectory(prefix="orders-")
        self._file = Path(self._folder.name) / "orders.db"
        self._n_orders = config.n_orders
        rng = random.Random(0)
        rows = [(i, rng.choice(CITIES), rng.randint(1, 200)) for i in range(config.n_orders)]
        with closing(sqlite3.connect(self._file)) as database, database:
            database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, amount INTEGER)")
            database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)

    def make(self, task: Task) -> Environment:
        return with_task_seed(OrdersEpisode(self._file), task)

    async def check(self) -> None:
        if self._n_orders < 1:
            raise InvalidInput("n_orders must be at least 1: there is nothing to ask about an empty shop")

    async def close(self) -> None:
        await asyncio.to_thread(self._folder.cleanup)


class OrdersEpisode(Environment):
    """One question. The first message without a call is the answer."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tool = tool("query", "Query the database of orders.", Query, self._query)
        self._city = ""
        self._answer = ""
        self._n_queries = 0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (self._tool.spec,)

    async def reset(self, seed: int | None = None) -> Observation:
        self._city = random.Random(seed).choice(CITIES)
        rules = "Answer questions about a shop. Use the tool query, then answer with a number and nothing else."
        return (system(rules), user(f"What is the sum of all amounts ordered from {self._city}?"))

    async def step(self, action: Message) -> Step:
        if action.tool_calls:
            answers, _ = await answer_calls(action.tool_calls, (self._tool,))
            return Step(answers)
        self._answer = action.content.strip()
        return Step(terminated=True)

    async def score(self) -> Score:
        select = f"SELECT coalesce(sum(amount), 0) FROM orders WHERE city = '{self._city}'"
        (expected,) = (await asyncio.to_thread(self._rows, select))[0]
        is_right = self._answer == str(expected)
        return Score(reward=float(is_right), output=self._answer, metrics={"n_queries": float(self._n_queries)})

    async def _query(self, query: Query) -> str:
        self._n_queries += 1
        try:
            # In a thread: the database must not hold up other rollouts.
            rows = await asyncio.to_thread(self._rows, query.sql)
        except (sqlite3.Error, sqlite3.Warning) as exc:
            raise ToolRefusal(f"the database says: {exc}") from exc
        return "\n".join(map(str, rows)) or "no rows"

    def _rows(self, sql: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=5.0)) as database:
            return database.execute(sql).fetchmany(MAX_ROWS)


async def main() -> None:
    """What a test of it would do, and one episode."""
    orders = Orders(Orders.Config(n_orders=100))
    try:
        await check_environment(lambda: orders.make(Task(task_id="try")), actions=["42"])
        env = orders.make(Task(task_id="first"))
        _, question = await env.reset(seed=3)
        print(question.content)
        query = '{"sql": "SELECT city, sum(amount) FROM orders GROUP BY city"}'
        step = await env.step(assistant(tool_calls=(ToolCall(id="1", name="query", arguments=query),)))
        print(step.observation[0].content)
        city = question.content.rstrip("?").split()[-1]
        (line,) = [line for line in step.observation[0].content.splitlines() if city in line]
        await env.step(assistant(line.rstrip(")").split()[-1]))
        score = await env.score()
        print("reward", score and score.reward)
        await env.close()
    finally:
        await orders.close()


if __name__ == "__main__":
    asyncio.run(main())
