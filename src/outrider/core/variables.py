"""Environment variables that hold keys: kept out of the environment of agents and of the programs that they start.

Invariants:
- What is withheld is not in `os.environ`, nor in `/proc/PID/environ`, nor in the environment of a process that is
  started from then on.
- Code of ours reads a key by `variable`, which finds it whether it is withheld or not.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from outrider.core.secret import Secret

KEY_NAMES = ("*API_KEY", "*ACCESS_KEY", "*PRIVATE_KEY", "*_TOKEN", "*SECRET*", "*PASSWORD*", "*PASSWD*")
"""Variables with such names hold keys, in capitals or not."""

_URL_WITH_PASSWORD = re.compile(r"postgres(ql)?://(\S*:\S*@|\S*[?&](ssl)?password=)", re.IGNORECASE)

_withheld: dict[str, Secret] = {}
"""Of the process, as `os.environ` is. An empty secret: the value is not known here."""


def holds_key(name: str, value: str) -> bool:
    """Whether a variable looks as if it held a key: by its name, or as the URL of a database with a password in it."""
    upper = name.upper()
    return any(fnmatchcase(upper, pattern) for pattern in KEY_NAMES) or bool(_URL_WITH_PASSWORD.match(value))


def variable(name: str) -> str | None:
    """The value of a variable, one that is withheld too."""
    withheld = _withheld.get(name)
    return withheld.reveal() if withheld else os.environ.get(name)


def keys_here(names: Collection[str] = (), passed: Collection[str] = ()) -> dict[str, Secret]:
    """The variables of this process that hold keys: those that look so, and those in `names`; without `passed` ones."""
    found = {name: Secret(value) for name, value in os.environ.items() if name in names or holds_key(name, value)}
    return {name: key for name, key in {**_withheld, **found}.items() if name not in passed}


@contextmanager
def withheld(keys: Mapping[str, Secret], passed: Collection[str] = ()) -> Iterator[None]:
    """Have `keys`, and what else looks like one, out of this process's environment while the block runs.

    A key that is empty in `keys` has the value that it has here, if any.
    """
    found = keys_here(keys, passed)
    before = dict(_withheld)
    taken = {name: os.environ.pop(name) for name in found if name in os.environ}
    _wipe_first_values(taken)
    _withheld.update({**keys, **found, **{name: key for name, key in keys.items() if key}})
    try:
        yield
    finally:
        _withheld.clear()
        _withheld.update(before)
        os.environ.update(taken)


def _wipe_first_values(names: Collection[str]) -> None:
    """Overwrite the values that the process was started with: `/proc/PID/environ` shows that memory."""
    if not names or sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 there is no need of it elsewhere

    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    place = begin
    for entry in ctypes.string_at(begin, end - begin).split(b"\0"):
        name, _, value = entry.partition(b"=")
        if os.fsdecode(name) in names:
            ctypes.memset(place + len(entry) - len(value), 0, len(value))
        place += len(entry) + 1


def withheld_names() -> list[str]:
    return sorted(_withheld)


def hint_about(text: str) -> str:
    """What to do, if `text`, the message of an error, names a variable that is withheld; else nothing."""
    named = [name for name in withheld_names() if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    return f"; {named[0]} is not in the environment of agents, --pass-env {named[0]} hands it on" if named else ""
