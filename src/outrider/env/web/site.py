"""A task's own pages: a folder served as one host, the same for every episode."""

import asyncio
import mimetypes
import re
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from outrider.core.errors import InvalidInput

BUNDLED = Path(__file__).parent.parent / "bundled" / "pages"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Response(NamedTuple):
    """What a request gets."""

    status: HTTPStatus
    body: bytes
    media_type: str = "text/html; charset=utf-8"


class Site:
    """The folder `name` in `folder`, at `http://NAME.test/`."""

    def __init__(self, folder: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"site {name!r}: a site is named by small letters, digits and hyphens")
        self._root = (folder / name).resolve()
        if not self._root.is_dir():
            known = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
            raise InvalidInput(f"site {name!r} is not in {folder}; there are {', '.join(known) or 'none'}")
        self.host = f"{name}.test"

    @property
    def url(self) -> str:
        return f"http://{self.host}/"

    async def get(self, target: str) -> Response:
        """The file that the path of `target` names; a folder stands for its `index.html`."""
        path = unquote(urlsplit(target).path).lstrip("/")
        return await asyncio.to_thread(self._read, path)

    def _read(self, path: str) -> Response:
        try:
            file = (self._root / path).resolve()
            if file.is_dir():
                file /= "index.html"
            if not file.is_relative_to(self._root):
                raise FileNotFoundError(path)
            body = file.read_bytes()
        except (OSError, ValueError):
            return Response(HTTPStatus.NOT_FOUND, b"<!doctype html><title>Not found</title><h1>No such page</h1>")
        media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Response(HTTPStatus.OK, body, f"{media_type}; charset=utf-8" if "text" in media_type else media_type)
