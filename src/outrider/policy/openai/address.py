"""Where a spec's servers are and what key opens them, from the spec and the environment."""

import os

from yarl import URL

from outrider.core.errors import InvalidInput
from outrider.policy.spec import PolicySpec

PUBLIC_URL = "https://api.openai.com/v1"
URL_VARIABLE = "OPENAI_BASE_URL"


def base_urls(spec: PolicySpec) -> list[URL]:
    """Those of the spec, else those in OPENAI_BASE_URL, separated by commas, else the public one."""
    given = ",".join(spec.base_urls) or os.environ.get(URL_VARIABLE, "")
    texts = [text.strip() for text in given.split(",") if text.strip()]
    return list(dict.fromkeys(_base_url(text) for text in texts or [PUBLIC_URL]))


def key_of(spec: PolicySpec) -> str | None:
    """None if the variable is not set: local servers need no key; the public one is not asked without."""
    key = os.environ.get(spec.api_key_variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput(
            f"the environment variable {spec.api_key_variable} does not hold a key: it has odd characters"
        )
    if not key and base_urls(spec) == [URL(PUBLIC_URL)]:
        raise InvalidInput(
            f"{spec.api_key_variable} is not set: set it, name a server of your own with --base-url or {URL_VARIABLE}, "
            "or try it without a model: --model builtin:solver"
        )
    return key or None


def _base_url(text: str) -> URL:
    problem = "write it as http://host:port/v1"
    try:
        url = URL(text.rstrip("/"))
    except ValueError as exc:
        raise InvalidInput(f"base URL {text!r}: {exc}; {problem}") from exc
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput(f"base URL {text!r}: {problem}")
    if url.user is not None or url.password is not None:
        shown = url.with_user(None)
        raise InvalidInput(f"base URL {shown}: leave out the user and password; a key goes in an environment variable")
    return url
