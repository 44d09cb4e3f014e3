"""`?durability=` in the URL of a store: what else than the death of processes an acknowledged call survives."""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum

from outrider.core.errors import InvalidInput

_log = logging.getLogger(__name__)

OPTION = "durability"
OLD_OPTION = "synchronous"


class Durability(StrEnum):
    """Under either, what was acknowledged survives the death of any process."""

    NORMAL = "normal"
    """SQLite: the loss of power may take the last commits, never more. PostgreSQL: as the server is set."""

    FULL = "full"
    """The loss of power too: every commit is flushed to disk before it is acknowledged."""


def take_durability(options: dict[str, str], shown: str) -> Durability:
    """Take the setting out of the options of a URL. An unknown value is refused with the nearest."""
    if (old := options.pop(OLD_OPTION, None)) is not None:
        _log.warning("%s: ?%s= is now called ?%s=", shown, OLD_OPTION, OPTION)
        options.setdefault(OPTION, old)
    value = options.pop(OPTION, Durability.NORMAL)
    try:
        return Durability(value.lower())
    except ValueError:
        known = " or ".join(f"?{OPTION}={one}" for one in Durability)
        raise InvalidInput(
            f"{shown}: there is no {OPTION} {value!r}{_meant(value, Durability)}; give {known}"
        ) from None


def refuse_others(options: dict[str, str], shown: str) -> None:
    """Refuse what is left of the options of a URL that takes no other."""
    for name in options:
        raise InvalidInput(f"{shown}: a SQLite store has no option {name!r}{_meant(name, [OPTION])}")


def _meant(given: str, known: Iterable[str]) -> str:
    near = get_close_matches(given.lower(), list(known), n=1)
    return f" (did you mean {str(near[0])!r}?)" if near else ""
