"""Which policy to run and how, in a form that crosses process borders and can be saved with a run. Holds no secret."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.bounds import Amount, Count, PositiveCount, PositiveSeconds, Seconds, TokenCount, check_bounds

NO_KEY = "none"
"""Stands for the name of a variable where a server gets no key."""

SILENCE_SECONDS = 120.0


class Budget(Struct, frozen=True, kw_only=True):
    """What a run may use up; None: no limit. Prices are per million tokens, in whatever money `money` counts."""

    tokens: TokenCount | None = None
    money: Amount | None = None
    seconds: Seconds | None = None
    prompt_price: Amount = 0.0
    completion_price: Amount = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)


class PolicySpec(Struct, frozen=True, kw_only=True):
    """`model` is a name the server knows, `builtin:NAME?option=value`, or `replay:FILE`.

    Keys are read from the environment where the policy is opened, never saved: `api_key_env` names the variable for all
    servers, or one for each in their order; "none": no key. Where it names nothing, `takes_default_key` says whether
    OPENAI_API_KEY may go to a server other than OpenAI's, if it is the only one; see `policy.openai.address`.
    `max_retries` counts the tries after the first, per call, of several servers those after each has failed it once;
    `deadline_seconds` bounds a call with all of them. Once a server has said nothing to any of its calls for
    `silence_seconds`, they are sent to another too, if there is one; see `policy.openai.policy`.
    `extra_body` and `headers` are added to every request; a text `env:NAME` in them is read from the variable NAME
    where the policy is opened.
    """

    model: str
    base_urls: tuple[str, ...] = ()
    api_key_env: tuple[str, ...] = ()
    takes_default_key: bool = True
    max_retries: Count = 3
    deadline_seconds: PositiveSeconds = 600.0
    silence_seconds: PositiveSeconds = SILENCE_SECONDS
    max_concurrency: PositiveCount = 1024
    stream: bool = False
    extra_body: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    budget: Budget = Budget()
    record_to: str | None = None

    def __post_init__(self) -> None:
        check_bounds(self)

    def __hash__(self) -> int:
        """Not of the mappings, which have none; equal specs have equal hashes."""
        return hash((self.model, self.base_urls, self.api_key_env, self.record_to))


def further_policy(
    own: PolicySpec,
    model: str,
    *,
    base_urls: tuple[str, ...] = (),
    api_key_env: tuple[str, ...] = (),
    extra_body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> PolicySpec:
    """A policy beside the run's own. Without servers of its own it is served as that is, with the same keys.

    So are then its headers and further fields, with its own put over them; other servers get only its own.
    """
    extra_body, headers = extra_body or {}, headers or {}
    if not base_urls:
        return replace(
            own,
            model=model,
            api_key_env=api_key_env or own.api_key_env,
            extra_body={**own.extra_body, **extra_body},
            headers={**own.headers, **headers},
        )
    return replace(
        own,
        model=model,
        base_urls=base_urls,
        api_key_env=api_key_env,
        takes_default_key=False,
        extra_body=extra_body,
        headers=headers,
    )
