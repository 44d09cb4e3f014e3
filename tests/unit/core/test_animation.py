import struct
import zlib
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.animation import Animation, fitted

SIZE = (4, 2)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def picture(
    shade: int, *, size: tuple[int, int] = SIZE, colour: int = 0, is_whole: bool = True, padding: int = 0
) -> bytes:
    """All of one shade; `padding` makes the file larger."""
    width, height = size
    pixels = zlib.compress((b"\0" + bytes([shade % 256]) * width) * height) + bytes(padding)
    parts = [pixels] if is_whole else [pixels[:5], pixels[5:]]
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    middle = b"".join(chunk(b"IDAT", part) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"tEXt", b"a\0b") + middle + chunk(b"IEND", b"")


class Shown(NamedTuple):
    shade: int
    seconds: float


def read(file: bytes | None) -> list[Shown]:
    """The frames of an animated PNG, each chunk of it checked by the letter of the format."""
    assert file is not None
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    place, n_numbers, n_told, frames, kinds = 8, 0, 0, [], []
    seconds, width = 0.0, 0
    while place < len(file):
        (length,) = struct.unpack_from(">I", file, place)
        kind, content = file[place + 4 : place + 8], file[place + 8 : place + 8 + length]
        assert file[place : place + 12 + length] == chunk(kind, content)
        place += 12 + length
        kinds.append(kind)
        if kind == b"IHDR":
            width, _ = struct.unpack_from(">II", content)
        elif kind == b"acTL":
            n_told, n_plays = struct.unpack(">II", content)
            assert n_plays == 0
        elif kind == b"fcTL":
            number, *area, delay, unit, disposal, blend = struct.unpack(">IIIIIHHBB", content)
            assert (area, disposal, blend) == ([*SIZE, 0, 0], 0, 0)
            assert number == n_numbers
            n_numbers += 1
            seconds = delay / unit
        elif kind in (b"IDAT", b"fdAT"):
            if kind == b"fdAT":
                assert struct.unpack_from(">I", content) == (n_numbers,)
                n_numbers += 1
            pixels = zlib.decompressobj().decompress(content[4 if kind == b"fdAT" else 0 :])
            assert len(pixels) == (width + 1) * SIZE[1]
            frames.append(Shown(pixels[1], seconds))
    assert (kinds[0], kinds[-1], n_told) == (b"IHDR", b"IEND", len(frames))
    return frames


def recorded(*shades: int, max_bytes: int = 1 << 20) -> Animation:
    """A picture a second."""
    animation = Animation(max_bytes)
    for at, shade in enumerate(shades):
        animation.add(picture(shade), float(at))
    return animation


def test_each_picture_that_differs_is_shown_for_as_long_as_it_stood_but_no_longer_than_one_would_watch():
    animation = Animation(1 << 20)
    for at, shade in [(10.0, 1), (10.5, 2), (10.6, 2), (10.7, 3), (50.0, 4), (50.001, 5)]:
        animation.add(picture(shade, is_whole=shade % 2 == 0), at)
    assert read(animation.png()) == [(1, 0.5), (2, 0.2), (3, 2.0), (4, 0.02), (5, 2.0)]
    assert Animation(1 << 20).png() is None


OTHERS = {
    "another size": picture(2, size=(2, 4)),
    "other colours": picture(2, colour=4),
    "nothing": b"",
    "no PNG": b"GIF89a",
    "cut off": picture(2)[:-20],
    "nonsense": b"\x89PNG\r\n\x1a\n\xff\xff\xff\xff",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_no_picture_of_the_same_form_is_left_out(other):
    animation = recorded(1)
    animation.add(other, 1.0)
    animation.add(picture(3), 2.0)
    assert [frame.shade for frame in read(animation.png())] == [1, 3]


def test_pictures_of_another_palette_are_left_out():
    def with_palette(shade: int, palette: bytes) -> bytes:
        plain = picture(shade, colour=3)
        end = plain.index(b"tEXt") - 4
        return plain[:end] + chunk(b"PLTE", palette) + plain[end:]

    animation = Animation(1 << 20)
    for at, (shade, palette) in enumerate([(1, b"abc"), (2, b"xyz"), (3, b"abc")]):
        animation.add(with_palette(shade, palette), float(at))
    file = animation.png()
    assert [frame.shade for frame in read(file)] == [1, 3]
    assert file is not None
    assert chunk(b"PLTE", b"abc") in file


def test_the_ends_of_steps_outlast_the_pictures_between_them():
    one = len(picture(0)) + 60
    animation = Animation(one * 10)
    for at in range(200):
        animation.add(picture(at), float(at), keep=at % 40 == 39)
    shades = [frame.shade for frame in read(animation.png())]
    assert {0, 39, 79, 119, 159, 199} <= set(shades)
    assert shades == sorted(shades)


def test_without_anything_else_to_leave_out_ends_of_steps_go_too_but_not_the_first_and_the_last():
    animation = Animation((len(picture(0)) + 60) * 5)
    for at in range(100):
        animation.add(picture(at), float(at), keep=True)
    shades = [frame.shade for frame in read(animation.png())]
    assert (shades[0], shades[-1]) == (0, 99)
    assert len(shades) >= 3


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000), st.booleans())), st.integers(0, 8000))
def test_it_is_never_larger_than_it_may_be(seen, max_bytes):
    animation = Animation(max_bytes)
    for at, (shade, padding, keep) in enumerate(seen):
        animation.add(picture(shade, padding=padding), float(at), keep=keep)
        file = animation.png()
        if file is not None:
            assert len(file) <= max_bytes
            assert read(file)
            assert len(animation) == len(read(file))


def test_a_file_is_made_to_fit_by_leaving_pictures_out():
    file = recorded(*range(50)).png()
    assert file is not None
    assert fitted(file, len(file)) == file
    small = fitted(file, len(file) // 3)
    frames = read(small)
    assert small is not None
    assert len(small) <= len(file) // 3
    assert (frames[0].shade, frames[-1].shade) == (0, 49)
    assert len(frames) >= 8
    assert sum(frame.seconds for frame in frames) <= 2 * len(frames)
    assert fitted(file, 50) is None


def test_a_file_of_pictures_that_are_not_whole_is_not_taken_apart():
    file = recorded(1, 2, 3).png()
    assert file is not None
    part = file.index(b"fcTL", file.index(b"fcTL") + 1) + 4
    moved = file[: part + 12] + struct.pack(">I", 1) + file[part + 16 :]
    assert fitted(moved, len(moved) - 1) is None
    assert fitted(b"no picture at all", 3) is None
