"""Where a spec's servers are and which key each of them gets, from the spec and the environment.

A key goes only to the servers that it was named for:
- What `api_key_env` names goes to the servers of that spec: one variable to all, or one to each, in their order.
- Where it names nothing, OPENAI_API_KEY goes to api.openai.com, and to a server that is the only one of the run's own
  policy. Other servers (a second one, one of a further policy, a judge's) are refused until a key is named for them.
"""

import os
from ipaddress import ip_address

from msgspec.structs import replace
from yarl import URL

from outrider.core.errors import InvalidInput
from outrider.core.secret import Secret, is_secret_name
from outrider.core.variables import variable
from outrider.policy.extras import without_secrets
from outrider.policy.spec import NO_KEY, PolicySpec

PUBLIC_URL = "https://api.openai.com/v1"
URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"

_PUBLIC = URL(PUBLIC_URL).origin()
_KEY_NAMES = ("key", "sig", "signature")


def base_urls(spec: PolicySpec) -> list[URL]:
    """Those of the spec, else those in OPENAI_BASE_URL, separated by commas, else the public one."""
    given = ",".join(spec.base_urls) or os.environ.get(URL_VARIABLE, "")
    texts = [text.strip() for text in given.split(",") if text.strip()]
    return list(dict.fromkeys(_base_url(text) for text in texts or [PUBLIC_URL]))


def key_variables(spec: PolicySpec) -> dict[URL, str]:
    """The variable with the key of each server, by the server's origin; those that get no key are left out.

    Raises `InvalidInput` where it is not clear which server a key is for.
    """
    urls = base_urls(spec)
    if not spec.api_key_env and not _value(KEY_VARIABLE) and urls == [URL(PUBLIC_URL)]:
        raise InvalidInput(
            f"{KEY_VARIABLE} is not set: set it, name a server of your own with --base-url or {URL_VARIABLE}, "
            "or try it without a model: --model builtin:solver"
        )
    return _named(spec.api_key_env, urls) if spec.api_key_env else _by_default(spec, urls)


def _by_default(spec: PolicySpec, urls: list[URL]) -> dict[URL, str]:
    if not _value(KEY_VARIABLE):
        return {}
    origins = dict.fromkeys(url.origin() for url in urls)
    others = [origin for origin in origins if origin != _PUBLIC]
    if others and (len(origins) > 1 or not spec.takes_default_key):
        raise InvalidInput(
            f"is the key in {KEY_VARIABLE} for {others[0]}? Name the variable that holds the key of each server: "
            "--api-key-env NAME once for all, or once for each --base-url in their order; in a file, api_key_env "
            f"beside the server's base URL. {NO_KEY!r} sends no key"
        )
    return dict.fromkeys(origins, KEY_VARIABLE)


def keys_of(spec: PolicySpec) -> dict[URL, Secret]:
    """The key of each server, by the server's origin."""
    return {origin: Secret(_value(name)) for origin, name in key_variables(spec).items()}


def is_exposed(url: URL) -> bool:
    """Whether others can read what is sent there: it is not encrypted, and leaves this machine."""
    return url.scheme == "http" and not _is_here(url.host or "")


def moved(own: PolicySpec, *, model: str, urls: tuple[str, ...]) -> PolicySpec:
    """The policy where a trainer publishes it. A key for certain servers does not go to another that is published.

    Nor do the secrets in its headers and further fields.
    """
    spec = replace(own, model=model, base_urls=urls)
    if not {url.origin() for url in base_urls(spec)} <= {url.origin() for url in base_urls(own)}:
        spec = without_secrets(spec)
    if urls == own.base_urls or len(own.api_key_env) == 1:
        return spec
    known = _named(own.api_key_env, base_urls(own)) if own.api_key_env else _by_default(own, base_urls(own))
    if _value(KEY_VARIABLE):
        known.setdefault(_PUBLIC, KEY_VARIABLE)
    names = [known.get(url.origin(), NO_KEY) for url in base_urls(spec)]
    return replace(spec, api_key_env=tuple(names))


def _named(names: tuple[str, ...], urls: list[URL]) -> dict[URL, str]:
    if len(names) not in (1, len(urls)):
        raise InvalidInput(
            f"api_key_env names {len(names)} variables for {len(urls)} servers; give one for all, or one for each "
            "in the order of the base URLs"
        )
    found: dict[URL, str] = {}
    for url, name in zip(urls, names * len(urls) if len(names) == 1 else names, strict=True):
        if found.setdefault(url.origin(), name) != name:
            raise InvalidInput(f"api_key_env names both {found[url.origin()]} and {name} for {url.origin()}; give one")
    for name in names:
        if name != NO_KEY and not _value(name):
            raise InvalidInput(f"{name} is not set, and api_key_env names it; set it, or give {NO_KEY!r} for no key")
    return {origin: name for origin, name in found.items() if name != NO_KEY}


def _value(name: str) -> str:
    key = (variable(name) or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput(f"the environment variable {name} does not hold a key: it has odd characters")
    return key


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _base_url(text: str) -> URL:
    problem = "write it as http://host:port/v1"
    try:
        url = URL(text.rstrip("/"))
    except ValueError as exc:
        raise InvalidInput(f"base URL {text!r}: {exc}; {problem}") from exc
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput(f"base URL {text!r}: {problem}")
    secret = [name for name in url.query if is_secret_name(name) or name.lower().endswith(_KEY_NAMES)]
    if url.user is not None or url.password is not None or secret:
        shown, what = url.with_user(None).with_query(None), secret[0] if secret else "the user and password"
        raise InvalidInput(f"base URL {shown}: leave out {what}; a key goes in an environment variable")
    return url
