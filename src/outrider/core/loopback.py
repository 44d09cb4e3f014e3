"""Servers for programs, not for web pages: what a page has sent is refused, wherever it lies.

Any page that somebody has open can send requests to servers on this machine. Browsers tell where they come from, in
`Origin` and `Sec-Fetch-Site`. A page whose name was made to point here (DNS rebinding) looks like our own, but for the
name in `Host`. Programs send none of these, or what fits.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

LOCAL_NAME = "localhost"
_OWN_SITES = frozenset({"same-origin", "none"})


def refusing_pages(names: Iterable[str] = ()) -> Middleware:
    """A middleware that refuses requests of foreign pages, and for hosts but addresses, localhost and `names`."""
    known = frozenset({LOCAL_NAME, *map(_plain, names)})

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if reason := refusal(request, known):
            return web.Response(status=web.HTTPForbidden.status_code, text=f"refused: {reason}\n")
        return await handler(request)

    return middleware


def refusal(request: web.BaseRequest, known: frozenset[str]) -> str:
    """Why a request is not answered; empty if it is."""
    hosts = request.headers.getall("Host", [])
    for host in hosts:
        name = _host_name(host)
        if name not in known and not _is_address(name):
            return f"this server is not known as {name!r}; say so when it is started, or ask for its address"
    for origin in request.headers.getall("Origin", []):
        if hosts != [origin.partition("://")[2]]:
            return f"a page of {origin} has sent it"
    for site in request.headers.getall("Sec-Fetch-Site", []):
        if site not in _OWN_SITES:
            return f"a page has sent it ({site})"
    return ""


def _host_name(host: str) -> str:
    with suppress(ValueError):
        return _plain(urlsplit(f"//{host}").hostname or "")
    return ""


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name.partition("%")[0]))
    return False
