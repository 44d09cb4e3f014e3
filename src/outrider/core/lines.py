"""Lines out of a stream of bytes that may never send one."""

import sys


class LineSplitter:
    """Cuts a stream into lines, in time linear in its length; keeps no more than `limit` bytes of a line.

    A longer line is cut there, and says by how much.
    """

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._n_bytes = 0

    @property
    def n_pending(self) -> int:
        """Bytes kept of the line that is not whole yet."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        *complete, rest = data.split(b"\n")
        lines = []
        for piece in complete:
            self._add(piece)
            lines.append(self.rest())
        self._add(rest)
        return lines

    def rest(self) -> bytes:
        """The line that is not whole, which is then forgotten."""
        n_cut = self._n_bytes - len(self._kept)
        line = bytes(self._kept)
        self._kept.clear()
        self._n_bytes = 0
        return line if n_cut == 0 else line + f"… ({n_cut:,} more bytes)".encode()

    def _add(self, piece: bytes) -> None:
        self._n_bytes += len(piece)
        self._kept += piece[: self._limit - len(self._kept)]
