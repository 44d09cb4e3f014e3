"""Which hosts an episode may reach, and what of it is for the operator alone to allow."""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from msgspec import Struct

from outrider.core.errors import InvalidInput

_WEB_PORTS = (80, 443)
_RULE = re.compile(r"(?P<host>\*|(?:\*\.)?[^\s/:*@\[\]]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?")


class HostRule(Struct, frozen=True, kw_only=True):
    """`*`, `example.com`, `*.example.com` (sub-domains only), each with or without `:port`.

    Without a port: 80 and 443.
    """

    host: str
    port: int | None = None

    @classmethod
    def of(cls, text: str) -> "HostRule":
        found = _RULE.fullmatch(text)
        if found is None:
            hint = "write example.com, *.example.com or example.com:8080, without scheme or path"
            raise InvalidInput(f"allowed host {text!r}: {hint}")
        return cls(host=plain_host(found["host"]), port=int(found["port"]) if found["port"] else None)

    @property
    def is_exact(self) -> bool:
        return "*" not in self.host

    def covers(self, host: str, port: int) -> bool:
        if port not in ((self.port,) if self.port is not None else _WEB_PORTS):
            return False
        if self.is_exact:
            return host == self.host
        return host.endswith(self.host.removeprefix("*"))


class AllowedHosts:
    """The operator's rules, which a task may narrow and never widen. `names` are those that a visitor meets first."""

    def __init__(self, allowed: Iterable[str], narrowed_to: Iterable[str] | None = None) -> None:
        allowed, narrowed_to = tuple(allowed), None if narrowed_to is None else tuple(narrowed_to)
        self._allowed = tuple(HostRule.of(text) for text in allowed)
        self._narrowed = None if narrowed_to is None else tuple(HostRule.of(text) for text in narrowed_to)
        self.names = allowed if narrowed_to is None else narrowed_to

    def allow(self, host: str, port: int) -> bool:
        return any(rule.covers(host, port) for rule in self._allowed) and (
            self._narrowed is None or any(rule.covers(host, port) for rule in self._narrowed)
        )

    def allow_address(self, address: str, host: str, port: int) -> bool:
        """Whether `host` may turn out to be at `address`.

        The worker's own machine and private networks (metadata services, say) are behind no wildcard: the operator
        names the host, or it is not reached, whatever its name resolves to.
        """
        return _is_public(address) or any(rule.is_exact and rule.covers(host, port) for rule in self._allowed)


def plain_host(host: str) -> str:
    """The one form in which hosts are compared: lower case, no brackets, no final dot, letters of ASCII only."""
    host = host.strip("[]").lower().rstrip(".") or host
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def _is_public(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast
