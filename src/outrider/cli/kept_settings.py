"""Settings as they are kept in the folder of a run: without passwords, keys and tokens."""

from collections.abc import Mapping
from typing import Any

import msgspec

from outrider.core.errors import InvalidInput
from outrider.core.secret import MASK, hidden, masked_in, shown_of
from outrider.store import StoreUrl


def settings_to_keep(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings in JSON-like parts: the URL of a store without its password, `***` for each other secret."""
    kept: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=_kept)
    return kept


def _kept(value: object) -> str:
    return value.without_password if isinstance(value, StoreUrl) else shown_of(value)


def with_hidden(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values, with the secrets in the setting of this name hidden."""
    return {**values, name: hidden(values[name])} if name in values else dict(values)


def refuse_masked(value: Any, name: str, *, flag: str) -> None:
    """Raise `InvalidInput` if a secret in the setting `name` is one that a file was written without."""
    if (masked := masked_in(value, name)) is not None:
        raise InvalidInput(f"{masked} is {MASK}, for secrets are not kept in files; give it again by {flag}")
