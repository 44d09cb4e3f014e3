"""What a server's refusal means: the conversation is too long, the configuration is wrong, or try again."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import ContextOverflow, PolicyError, PolicyRefused, PolicyUnusable
from outrider.policy.openai.backoff import asked_pause
from outrider.policy.openai.reply import glimpse

MESSAGE_CHARACTERS = 2_000
"""How much of what a server says is kept."""

RETRYABLE = frozenset({408, 409, 425, 429})
OVERLOADED = frozenset({429, 503, 529})
NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})

OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"})
OVERFLOW_PHRASES = (
    "context_length_exceeded",
    "maximum context length",  # OpenAI, vLLM, SGLang
    "model's context length",  # SGLang
    "maximum model length",  # vLLM
    "context window",
    "context size",  # llama.cpp
    "maximum prompt length",
    "prompt is too long",
    "inputs tokens + max_new_tokens",  # TGI
    "reduce the length of",
    "exceed the configured limit",
)
NO_MODEL_PHRASES = (
    "does not exist",
    "not found",
    "not exist",
    "no such model",
    "unknown model",
    "invalid model name",  # LiteLLM
)
PINNED = "server is pinned to"
"""How transformers serve refuses other models than the one that it was started with."""

NO_KEY_CODES = frozenset({"no_db_connection"})
"""LiteLLM answers a key that it does not know with 400, since it has no database to look it up in."""


class Setback(PolicyError):
    """A try failed, and another may not. `asked_seconds` is the pause the server asks for."""

    def __init__(
        self,
        message: str,
        *,
        asked_seconds: float | None = None,
        is_overload: bool = False,
        is_fault: bool = False,
        is_gone: bool = False,
    ) -> None:
        super().__init__(message, stage="policy.complete")
        self.asked_seconds = asked_seconds
        self.is_overload = is_overload
        """The server has too much to do."""
        self.is_fault = is_fault
        """The server is to blame, so that others may do better."""
        self.is_gone = is_gone
        """There is no server at that address right now."""


class UnknownModel(PolicyUnusable):
    """The server does not have the model."""


class Refusal(Struct, frozen=True, kw_only=True):
    """An answer with an error status, or an error in the middle of a stream."""

    status: int
    message: str
    codes: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return f"{self.message} {' '.join(sorted(self.codes))}".lower()

    @property
    def is_overflow(self) -> bool:
        if self.status == 413 or self.codes & OVERFLOW_CODES:  # noqa: PLR2004 too large, by the standard
            return True
        return self.status in (400, 422, 500) and any(phrase in self.text for phrase in OVERFLOW_PHRASES)

    @property
    def names_no_model(self) -> bool:
        if "model_not_found" in self.codes:
            return True
        if self.status == 400 and PINNED in self.text:  # noqa: PLR2004 bad request
            return True
        is_not_found = self.status in (400, 404) and "model" in self.text
        return is_not_found and any(phrase in self.text for phrase in NO_MODEL_PHRASES)


def refusal_of(status: int, body: bytes) -> Refusal:
    """Reads `{"error": {…}}`, `{"error": "…"}`, vLLM's older `{"object": "error", …}`, `{"detail": …}` and any text."""
    try:
        content = from_json(body)
    except (ValueError, RecursionError):
        content = None
    error: Any = content
    if isinstance(content, dict):
        error = content.get("error") or content.get("detail") or content
    if isinstance(error, str):
        return Refusal(status=_status(status, None), message=_cut(error))
    if not isinstance(error, dict):
        return Refusal(status=_status(status, None), message=glimpse(body))
    message = error.get("message")
    codes = frozenset(str(error[name]) for name in ("code", "type") if isinstance(error.get(name), str))
    return Refusal(
        status=_status(status, error.get("code")),
        message=_cut(message) if isinstance(message, str) else glimpse(body),
        codes=codes,
    )


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else f"{message[:MESSAGE_CHARACTERS]}…"


def _status(status: int, code: object) -> int:
    """An error inside a stream came with status 200; it may tell the real one as its code."""
    if status != 200:  # noqa: PLR2004
        return status
    return code if isinstance(code, int) and 400 <= code < 600 else 500  # noqa: PLR2004


def error_of(
    refusal: Refusal, headers: Mapping[str, str], *, model: str, key_variable: str | None, url: str, now: float
) -> PolicyError:
    """The error to raise; a `Setback` if the call may be tried again."""
    said = f"{url} answered {refusal.status}: {refusal.message.rstrip('.')}"
    if _is_fatal(refusal):
        if "location" in headers:
            said = f"{said}. It points to {headers['location']}"
        return _unusable(refusal, said, model=model, key_variable=key_variable, url=url)
    if refusal.is_overflow:
        return ContextOverflow(said, stage="policy.complete")
    status = refusal.status
    if status in RETRYABLE or not 300 <= status < 500:  # noqa: PLR2004 the classes of the standard
        is_overload = status in OVERLOADED
        asked = asked_pause(headers, now)
        return Setback(said, asked_seconds=asked, is_overload=is_overload, is_fault=status != 429)  # noqa: PLR2004
    kind = PolicyError if status == 403 else PolicyRefused  # noqa: PLR2004 moderation may let the next answer pass
    return kind(said, stage="policy.complete")


def _is_fatal(refusal: Refusal) -> bool:
    if refusal.status == 403 and ("flagged" in refusal.text or "moderation" in refusal.text):  # noqa: PLR2004
        return False  # one conversation was refused, not the key
    if refusal.status in (401, 402, 403, 404) or 300 <= refusal.status < 400:  # noqa: PLR2004
        return True
    return bool(refusal.codes & (NO_MONEY | NO_KEY_CODES)) or refusal.names_no_model


def _unusable(refusal: Refusal, said: str, *, model: str, key_variable: str | None, url: str) -> PolicyUnusable:
    if refusal.names_no_model:
        return UnknownModel(f"{url} has no model {model!r} ({refusal.message})", stage="policy.complete")
    if refusal.status in (401, 403) or refusal.codes & NO_KEY_CODES:
        key = (
            "No key was sent: name the variable that holds its key with --api-key-env"
            if key_variable is None
            else f"The key is read from the environment variable {key_variable}"
        )
        return PolicyUnusable(f"{said}. {key}", stage="policy.complete")
    if refusal.status == 402 or refusal.codes & NO_MONEY:  # noqa: PLR2004 payment required
        account = "account" if key_variable is None else f"account behind {key_variable}"
        return PolicyUnusable(f"{said}. The {account} has no quota left", stage="policy.complete")
    return PolicyUnusable(f"{said}. Is {url} the right base URL? Most end in /v1", stage="policy.complete")
