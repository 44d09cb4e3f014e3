"""Which policy to run and how, in a form that crosses process borders and can be saved with a run. Holds no secret."""

from msgspec import Struct


class Budget(Struct, frozen=True, kw_only=True):
    """What a run may use up; None: no limit. Prices are per million tokens, in whatever money `money` counts."""

    tokens: int | None = None
    money: float | None = None
    seconds: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0


class PolicySpec(Struct, frozen=True, kw_only=True):
    """`model` is a name the server knows, `builtin:NAME?option=value`, or `replay:FILE`.

    Keys are read from the environment variable `api_key_variable` where the policy is opened, never saved.
    `max_retries` counts the tries after the first, per call; `deadline_seconds` bounds a call with all of them.
    """

    model: str
    base_urls: tuple[str, ...] = ()
    api_key_variable: str = "OPENAI_API_KEY"
    max_retries: int = 3
    deadline_seconds: float = 600.0
    max_concurrency: int = 1024
    stream: bool = False
    budget: Budget = Budget()
    record_to: str | None = None
