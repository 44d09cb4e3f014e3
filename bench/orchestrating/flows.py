"""The teams of ORCHESTRA-1, as programs over one sample, and the environment that they search in.

The prompts are ours: a task, what is known so far, and last the part of the one who is asked.
"""

from dataclasses import dataclass
from typing import Any

from orchestrating.workload import (
    ACTION,
    ANSWER,
    CHECKER,
    CRITIC,
    INFO,
    MAX_SEARCHES,
    MAX_SOLUTIONS,
    MAX_STEPS,
    PLANNING,
    SEARCH,
    SOLVER,
    VERIFIER,
    information,
)
from outrider.core.chat import Message, user
from outrider.core.task import Task
from outrider.env import Environment, Environments, Observation, Step
from outrider.orchestra import Agent, Boxed, Tag, Team, VerdictRule
from outrider.orchestra.orchestra import Play

SYSTEM = "You are a helpful and harmless assistant."

SEARCHING = """\
You are one of several experts who answer a difficult question together. It usually takes more than one piece of
knowledge, and none of you should rely on memory alone: a search engine returns passages of documents for a query. Each
of you has a part in the work, which is told at the end. What was found so far stands between <information> and
</information>; what your colleagues have said stands under their names. It may be wrong or beside the point, and you
are expected to notice. Never invent a source, and never repeat a query.

<question>{question}</question>
"""
SOLVING = """\
You are one of several experts who solve a problem together. It has exactly one right result, and guessing it is of no
use: each step of the way is read by a colleague who looks for mistakes. Each of you has a part in the work, which is
told at the end. What your colleagues have said so far stands under their names. It may be wrong or incomplete, and you
are expected to notice. Check units, signs and special cases, and do not change what is asked into something easier.

<question>{question}</question>
"""
ENDING = "\n\nRound {round}. Speak as the "

PARTS = {
    SEARCH: """\
You decide what is looked up next. Think between <think> and </think> about what is still missing. If a colleague has
rejected your last query, choose other words instead of defending it. Then write exactly one query, in words that
documents are likely to use, between <search> and </search>. A query that asks for two things finds neither.""",
    CRITIC: """\
You judge the last query before it is sent. Think between <think> and </think> whether it leads towards the result: is
it about the right things, is it specific enough, has it been tried before? Then write <critic>approve</critic> if it
should be sent as it is, or <critic>reject</critic> if another one is needed.""",
    VERIFIER: """\
You decide how the work goes on. Does the result follow from what was found, without any further assumption? Name the
passage that each part of it rests on, and what is missing if something is. Then write <verify>yes</verify> if the
information is enough to answer, or <verify>no</verify> if more has to be looked up.""",
    ANSWER: """\
You give the result. The information was found to be enough, so rest on it alone. Think between <think> and </think>
about what exactly is asked for, and which passage says so. Then write the result between <answer> and </answer>, as
short as possible and without any explanation.""",
    SOLVER: r"""You solve the problem. Write down each step so that it can be checked. If a colleague has rejected your
last solution, find out which step was meant and do it again from there; if the colleague was mistaken, say why. Give
the result at the end, alone and as simple as possible, in \boxed{}.""",
    CHECKER: """\
You check the last solution. Work the problem out by yourself first and then go through the solution step by step: does
each step follow from those before it, and is what was asked for what was found? Say what is wrong if anything is. Then
write <verify>approve</verify> if the solution is right, or <verify>reject</verify> if it is not.""",
    INFO: """\
You know the facts. Name what is known about the question that matters for the next action, between <info> and </info>,
and how sure it is. Do not say what should be done; a colleague thinks about that at this moment.""",
    PLANNING: """\
You make the plan. Say between <plan> and </plan> how to come to the result from here, and what would show that a step
has failed. Do not state facts; a colleague collects them at this moment.""",
    ACTION: """\
You act. Read the facts and the plan of your colleagues, and think between <think> and </think> about what follows from
them. Then write the action between <answer> and </answer>, without any explanation.""",
}


@dataclass(frozen=True, slots=True)
class Flow:
    """A team and its program. `acts`: in the environment of the workload."""

    agents: tuple[Agent, ...]
    play: Play
    acts: bool = False


def _agent(name: str, task: str, parse: Any, *, known: str = "\n{context}\n\n", **settings: Any) -> Agent:
    prompt = f"{task}{known}{PARTS[name]}{ENDING}{name}."
    return Agent(name=name, system=SYSTEM, prompt=prompt, parse=parse, **settings)


async def _critic(team: Team) -> str:
    for number in team.rounds(MAX_SEARCHES):
        asked = await team.call(SEARCH)
        if number < MAX_SEARCHES - 1:
            team.approve(await team.call(CRITIC))
    return asked.text


async def _episode(team: Team) -> str:
    """A last "no" leads nowhere, as the workload has it: the samples would not be the same otherwise."""
    said = ""
    for number in team.rounds(MAX_STEPS):
        if team.approve(await team.call(VERIFIER)):
            answer = await team.call(ANSWER, route="enough")
            await team.act(answer)
            said = answer.value or ""
        else:
            await team.act(await team.call(SEARCH, route="not enough") if number < MAX_STEPS - 1 else "")
    return said


async def _math(team: Team) -> str:
    for number in team.rounds(MAX_SOLUTIONS):
        solution = await team.call(SOLVER)
        if number < MAX_SOLUTIONS - 1:
            team.approve(await team.call(CHECKER))
    return solution.text


async def _parallel(team: Team) -> str:
    await team.gather(INFO, PLANNING)
    return (await team.call(ACTION)).text


_SEEN = "\n{observation}\n\n"

FLOWS = {
    "critic": Flow(
        (_agent(SEARCH, SEARCHING, Tag("search")), _agent(CRITIC, SEARCHING, VerdictRule(tag="critic"))), _critic
    ),
    "episode": Flow(
        (
            _agent(VERIFIER, SEARCHING, VerdictRule(), known=_SEEN),
            _agent(SEARCH, SEARCHING, Tag("search"), known=_SEEN + "{context}\n\n", reads=(VERIFIER,)),
            _agent(ANSWER, SEARCHING, Tag("answer"), known=_SEEN),
        ),
        _episode,
        acts=True,
    ),
    "math": Flow((_agent(SOLVER, SOLVING, Boxed()), _agent(CHECKER, SOLVING, VerdictRule())), _math),
    "parallel": Flow(
        (
            _agent(INFO, SOLVING, Tag("info"), known="\n"),
            _agent(PLANNING, SOLVING, Tag("plan"), known="\n"),
            _agent(ACTION, SOLVING, Tag("answer")),
        ),
        _parallel,
    ),
}


class Library(Environments):
    """Where `episode` searches: at once, and each time three documents."""

    def make(self, task: Task) -> Environment:
        return _Search(int(task.task_id))


class _Search(Environment):
    """Done with an answer or after four turns; worth 1 for every other sample."""

    def __init__(self, sid: int) -> None:
        self._sid = sid
        self._n_turns = 0

    async def reset(self, seed: int | None = None) -> Observation:  # noqa: ARG002 nothing is drawn
        return ()

    async def step(self, action: Message) -> Step:
        self._n_turns += 1
        if "<answer>" in action.content or self._n_turns == MAX_STEPS:
            return Step(reward=float(self._sid % 2 == 0), terminated=True)
        return Step((user(information(self._sid, self._n_turns)),))
