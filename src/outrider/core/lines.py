"""Lines out of a stream of bytes that may never send one."""


class LineSplitter:
    """Cuts a stream into lines, in time linear in its length; keeps no more than `limit` bytes of a line.

    A longer line is cut there, and says by how much.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._n_bytes = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        *complete, rest = data.split(b"\n")
        lines = []
        for piece in complete:
            self._add(piece)
            lines.append(self.rest())
        self._add(rest)
        return lines

    def rest(self) -> str:
        """The unfinished line, which is then forgotten."""
        n_cut = self._n_bytes - len(self._kept)
        text = self._kept.decode(errors="replace")
        self._kept.clear()
        self._n_bytes = 0
        return text if n_cut == 0 else f"{text}… ({n_cut:,} more bytes)"

    def _add(self, piece: bytes) -> None:
        self._n_bytes += len(piece)
        self._kept += piece[: self._limit - len(self._kept)]
