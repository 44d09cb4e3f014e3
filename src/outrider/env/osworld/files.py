"""The files that tasks name by an address or a path: all of them are here already, none is fetched."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from outrider.core.errors import EnvError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """`addresses` says which file stands for an address.

    What is not among them is looked for in `folder`: under its path in there, or under the name that OSWorld's cache
    gives to a download. Nothing outside of the folder is read.
    """

    folder: Path | None = None
    addresses: Mapping[str, Path] = field(default_factory=dict)

    def find(self, address: str, *, saved_as: str = "") -> Path | None:
        """The file of this address or path. `saved_as` is where the task puts it."""
        if address in self.addresses:
            return self.addresses[address]
        if self.folder is None or not address or "\0" in address:
            return None
        parts = urlsplit(address)
        if parts.scheme in ("", "file"):
            return self._inside(unquote(parts.path) if parts.scheme else address)
        cached = f"{uuid.uuid5(uuid.NAMESPACE_URL, address)}_{Path(saved_as).name}"
        return self._inside(cached)

    def read(self, address: str, *, saved_as: str = "") -> bytes:
        """Raises `EnvError` if there is no such file."""
        path = self.find(address, saved_as=saved_as)
        if path is None:
            raise EnvError(f"no local file stands for {address!r}; nothing is downloaded")
        try:
            return path.read_bytes()
        except OSError as exc:
            raise EnvError(f"{address!r} cannot be read: {exc.strerror}") from exc

    def _inside(self, path: str) -> Path | None:
        assert self.folder is not None
        folder = self.folder.resolve()
        found = (folder / path).resolve()
        return found if found.is_relative_to(folder) and found.is_file() else None
