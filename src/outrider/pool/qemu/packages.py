"""Files of this host by the Debian packages that brought them."""

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from outrider.core.errors import InvalidInput

_SECONDS = 60.0
_FIELDS = ("Package", "Provides", "Pre-Depends", "Depends")


class Package(NamedTuple):
    """One that is installed."""

    provides: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    """Of each, one of several names."""


def files_of(names: Sequence[str], *, without: Iterable[str]) -> list[str]:
    """What these packages and those they need have installed: paths without the first slash, folders first.

    Raises `InvalidInput` for a package that is not installed. Packages in `without` are left out, with what only they
    need.
    """
    shown = "${db:Status-Abbrev}\t" + "\t".join(f"${{{field}}}" for field in _FIELDS) + "\n"
    installed = read(_ask("-W", "-f", shown))
    if missing := [name for name in names if name not in installed]:
        raise InvalidInput(f"packages are not installed on this host; apt-get install {' '.join(missing)}")
    chosen = sorted(closure(installed, names, without))
    listed = _ask("-L", *chosen).splitlines()
    places = {place for line in listed if line.startswith("/") for place in _places(line)}
    return sorted(places - {"", "."})


def read(listing: str) -> dict[str, Package]:
    """By name, from lines of status and fields."""
    found = {}
    for line in listing.splitlines():
        status, name, provides, *needs = line.split("\t")
        if status.startswith("ii"):
            groups = [group for field in needs for group in field.split(",") if group.strip()]
            needed = tuple(tuple(_name(one) for one in group.split("|")) for group in groups)
            found[name] = Package(tuple(_name(one) for one in provides.split(",") if one.strip()), needed)
    return found


def closure(installed: dict[str, Package], names: Iterable[str], without: Iterable[str]) -> set[str]:
    """These and all that they need."""
    providers: dict[str, str] = {}
    for name, package in installed.items():
        for provided in package.provides:
            providers.setdefault(provided, name)
    left_out = set(without)
    chosen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in chosen or name in left_out:
            continue
        chosen.add(name)
        for group in installed[name].needs:
            found = [one for one in (*group, *(providers.get(one, "") for one in group)) if one in installed]
            waiting += found[:1]
    return chosen


def _name(text: str) -> str:
    """Without version and architecture."""
    return text.split("(", maxsplit=1)[0].strip().partition(":")[0]


def _places(path: str) -> Iterator[str]:
    """Where it really is, with the links on the way: packages still name `/bin`, which is a link by now."""
    if not os.path.lexists(path):
        return
    parent, name = os.path.split(path)
    real = os.path.realpath(parent)
    if real != parent:
        first = "/" + parent.split("/")[1]
        yield first[1:]
    for above in (*reversed(Path(real).parents), Path(real)):
        yield str(above)[1:]
    yield os.path.join(real, name)[1:]  # noqa: PTH118 as it is written, not resolved


def _ask(*arguments: str) -> str:
    try:
        done = subprocess.run(["dpkg-query", *arguments], check=True, capture_output=True, text=True, timeout=_SECONDS)
    except FileNotFoundError as exc:
        raise InvalidInput("a desktop guest is made of Debian's packages, and this host is not Debian") from exc
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        raise InvalidInput(f"dpkg-query has failed: {exc}") from exc
    return done.stdout
