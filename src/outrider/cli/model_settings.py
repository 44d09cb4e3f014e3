"""Settings of a model that commands share: how it is sampled, and what is added to its requests."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.bounds import PositiveCount, Share, Temperature, check_bounds
from outrider.core.errors import InvalidInput
from outrider.policy import Sampling
from outrider.policy.extras import check_extras
from outrider.policy.spec import SILENCE_SECONDS

SAMPLED = ("temperature", "top_p", "top_k", "max_tokens", "stop", "reasoning_effort")
"""Settings that become a part of each call's sampling."""

WHERE = ("base_url", "base_urls", "api_key_env")
"""Settings of a policy that say where it is served, which may change while a run is away."""


class ModelSettings(Protocol):
    """What a run and each policy beside its own can set."""

    @property
    def extra_body(self) -> Mapping[str, Any]: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class FurtherPolicySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy beside the run's own, which agents ask by its name. What it does not set is as the run has it."""

    model: str
    api_key_env: tuple[str, ...] = ()
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: PositiveCount | None = None
    max_tokens: PositiveCount | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        check_model_settings(self)


def check_model_settings(settings: ModelSettings) -> None:
    """Refuse what no request could carry, and secrets that are written down."""
    check_bounds(settings)
    if "" in getattr(settings, "stop", ()):
        raise InvalidInput("stop has an empty text, which would end every answer at once")
    check_extras(settings.headers, settings.extra_body)


def sampling_of(settings: ModelSettings, *, run: Sampling | None = None, logprobs: bool = False) -> Sampling:
    """The sampling that is set; of a further policy, put over that of the run."""
    given = {name: getattr(settings, name) for name in SAMPLED}
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    return replace(run or Sampling(logprobs=logprobs), **chosen)


def silence_seconds(given: float | None, *, within: float | None) -> float:
    """After how much silence of a server its calls are sent to another too: soon enough for that to help `within`."""
    if given is not None:
        return given
    return SILENCE_SECONDS if within is None else min(SILENCE_SECONDS, within / 2)


def lasting_policy(policy: FurtherPolicySettings) -> Any:
    """What of a policy must stay as it is when a run is resumed: its model, and what else is set, if anything."""
    settings: dict[str, Any] = msgspec.to_builtins(policy)
    lasting = {name: value for name, value in settings.items() if name not in WHERE and value not in (None, (), [], {})}
    return policy.model if lasting.keys() == {"model"} else lasting
