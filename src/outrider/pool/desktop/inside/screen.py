"""The screen as the X server keeps it in a file, and as PNG. What has not changed since the last look costs nothing."""

import mmap
import os
import struct
import zlib

from outrider.pool.desktop.inside.x11 import XError

N_ROWS = 40
"""Rows that are looked at, and packed, together."""

_LEVEL = 1
_BITS = 32


class Screen:
    """The picture, pointer included, that a server started with `-fbdir` shares. Use it from one thread at a time."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pixels = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        head = struct.unpack_from(">25I", self._pixels)
        self.width, self.height, bits, self._stride = head[4], head[5], head[11], head[12]
        self._start = head[0] + 12 * head[19]
        if bits != _BITS or head[14:17] != (0xFF0000, 0xFF00, 0xFF):
            raise XError(f"the screen has {bits} bits a pixel or an order of colours that is not known")
        self._bands = [(row, min(row + N_ROWS, self.height)) for row in range(0, self.height, N_ROWS)]
        self._seen: list[bytes] = [b""] * len(self._bands)
        self._rows: list[bytes] = [b""] * len(self._bands)
        self._packed: list[bytes] = [b""] * len(self._bands)
        self._png = b""

    def png(self) -> bytes:
        changed = [number for number in range(len(self._bands)) if self._look(number)]
        if changed:
            self._png = self._whole()
        return self._png

    def _look(self, number: int) -> bool:
        first, end = self._bands[number]
        pixels = self._pixels[self._start + first * self._stride : self._start + end * self._stride]
        if pixels == self._seen[number]:
            return False
        self._seen[number] = pixels
        self._rows[number] = rows = _rows(pixels, self.width, end - first, self._stride)
        packing = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._packed[number] = packing.compress(rows) + packing.flush(zlib.Z_FULL_FLUSH)
        return True

    def _whole(self) -> bytes:
        total = 1
        for rows in self._rows:
            total = zlib.adler32(rows, total)
        data = b"".join((b"\x78\x01", *self._packed, b"\x03\x00", total.to_bytes(4, "big")))
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _rows(pixels: bytes, width: int, height: int, stride: int) -> bytes:
    """Rows as PNG has them: no filter, then red, green, blue."""
    out = bytearray(height * (1 + 3 * width))
    if stride == 4 * width:
        colours = bytearray(3 * width * height)
        colours[0::3], colours[1::3], colours[2::3] = pixels[2::4], pixels[1::4], pixels[0::4]
        for row in range(height):
            at = row * (1 + 3 * width) + 1
            out[at : at + 3 * width] = colours[row * 3 * width : (row + 1) * 3 * width]
        return bytes(out)
    for row in range(height):
        line = pixels[row * stride : row * stride + 4 * width]
        at = row * (1 + 3 * width) + 1
        for colour in range(3):
            out[at + colour : at + 3 * width : 3] = line[2 - colour :: 4]
    return bytes(out)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
