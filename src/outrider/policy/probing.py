"""Asking a model, before a run that trains, for what training needs: token ids and log-probabilities."""

import asyncio

from outrider.core.chat import user
from outrider.core.errors import PolicyError
from outrider.policy.opening import open_policy
from outrider.policy.protocol import Sampling
from outrider.policy.recording.replay import PREFIX as REPLAY
from outrider.policy.scripted.policy import PREFIX as BUILTIN
from outrider.policy.spec import PolicySpec

PROBE_SECONDS = 30.0
PROBE_TOKENS = 16

ADVICE = "serve the model so that it gives both (vLLM and SGLang do), else a trainer gets text alone and learns nothing"


async def token_warning(spec: PolicySpec) -> str | None:
    """What the model does not give that training needs, by one short call; None: all of it, or the call failed.

    Why a call fails is for the checks of the policy to say. Built-in and replayed policies are not asked.
    """
    if spec.model.startswith((BUILTIN, REPLAY)):
        return None
    policy = await open_policy(spec)
    sampling = Sampling(max_tokens=PROBE_TOKENS, logprobs=True)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            completion = await policy.complete([user("Say yes.")], sampling=sampling)
    except (PolicyError, TimeoutError):
        return None
    finally:
        await policy.close()
    tokens = completion.tokens
    lacks = "token ids"
    if tokens is not None and tokens.completion_ids:
        if tokens.logprobs:
            return None
        lacks = "log-probabilities"
    return f"{spec.model} gives no {lacks}: {ADVICE}"
