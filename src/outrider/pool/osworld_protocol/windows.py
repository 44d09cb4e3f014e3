"""Windows of the machine, and what is behind them."""

from urllib.parse import unquote

from aiohttp import web

from outrider.pool.osworld_protocol.front import FRONT, asked, failure

_BACKGROUND = ("org.gnome.desktop.background", "picture-uri")


async def _window_size(request: web.Request) -> web.Response:
    name = str((await request.post())["app_class_name"]).lower()
    listed = await request.app[FRONT].ask("wmctrl", "-lGx")
    if listed.returncode != 0:
        return failure(f"wmctrl: {listed.stderr.strip() or listed.returncode}")
    for words in map(str.split, listed.stdout.splitlines()):
        _, _, _, _, width, height, class_name, *_ = words
        if name in class_name.lower():
            return web.json_response({"width": int(width), "height": int(height)})
    return web.json_response({"message": f"no window of class {name}"}, status=404)


async def _activate_window(request: web.Request) -> web.Response:
    return await _window(request, "a")


async def _close_window(request: web.Request) -> web.Response:
    return await _window(request, "c")


async def _window(request: web.Request, letter: str) -> web.Response:
    told = await asked(request)
    option = f"-{'x' if told.get('by_class') else ''}{'F' if told.get('strict') else ''}{letter}"
    name = str(told["window_name"])
    done = await request.app[FRONT].ask("wmctrl", option, name)
    if done.returncode != 0:
        return failure(f"wmctrl: {done.stderr.strip() or f'no window {name}'}")
    return web.Response(text="done")


async def _change_wallpaper(request: web.Request) -> web.Response:
    """Where it is kept in settings, there; and as the picture of the root window, which plain window managers show."""
    front = request.app[FRONT]
    path = await front.place(str((await asked(request))["path"]))
    if await front.computer.read_file(path) is None:
        return web.Response(text=f"File not found: {path}", status=404)
    tries = [
        await front.ask("gsettings", "set", *_BACKGROUND, f"file://{path}"),
        await front.ask("hsetroot", "-cover", path),
    ]
    if all(done.returncode != 0 for done in tries):
        return failure("; ".join(done.stderr.strip() for done in tries) or "the wallpaper was not changed")
    front.wallpaper = path
    return web.Response(text="Wallpaper changed successfully")


async def _wallpaper(request: web.Request) -> web.Response:
    """The file that was last set from here, or else the one that is in the settings."""
    front = request.app[FRONT]
    path = front.wallpaper
    if path is None:
        found = await front.ask("gsettings", "get", *_BACKGROUND)
        path = unquote(found.stdout.strip().strip("'").removeprefix("file://")) if found.returncode == 0 else None
    content = None if not path else await front.computer.read_file(path)
    if content is None:
        return failure("no wallpaper was set", status=404)
    return web.Response(body=content, content_type="image/png")


ROUTES = (
    web.post("/window_size", _window_size),
    web.post("/wallpaper", _wallpaper),
    web.post("/setup/activate_window", _activate_window),
    web.post("/setup/close_window", _close_window),
    web.post("/setup/change_wallpaper", _change_wallpaper),
)
