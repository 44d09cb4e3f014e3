"""Agents by their names."""

import sys
from types import ModuleType
from typing import Any

import pytest

from guessing import play, scripted
from outrider import Context
from outrider.agent import ChatAgent, ReActAgent, agent_of
from outrider.core.errors import InvalidInput


class Mine:
    """An agent with a setting."""

    def __init__(self, *, worth: float = 0.25) -> None:
        self.worth = worth

    async def __call__(self, task: Any, ctx: Context) -> float:
        return self.worth


class Plain(Mine):
    """A plain one: its call runs in a thread."""

    def __call__(self, task: Any, ctx: Context) -> float:  # type: ignore[override]
        return self.worth * 2


async def function(task: Any, ctx: Context) -> float:
    return 0.75


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_agents")
    vars(module).update(Mine=Mine, Plain=Plain, function=function, number=7)
    monkeypatch.setitem(sys.modules, "my_agents", module)


def test_ours_are_called_chat_and_react():
    assert isinstance(agent_of("chat"), ChatAgent)
    assert isinstance(agent_of("react", max_turns=3, max_context_tokens=100), ReActAgent)


@pytest.mark.parametrize(
    ("name", "settings", "reward"),
    [
        ("my_agents:function", {}, 0.75),
        ("my_agents:Mine", {}, 0.25),
        ("my_agents:Mine", {"worth": 0.5}, 0.5),
        ("my_agents:Plain", {}, 0.5),
    ],
)
async def test_yours_by_module_and_name(name: str, settings: dict[str, Any], reward: float):
    played = await play(scripted(), agent_of(name, **settings))
    assert (played.rollout.reward, played.rollout.failure) == (reward, None)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("chatt", {}, "no agent 'chatt'; name chat, react, team:NAME, or your own as module:function"),
        ("", {}, "no agent ''"),
        ("no_such_module:f", {}, "no module"),
        ("my_agents:missing", {}, "has no 'missing'"),
        ("my_agents:number", {}, "not a function"),
        ("my_agents:function", {"max_turns": 3}, "takes no settings, such as max_turns"),
        ("my_agents:Mine", {"max_turns": 3}, "'max_turns'; it takes worth"),
        ("chat", {"turns": 3}, "'turns'; it takes max_turns, max_context_tokens"),
        ("chat", {"max_turns": 0}, "max_turns is 0"),
    ],
)
def test_what_there_is_not_is_refused(name: str, settings: dict[str, Any], message: str):
    with pytest.raises(InvalidInput, match=message):
        agent_of(name, **settings)
