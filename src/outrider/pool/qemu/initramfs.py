"""An initial file system for Linux, packed without tools and without root."""

import gzip
import lzma
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from outrider.core.errors import InvalidInput

_HEADER = b"070701"
_ALIGNMENT = 4
_UNPACK_SECONDS = 60.0

_FOLDER = 0o040755
_PROGRAM = 0o100755


def pack(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A compressed cpio archive of these files, all of them programs of root. Equal files give equal bytes."""
    archive = bytearray()
    folders: set[str] = set()
    number = 0
    for path, content in files:
        for folder in [str(parent) for parent in reversed(Path(path).parents)][1:]:
            if folder not in folders:
                folders.add(folder)
                archive += _entry(number := number + 1, folder, _FOLDER, b"")
        archive += _entry(number := number + 1, path, _PROGRAM, content)
    archive += _entry(0, "TRAILER!!!", 0, b"")
    return gzip.compress(bytes(archive), compresslevel=6, mtime=0)


def _entry(number: int, path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = _HEADER + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)


def modules(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """These modules of a kernel and those they need, name and content, in an order in which they can be loaded.

    Raises `InvalidInput` for one that the kernel has not.
    """
    needs = _needs(folder)
    built_in = {_name(line) for line in (folder / "modules.builtin").read_text().splitlines()}
    seen: set[str] = set()
    for name in names:
        if name in built_in:
            continue
        if name not in needs:
            raise InvalidInput(f"the kernel of {folder} has no module {name}; install linux-image-cloud-amd64")
        path, others = needs[name]
        for file in (*reversed(others), path):
            if file not in seen:
                seen.add(file)
                yield f"{_name(file)}.ko", _content(folder / file)


def _needs(folder: Path) -> dict[str, tuple[str, list[str]]]:
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[_name(path)] = (path, others.split())
    return needs


def _name(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    match path.suffix:
        case ".xz":
            return lzma.decompress(path.read_bytes())
        case ".gz":
            return gzip.decompress(path.read_bytes())
        case ".zst":
            if shutil.which("zstd") is None:
                raise InvalidInput(f"{path} is packed by zstd, which is not there; install zstd")
            unpacked = subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True, timeout=_UNPACK_SECONDS)
            return unpacked.stdout
        case _:
            return path.read_bytes()
