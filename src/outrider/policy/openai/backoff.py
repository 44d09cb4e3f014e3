"""How long to wait before a call is tried again."""

import random
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
SPREAD = 0.1
"""Calls that were told the same moment come back over this part of the wait, never before it."""


def pause(n_retries: int, asked_seconds: float | None, rng: random.Random) -> float:
    """The wait after `n_retries` retries, at least what the server asked for."""
    if asked_seconds is not None:
        return asked_seconds * (1.0 + rng.random() * SPREAD)
    longest: float = min(FIRST_SECONDS * 2.0 ** min(n_retries, 16), LONGEST_SECONDS)
    return longest * rng.uniform(0.5, 1.0)


def asked_pause(headers: Mapping[str, str], now: float) -> float | None:
    """What the server asks for, in seconds from `now`: `retry-after-ms`, or `Retry-After` as seconds or as a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000.0
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now)


def _number(text: str | None) -> float | None:
    """A finite number that is not negative."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None
