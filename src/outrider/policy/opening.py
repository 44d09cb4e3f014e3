"""Opening a policy by its spec: built in, replayed, or a model behind an OpenAI-compatible endpoint."""

from outrider.core.clock import Clock, SystemClock
from outrider.core.errors import InvalidInput
from outrider.policy.budget import BudgetedPolicy, Purse
from outrider.policy.protocol import ChatPolicy
from outrider.policy.recording import open_recording, open_replay
from outrider.policy.recording.replay import PREFIX as REPLAY
from outrider.policy.scripted.policy import PREFIX as BUILTIN
from outrider.policy.scripted.policy import ScriptedPolicy, options_of
from outrider.policy.spec import Budget, PolicySpec


async def open_policy(spec: PolicySpec, *, clock: Clock | None = None, purse: Purse | None = None) -> ChatPolicy:
    """The policy that `spec` describes; the caller closes it. Refuses what cannot be opened, contacts no server.

    If it has a budget, its calls are paid from the `purse`, or from one of its own.
    """
    if spec.record_to is not None and spec.model == REPLAY + spec.record_to:
        raise InvalidInput(f"{spec.record_to} cannot be replayed and recorded to at once; record to another file")
    policy = await _open_model(spec, clock)
    try:
        if spec.record_to is not None:
            policy = await open_recording(policy, spec.record_to)
        if _is_limited(spec.budget):
            policy = BudgetedPolicy(policy, spec.budget, clock or SystemClock(), purse=purse)
    except BaseException:
        await policy.close()
        raise
    return policy


def exposed_secrets(spec: PolicySpec) -> list[str]:
    """Warnings about secrets that the policy would send where others can read them. Opens nothing."""
    if spec.model.startswith((BUILTIN, REPLAY)):
        return []
    from outrider.policy.openai import exposure  # noqa: PLC0415 it brings the HTTP client along

    return list(exposure.exposed_secrets(spec))


async def _open_model(spec: PolicySpec, clock: Clock | None) -> ChatPolicy:
    if not spec.model:
        raise InvalidInput("no model is given; name one, such as builtin:solver")
    if spec.model.startswith(BUILTIN):
        from outrider.policy.scripted.scripts import bundled_scripts  # noqa: PLC0415 what a model run does not need

        options = options_of(spec.model)
        return ScriptedPolicy(bundled_scripts(), name=spec.model, options=options, clock=clock)
    if spec.model.startswith(REPLAY):
        return await open_replay(spec.model.removeprefix(REPLAY))
    from outrider.policy.openai.policy import open_openai_policy  # noqa: PLC0415 it brings the HTTP client along

    policy: ChatPolicy = await open_openai_policy(spec, clock=clock)
    return policy


def _is_limited(budget: Budget) -> bool:
    return any(limit is not None for limit in (budget.tokens, budget.money, budget.seconds))
