"""Other words for what an environment says: its instructions, and what goes around each observation."""

from string import Formatter

from msgspec.structs import replace

from outrider.core.artifact import Artifact
from outrider.core.chat import Message, Role, ToolSpec, system
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.protocol import Environment, Environments, Needs, Observation, Score, Step
from outrider.pool.source import Machine

SYSTEM, OBSERVATION = "system", "observation"
"""The placeholders: the environment's own system message, and the text of one of its user messages."""


def templated(
    environments: Environments,
    *,
    system_template: str | None = None,
    turn_template: str | None = None,
    system_prompt: str | None = None,
) -> Environments:
    """The environments, in the words of these templates. Refuses a placeholder that there is not.

    `system_template` takes the place of the opening's system message, which it may hold as `{system}`; where there was
    none, it is put in front. `turn_template` goes around the text of every user message, which it holds as
    `{observation}`. A brace of the text itself is written twice. `system_prompt` is no template: it is put before the
    system message as it stands.
    """
    if system_prompt is not None:
        prompt = system_prompt.strip().replace("{", "{{").replace("}", "}}")
        system_template = f"{prompt}\n\n{'{system}' if system_template is None else system_template}"
    if system_template is None and turn_template is None:
        return environments
    if system_template is not None:
        _check("system_template", system_template, SYSTEM)
    if turn_template is not None and OBSERVATION not in _check("turn_template", turn_template, OBSERVATION):
        raise InvalidInput("turn_template has no {observation}: the agent would not see where it stands; put it in")
    return TemplatedEnvironments(environments, system_template, turn_template)


class TemplatedEnvironments(Environments):
    """Environments whose episodes speak in templates."""

    def __init__(self, inner: Environments, system_template: str | None, turn_template: str | None) -> None:
        self._inner = inner
        self._system_template = system_template
        self._turn_template = turn_template

    def make(self, task: Task) -> Environment:
        return TemplatedEnvironment(self._inner.make(task), self._system_template, self._turn_template)

    @property
    def needs(self) -> Needs | None:
        return self._inner.needs

    async def check(self) -> None:
        await self._inner.check()

    async def close(self) -> None:
        await self._inner.close()


class TemplatedEnvironment(Environment):
    """One episode in the words of templates."""

    def __init__(self, inner: Environment, system_template: str | None, turn_template: str | None) -> None:
        self._inner = inner
        self._system_template = system_template
        self._turn_template = turn_template

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._inner.tools

    def board(self, machine: Machine) -> None:
        self._inner.board(machine)

    async def reset(self, seed: int | None = None) -> Observation:
        opening = self._wrapped(await self._inner.reset(seed))
        if self._system_template is None:
            return opening
        own = "\n\n".join(message.content for message in opening if message.role is Role.SYSTEM)
        others = tuple(message for message in opening if message.role is not Role.SYSTEM)
        return (system(self._system_template.format(system=own).strip()), *others)

    async def step(self, action: Message) -> Step:
        step = Step(*await self._inner.step(action))
        return step._replace(observation=self._wrapped(step.observation))

    async def score(self) -> Score | None:
        return await self._inner.score()

    def artifacts(self) -> tuple[Artifact, ...]:
        return self._inner.artifacts()

    async def close(self) -> None:
        await self._inner.close()

    def _wrapped(self, observation: Observation) -> Observation:
        template = self._turn_template
        if template is None:
            return observation
        return tuple(
            replace(message, content=template.format(observation=message.content))
            if message.role is Role.USER
            else message
            for message in observation
        )


def _check(name: str, template: str, placeholder: str) -> list[str]:
    """The placeholders of a template, all of which are the one that it may have."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as exc:
        raise InvalidInput(f"{name} cannot be read: {exc}; write a brace of the text itself twice") from exc
    found = [field for _, field, _, _ in parts if field is not None]
    wrong = [field for field in found if field != placeholder]
    if wrong or any(form or conversion for _, _, form, conversion in parts):
        what = "{" + wrong[0] + "}" if wrong else "a format behind its placeholder"
        raise InvalidInput(
            f"{name} has {what}; it may have {{{placeholder}}}, and a brace of the text itself is written twice"
        )
    return found
