"""The text form of ranks and placements, as pieces: `"0-1:0-3,5"`."""

import re
from typing import NamedTuple

from outrider.core.errors import InvalidInput

_RANKS = re.compile(r"(\d{1,5})(?:\s*-\s*(\d{1,5}))?", re.ASCII)


class Piece(NamedTuple):
    """One piece between commas. `resources` is None for `all`, `processes` for an `all` that names none."""

    text: str
    resources: range | None
    processes: range | None


def parse_pieces(text: str) -> list[Piece]:
    """The pieces, with the processes of those that name none counted on from the piece before.

    Raised as `InvalidInput`: what cannot be read, a resource or process that stands twice, processes that leave one
    out, and numbers of resources and processes that do not divide.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a placement is written as a text such as '0-3', not {text!r}")
    pieces: list[Piece] = []
    texts = [piece.strip() for piece in text.split(",")]
    following = 0
    for n, piece in enumerate(texts, 1):
        where = f"placement {text!r}, piece {n} ({piece!r})"
        left, colon, right = (part.strip() for part in piece.partition(":"))
        if left == "all" and len(texts) > 1:
            raise InvalidInput(f"{where}: 'all' must stand alone, it leaves nothing for other pieces")
        resources = None if left == "all" else _ranks(left, where)
        processes = _ranks(right, where) if colon else None
        if processes is None and resources is not None:
            processes = range(following, following + len(resources))
        following = processes.stop if processes is not None else 0
        _check_division(resources, processes, where)
        pieces.append(Piece(piece, resources, processes))
    _check_resources(text, pieces)
    _check_processes(text, pieces)
    return pieces


def parse_ranks(text: str) -> list[int] | None:
    """A list of ranks such as `"0,2,5-7"`; None for `"all"`."""
    if ":" in text:
        raise InvalidInput(f"ranks {text!r} name processes after ':', which only a placement can")
    pieces = parse_pieces(text)
    return None if pieces[0].resources is None else [rank for piece in pieces for rank in piece.resources or ()]


def shared_out(resources: list[int], processes: range, where: str) -> dict[int, tuple[int, ...]]:
    """The resources of each process: several processes to a resource, or several resources to a process."""
    _check_division(resources, processes, where)
    if len(processes) >= len(resources):
        each = len(processes) // len(resources)
        return {process: (resources[n // each],) for n, process in enumerate(processes)}
    each = len(resources) // len(processes)
    return {process: tuple(resources[n * each : (n + 1) * each]) for n, process in enumerate(processes)}


def _ranks(text: str, where: str) -> range:
    found = _RANKS.fullmatch(text)
    if not found:
        raise InvalidInput(f"{where}: {text!r} is neither a rank such as '2' nor a range such as '0-3', up to 99999")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise InvalidInput(f"{where}: the range {text!r} ends before it begins")
    return range(first, last + 1)


def _check_division(resources: range | list[int] | None, processes: range | None, where: str) -> None:
    if resources is None or processes is None:
        return
    n, k = len(resources), len(processes)
    if n % k and k % n:
        raise InvalidInput(f"{where}: {k} processes cannot be divided evenly over {n} resources")


def _check_resources(text: str, pieces: list[Piece]) -> None:
    taken: dict[int, str] = {}
    for piece in pieces:
        for rank in piece.resources or ():
            if rank in taken:
                raise InvalidInput(
                    f"placement {text!r}: {piece.text!r} names resource {rank}, which {taken[rank]!r} has already"
                )
            taken[rank] = piece.text


def _check_processes(text: str, pieces: list[Piece]) -> None:
    following = 0
    for piece in sorted(pieces, key=lambda piece: piece.processes.start if piece.processes else 0):
        if piece.processes is None:
            continue
        if piece.processes.start < following:
            raise InvalidInput(
                f"placement {text!r}: {piece.text!r} places process {piece.processes.start} a second time"
            )
        if piece.processes.start > following:
            raise InvalidInput(
                f"placement {text!r}: no piece places process {following}, though {piece.text!r} places "
                f"{piece.processes.start}; processes count from 0 without gaps"
            )
        following = piece.processes.stop
