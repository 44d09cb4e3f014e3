"""Files and folders of the machine."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from aiohttp import web

from outrider.pool.osworld_protocol.front import FRONT, asked, failure


async def _file(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    path = await front.place(str((await request.post())["file_path"]))
    content = await front.computer.read_file(path)
    if content is None:
        return web.json_response({"error": "File not found"}, status=404)
    return web.Response(body=content, content_type="application/octet-stream")


async def _upload(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    form = await request.post()
    given = form["file_data"]
    content = given.file.read() if isinstance(given, web.FileField) else bytes(str(given), "utf-8")
    await front.computer.write_file(await front.place(str(form["file_path"])), content)
    return web.Response(text=f"File Uploaded: {len(content)} bytes")


async def _download_file(request: web.Request) -> web.Response:
    """Nothing is fetched from a network: only a file that the machine has can be put elsewhere in it."""
    front = request.app[FRONT]
    told = await asked(request)
    address = urlsplit(str(told["url"]))
    target = await front.place(str(told["path"]))
    if address.scheme != "file":
        ways = "upload the file with /setup/upload, or give a file:// address of the machine's own"
        return failure(f"nothing is fetched here; {ways}", status=501)
    content = await front.computer.read_file(unquote(address.path))
    if content is None:
        return failure(f"Failed to download {address.geturl()}: there is no such file in the machine")
    await front.computer.write_file(target, content)
    return web.Response(text=f"File downloaded successfully: {len(content)} bytes")


async def _open_file(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    path = await front.place(str((await asked(request))["path"]))
    if (await front.ask("test", "-e", path)).returncode != 0:
        return web.Response(text=f"File not found: {path}", status=404)
    if (await front.ask("which", "xdg-open")).returncode != 0:
        return failure("the machine has no xdg-open; install xdg-utils in it")
    await front.computer.launch(["xdg-open", path])
    return web.Response(text="File opened successfully")


async def _desktop_path(request: web.Request) -> web.Response:
    return web.json_response({"desktop_path": await request.app[FRONT].place("~/Desktop")})


async def _list_directory(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    top = await front.place(str((await asked(request))["path"]))
    folders, others = [await front.ask("find", top, *negation, "-type", "d") for negation in ((), ("!",))]
    if folders.returncode != 0 or top not in folders.stdout.splitlines():
        return web.json_response({"error": "The provided path is not a directory"}, status=400)
    tree = _tree(top, folders.stdout.splitlines(), others.stdout.splitlines())
    return web.json_response({"directory_tree": tree})


def _tree(top: str, folders: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {
        path: {"type": "directory", "name": PurePosixPath(path).name, "children": []} for path in folders
    }
    for path in (*folders, *others):
        parent = str(PurePosixPath(path).parent)
        if path != top and parent in nodes:
            nodes[parent]["children"].append(nodes.get(path) or {"type": "file", "name": PurePosixPath(path).name})
    return nodes[top]


ROUTES = (
    web.post("/file", _file),
    web.post("/desktop_path", _desktop_path),
    web.post("/list_directory", _list_directory),
    web.post("/setup/upload", _upload),
    web.post("/setup/download_file", _download_file),
    web.post("/setup/open_file", _open_file),
)
