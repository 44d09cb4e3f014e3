"""What a spec adds to requests: headers, and fields of the body that nothing of ours sets.

Secrets are not written down: a text `env:NAME`, in a header or anywhere in the body, is read from the environment
variable NAME where the policy is opened. A header or field whose name says that it holds a secret must be given so.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.errors import InvalidInput
from outrider.core.secret import Secret, is_secret_name
from outrider.core.variables import variable
from outrider.policy.spec import PolicySpec

FROM_ENVIRONMENT = "env:"

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"content-length", "content-type", "transfer-encoding", "connection", "host", "accept-encoding"})
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_SECRET_HEADER = re.compile(r"(.*-)?(key|token)")
_STRUCTURE = ("model", "messages", "tools", "stream", "stream_options", "n")
"""Fields of the body that say what is asked and in which form it comes back."""


class Extras(Struct, frozen=True, kw_only=True):
    """What is added to every request of a policy. `secrets` are the texts that must not be seen in what comes back."""

    headers: Mapping[str, str] = {}
    body: Mapping[str, Any] = {}
    secrets: tuple[Secret, ...] = ()


def extras_of(spec: PolicySpec) -> Extras:
    """The spec's headers and fields with their secrets in place. `InvalidInput` for those that cannot be sent."""
    check_extras(spec.headers, spec.extra_body)
    secrets: list[Secret] = []
    headers = {name: _filled(value, secrets) for name, value in spec.headers.items()}
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise InvalidInput(f"the value of the header {name!r} has characters that a header cannot have")
    return Extras(headers=headers, body=_filled(dict(spec.extra_body), secrets), secrets=tuple(secrets))


def check_extras(headers: Mapping[str, str], extra_body: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for what cannot be sent, and for secrets that are written down."""
    for name, value in headers.items():
        _check_header(name, value)
    for field in _STRUCTURE:
        if field in extra_body:
            raise InvalidInput(f"extra_body sets {field!r}, which every request has its own of; leave it out")
    if exposed := next(_written_secrets(extra_body, "extra_body"), None):
        raise InvalidInput(f"{exposed} looks like a secret; write {FROM_ENVIRONMENT}NAME, and set the variable NAME")


def secrets_of(spec: PolicySpec) -> Iterator[tuple[str, str]]:
    """Each header and field that has a secret, and the variable that holds it."""
    for name, value in spec.headers.items():
        for _, variable_name in _references(value, name):
            yield f"the header {name!r}", variable_name
    yield from _references(spec.extra_body, "extra_body")


def without_secrets(spec: PolicySpec) -> PolicySpec:
    """The spec for a server that its secrets were not named for."""
    headers = {name: value for name, value in spec.headers.items() if not _is_reference(value)}
    body = {name: value for name, value in spec.extra_body.items() if not any(_references(value, name))}
    return replace(spec, headers=headers, extra_body=body)


def _check_header(name: str, value: str) -> None:
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} cannot be the name of a header")
    if lower in _OURS:
        raise InvalidInput(f"the header {name!r} is set by the client itself; leave it out")
    is_secret = lower in _SECRET_HEADERS or is_secret_name(lower) or _SECRET_HEADER.fullmatch(lower)
    if is_secret and not _is_reference(value):
        raise InvalidInput(
            f"the header {name!r} looks like a secret; write {name}={FROM_ENVIRONMENT}NAME, and set the variable NAME"
        )


def _written_secrets(value: Any, path: str) -> Iterator[str]:
    """Where a secret is written down."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, str) and is_secret_name(str(name)) and not _is_reference(inner):
                yield f"{path}.{name}"
            yield from _written_secrets(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _written_secrets(inner, f"{path}[{number}]")


def _references(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The references in `value`: where each one is, and the variable that it names."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _references(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _references(inner, f"{path}[{number}]")
    elif _is_reference(value):
        yield path, value.removeprefix(FROM_ENVIRONMENT)


def _filled(value: Any, secrets: list[Secret]) -> Any:
    """`value` with what its references stand for, which is added to `secrets`."""
    if isinstance(value, Mapping):
        return {name: _filled(inner, secrets) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(inner, secrets) for inner in value]
    if not _is_reference(value):
        return value
    name = value.removeprefix(FROM_ENVIRONMENT)
    found = (variable(name) or "").strip()
    if not found:
        raise InvalidInput(f"{value!r} names the environment variable {name!r}, which is not set")
    secrets.append(Secret(found))
    return found


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(FROM_ENVIRONMENT)
