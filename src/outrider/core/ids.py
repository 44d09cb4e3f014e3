"""Ids: a prefix that tells the kind, then 40 bits of time and 40 random bits, so that ids sort by age."""

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)


def new_id(prefix: str) -> str:
    """A fresh id such as `ro-1q3h7k9m2x4c8v0z`; safe after a fork, since nothing is remembered."""
    milliseconds = int(time.time() * 1000) & 0xFF_FFFF_FFFF
    bits = milliseconds << 40 | int.from_bytes(os.urandom(5))
    return f"{prefix}-" + "".join([_PAIRS[bits >> shift & 1023] for shift in range(70, -1, -10)])
