"""A text that must not be seen: keys, passwords, tokens."""

import re
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, NoReturn, Self

MASK = "***"


class Secret:
    """A text that only `reveal` tells.

    Printed, formatted, logged or encoded it is `***`; it refuses to be pickled. Call `reveal` where the value is used,
    as late as possible, and do not keep what it returns.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    @property
    def shown(self) -> str:
        """What may be seen of it."""
        return MASK

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        import hmac  # noqa: PLC0415 brings OpenSSL's hashes, and few programs compare secrets

        return type(self) is type(other) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((type(self), self._text))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return copy(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is not pickled; hand over what reveal() returns, if you must")


def shown_of(value: Any) -> str:
    """What an encoder writes for a secret; an `enc_hook` of msgspec."""
    if isinstance(value, Secret):
        return value.shown
    raise TypeError(f"{type(value).__name__} has no such form")


def revealed(value: Any) -> str:
    """The same for an encoder whose output only the process that it is meant for can read."""
    if isinstance(value, Secret):
        return value.reveal()
    raise TypeError(f"{type(value).__name__} has no such form")


def secret_of(kind: type, value: object) -> object:
    """A `dec_hook` of msgspec: secrets are read from texts."""
    if not issubclass(kind, Secret):
        raise TypeError(f"{kind.__name__} cannot be read")
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)


_NAME = re.compile(r"(.*(password|passwd|secret|api_?key)|(.*_)?(access|api|auth|bearer|session)_?token|token)")


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret. `eos_token` and the like do not."""
    return _NAME.fullmatch(name.strip().lower().replace("-", "_")) is not None


def hidden(value: Any) -> Any:
    """JSON-like settings with a `Secret` for each text whose name says that it is one."""
    if isinstance(value, dict):
        return {
            name: Secret(inner) if isinstance(inner, str) and is_secret_name(str(name)) else hidden(inner)
            for name, inner in value.items()
        }
    return [hidden(inner) for inner in value] if isinstance(value, list) else value


def bare(value: Any) -> Any:
    """What `hidden` was given."""
    if isinstance(value, Mapping):
        return {name: bare(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [bare(inner) for inner in value]
    return value.reveal() if isinstance(value, Secret) else value


def masked_in(value: Any, path: str = "") -> str | None:
    """The path to a secret of which only the mask is known, as a file has it that was written without."""
    if isinstance(value, Secret):
        return path if value.reveal() == MASK else None
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    found = (masked_in(inner, f"{path}.{name}".removeprefix(".")) for name, inner in pairs)
    return next(filter(None, found), None)
