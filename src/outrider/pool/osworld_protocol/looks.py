"""What the machine shows."""

from aiohttp import web

from outrider.pool.osworld_protocol.front import FRONT


async def _screenshot(request: web.Request) -> web.Response:
    return web.Response(body=await request.app[FRONT].computer.screenshot(), content_type="image/png")


async def _terminal(request: web.Request) -> web.Response:
    return web.json_response({"output": await request.app[FRONT].computer.terminal_text(), "status": "success"})


async def _accessibility(request: web.Request) -> web.Response:
    return web.json_response({"AT": await request.app[FRONT].computer.accessibility_tree()})


async def _platform(request: web.Request) -> web.Response:
    return web.Response(text=request.app[FRONT].platform)


async def _screen_size(request: web.Request) -> web.Response:
    width, height = request.app[FRONT].computer.screen_size
    return web.json_response({"width": width, "height": height})


async def _cursor_position(request: web.Request) -> web.Response:
    """As the machine's own tool tells, or else where the pointer was last sent from here."""
    front = request.app[FRONT]
    asked = await front.ask("xdotool", "getmouselocation", "--shell")
    values = dict(line.split("=", 1) for line in asked.stdout.splitlines() if "=" in line)
    if asked.returncode == 0 and {"X", "Y"} <= values.keys():
        front.pointer = (int(values["X"]), int(values["Y"]))
    return web.json_response(front.pointer)


ROUTES = (
    web.get("/screenshot", _screenshot),
    web.get("/terminal", _terminal),
    web.get("/accessibility", _accessibility),
    web.get("/platform", _platform),
    web.get("/cursor_position", _cursor_position),
    web.post("/screen_size", _screen_size),
)
