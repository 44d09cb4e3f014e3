"""A recording of a screen as an animated PNG, put together from pictures as they were taken: nothing is packed again.

Every browser shows such a file as a picture that moves. Pauses are shortened, so that it can be watched.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MEDIA_TYPE = "image/apng"
MAX_SHOWN_SECONDS = 2.0
"""How long one picture is shown at the most, however long the screen stood still."""

MIN_SHOWN_SECONDS = 0.02
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SHARED = frozenset({b"PLTE", b"tRNS"})
_HEAD = struct.Struct(">I4s")
_CHECKSUM_BYTES = 4
_HEADER_BYTES = 13
_CHUNK_BYTES = _HEAD.size + _CHECKSUM_BYTES
_SIZE_BYTES = 8
_NUMBER_BYTES = 4
_CONTROL_BYTES = 26
_FILE_BYTES = len(_SIGNATURE) + 3 * _CHUNK_BYTES + _HEADER_BYTES + 8
"""Signature, IHDR, acTL and IEND."""

_FRAME_BYTES = 2 * _CHUNK_BYTES + _CONTROL_BYTES + _NUMBER_BYTES
"""What fcTL and fdAT add to the pixels."""


@dataclass(slots=True)
class _Frame:
    data: bytes
    at: float
    is_kept: bool

    @property
    def size(self) -> int:
        return len(self.data) + _FRAME_BYTES


@dataclass(frozen=True, slots=True)
class _Form:
    """What all pictures of one animation must have in common: size, colours and, if there is one, the palette."""

    header: bytes
    shared: tuple[tuple[bytes, bytes], ...]

    @property
    def size(self) -> int:
        return _FILE_BYTES + sum(_CHUNK_BYTES + len(content) for _, content in self.shared)


class Animation:
    """The pictures so far, never more than `max_bytes`: when it is full, those in between are thinned out first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._form: _Form | None = None
        self._frames: list[_Frame] = []
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, picture: bytes, at: float, *, keep: bool = False) -> None:
        """A picture that was seen at this time. One like the last says nothing new; one of another form is left out.

        `keep`: it ends a step, so it goes only when nothing else is left to go.
        """
        form, pixels = _read(picture)
        if form is not None:
            self.add_pixels(form, pixels, at, keep=keep)

    def add_pixels(self, form: _Form, data: bytes, at: float, *, keep: bool = False) -> None:
        if form != (self._form or form):
            return
        if self._frames and data == self._frames[-1].data:
            self._frames[-1].is_kept |= keep
            return
        frame = _Frame(data, at, keep)
        if form.size + frame.size > self._max_bytes:
            return
        self._form = form
        self._frames.append(frame)
        self._n_bytes += frame.size
        while form.size + self._n_bytes > self._max_bytes:
            self._thin()

    def png(self) -> bytes | None:
        """The animation as a file; None if there is no picture."""
        return None if self._form is None else b"".join(self._chunks(self._form))

    def _thin(self) -> None:
        """Every other picture between the first and the last goes: of those that end no step, while there are any."""
        between = range(1, len(self._frames) - 1)
        going = [number for number in between if not self._frames[number].is_kept] or list(between) or [0]
        gone = set(going[::2])
        self._n_bytes -= sum(self._frames[number].size for number in gone)
        self._frames = [frame for number, frame in enumerate(self._frames) if number not in gone]

    def _chunks(self, form: _Form) -> Iterator[bytes]:
        yield _SIGNATURE
        yield _chunk(b"IHDR", form.header)
        yield _chunk(b"acTL", struct.pack(">II", len(self._frames), 0))
        for kind, content in form.shared:
            yield _chunk(kind, content)
        size = form.header[:_SIZE_BYTES]
        ends = [frame.at for frame in self._frames[1:]] + [self._frames[-1].at + MAX_SHOWN_SECONDS]
        number = 0
        for frame, end in zip(self._frames, ends, strict=True):
            shown = min(max(end - frame.at, MIN_SHOWN_SECONDS), MAX_SHOWN_SECONDS)
            times = struct.pack(">IIHHBB", 0, 0, round(shown * 1000), 1000, 0, 0)
            yield _chunk(b"fcTL", struct.pack(">I", number) + size + times)
            if number == 0:
                yield _chunk(b"IDAT", frame.data)
                number = 1
            else:
                yield _chunk(b"fdAT", struct.pack(">I", number + 1), frame.data)
                number += 2
        yield _chunk(b"IEND", b"")


def _chunk(kind: bytes, *contents: bytes) -> bytes:
    checksum = zlib.crc32(kind)
    for content in contents:
        checksum = zlib.crc32(content, checksum)
    return b"".join((_HEAD.pack(sum(map(len, contents)), kind), *contents, struct.pack(">I", checksum)))


def fitted(file: bytes, max_bytes: int) -> bytes | None:
    """The animation, with fewer pictures if it is larger than this.

    None if not one of them fits, or if it is not made of whole pictures, as those of `Animation` are.
    """
    if len(file) <= max_bytes:
        return file
    animation = Animation(max_bytes)
    at = 0.0
    for form, shown, pixels in _pictures(file):
        if shown is None:
            return None
        animation.add_pixels(form, pixels, at)
        at += shown
    return animation.png()


def _pictures(file: bytes) -> Iterator[tuple[_Form, float | None, bytes]]:
    """The pictures of an animation, and how long each is shown; None if it is only a part of one."""
    form: _Form | None = None
    shown: float | None = 0.0
    pixels: list[bytes] = []
    for kind, content in _chunks_of(file):
        form = _with(form, kind, content)
        if form is None:
            return
        if kind == b"IDAT":
            pixels.append(content)
        elif kind == b"fdAT":
            pixels.append(content[_NUMBER_BYTES:])
        elif kind in (b"fcTL", b"IEND"):
            if pixels:
                yield form, shown, b"".join(pixels)
            shown, pixels = _shown(form, content), []


def _shown(form: _Form, control: bytes) -> float | None:
    whole = form.header[:_SIZE_BYTES] + bytes(8)
    if len(control) != _CONTROL_BYTES or control[4:20] != whole or control[24:] != bytes(2):
        return None
    return int.from_bytes(control[20:22]) / (int.from_bytes(control[22:24]) or 100)


def _read(picture: bytes) -> tuple[_Form | None, bytes]:
    """The form of a PNG and its packed pixels; no form if it is no PNG, or not all of one."""
    form: _Form | None = None
    pixels: list[bytes] = []
    for kind, content in _chunks_of(picture):
        form = _with(form, kind, content)
        if kind == b"IDAT":
            pixels.append(content)
        elif kind == b"IEND" and pixels:
            return form, b"".join(pixels)
    return None, b""


def _with(form: _Form | None, kind: bytes, content: bytes) -> _Form | None:
    """The form as far as the chunks up to this one tell it."""
    if kind == b"IHDR":
        return _Form(content, ()) if len(content) == _HEADER_BYTES else None
    return _Form(form.header, (*form.shared, (kind, content))) if form is not None and kind in _SHARED else form


def _chunks_of(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(_SIGNATURE) if file.startswith(_SIGNATURE) else len(file)
    while place + _CHUNK_BYTES <= len(file):
        length, kind = _HEAD.unpack_from(file, place)
        place += _HEAD.size
        yield kind, file[place : place + length]
        place += length + _CHECKSUM_BYTES
