"""Which policy to run and how, in a form that crosses process borders and can be saved with a run. Holds no secret."""

from msgspec import Struct
from msgspec.structs import replace

NO_KEY = "none"
"""Stands for the name of a variable where a server gets no key."""


class Budget(Struct, frozen=True, kw_only=True):
    """What a run may use up; None: no limit. Prices are per million tokens, in whatever money `money` counts."""

    tokens: int | None = None
    money: float | None = None
    seconds: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0


class PolicySpec(Struct, frozen=True, kw_only=True):
    """`model` is a name the server knows, `builtin:NAME?option=value`, or `replay:FILE`.

    Keys are read from the environment where the policy is opened, never saved: `api_key_env` names the variable for all
    servers, or one for each in their order; "none": no key. Where it names nothing, `takes_default_key` says whether
    OPENAI_API_KEY may go to a server other than OpenAI's, if it is the only one; see `policy.openai.address`.
    `max_retries` counts the tries after the first, per call; `deadline_seconds` bounds a call with all of them.
    """

    model: str
    base_urls: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()
    takes_default_key: bool = True
    max_retries: int = 3
    deadline_seconds: float = 600.0
    max_concurrency: int = 1024
    stream: bool = False
    budget: Budget = Budget()
    record_to: str | None = None


def further_policy(own: PolicySpec, model: str, base_urls: tuple[str, ...], api_key_env: tuple[str, ...]) -> PolicySpec:
    """A policy beside the run's own. Without servers of its own it is served as that is, with the same keys."""
    if not base_urls:
        return replace(own, model=model, api_key_env=api_key_env or own.api_key_env)
    return replace(own, model=model, base_urls=base_urls, api_key_env=api_key_env, takes_default_key=False)
