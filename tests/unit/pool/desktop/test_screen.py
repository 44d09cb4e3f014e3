"""The screen becomes a PNG that says what the server has drawn, and only what has changed is packed again."""

import struct
import zlib

import pytest

from outrider.pool.desktop.inside import screen
from outrider.pool.desktop.inside.screen import Screen
from outrider.pool.desktop.inside.x11 import XError


def framebuffer(width: int, height: int, *, padding: int = 0, bits: int = 32) -> bytearray:
    """An X window dump as Xvfb keeps it, with a picture in which no two pixels are alike."""
    stride = 4 * width + padding
    fields = [0] * 25
    fields[0], fields[4], fields[5], fields[11], fields[12], fields[19] = 160, width, height, bits, stride, 2
    fields[14:17] = 0xFF0000, 0xFF00, 0xFF
    data = bytearray(struct.pack(">25I", *fields).ljust(160, b"\0") + b"\xee" * 24 + bytes(stride * height))
    for y in range(height):
        for x in range(width):
            struct.pack_into("<I", data, 184 + y * stride + 4 * x, y << 16 | x << 8 | 7)
    return data


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and rows, as a reader of PNG finds them; the check sums must be right."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        data = png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + length
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = zlib.decompress(chunks[b"IDAT"])
    size = 1 + 3 * width
    assert len(rows) == size * height
    assert all(rows[row * size] == 0 for row in range(height))
    return width, height, [rows[row * size + 1 : (row + 1) * size] for row in range(height)]


@pytest.mark.parametrize("padding", [0, 4])
def test_a_picture_is_packed_pixel_by_pixel(tmp_path, padding):
    (tmp_path / "fb").write_bytes(framebuffer(50, 90, padding=padding))
    width, height, rows = pixels(Screen(str(tmp_path / "fb")).png())
    assert (width, height) == (50, 90)
    assert rows == [bytes(value for x in range(50) for value in (y, x, 7)) for y in range(90)]


def test_only_what_has_changed_is_packed_again(tmp_path, monkeypatch):
    (tmp_path / "fb").write_bytes(framebuffer(50, 90))
    watched = Screen(str(tmp_path / "fb"))
    before = watched.png()
    packed = []
    packing = screen._rows
    monkeypatch.setattr(screen, "_rows", lambda *given: packed.append(given[2]) or packing(*given))
    assert watched.png() is before
    assert packed == []
    with (tmp_path / "fb").open("r+b") as file:
        file.seek(184 + 85 * 200 + 4 * 3)
        file.write(b"\x01\x02\x03\x00")
    assert pixels(watched.png())[2][85][9:12] == b"\x03\x02\x01"
    assert packed == [10]


def test_a_screen_of_another_kind_is_refused(tmp_path):
    (tmp_path / "fb").write_bytes(framebuffer(4, 4, bits=16))
    with pytest.raises(XError, match="16 bits"):
        Screen(str(tmp_path / "fb"))
