"""The URL of a store, whose password is not seen."""

from urllib.parse import unquote_plus, urlsplit, urlunsplit

from outrider.core.errors import InvalidInput
from outrider.core.secret import MASK, Secret, is_secret_name
from outrider.core.variables import variable

VARIABLE = "OUTRIDER_STORE"
_PLAIN = ("sqlite", "memory")
"""Stores whose URLs hold no password: what looks like one is part of a file's name."""


class StoreUrl(Secret):
    """Where a store is. `shown` has `***` for its password; `reveal` is for the one that connects."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        return self._text.partition(":")[0].lower()

    @property
    def shown(self) -> str:
        """The URL with its passwords masked: before the host, and among the parameters. It need not be a valid one."""
        if self.scheme in _PLAIN:
            return self._text
        scheme, separator, rest = self._text.partition("://")
        if not separator:
            scheme, rest = "", self._text
        # A password may hold any character by mistake, "@" and "?" too: rather too much is masked than too little.
        before, at, after = rest.rpartition("@")
        user, colon, _ = before.partition(":")
        place = f"{user}:{MASK}@{after}" if at and colon else rest
        path, question, query = place.partition("?")
        parameters = (_masked(parameter) if _is_secret(parameter) else parameter for parameter in query.split("&"))
        return f"{scheme}{separator}{path}{question}{'&'.join(parameters)}"

    @property
    def without_password(self) -> str:
        """The URL as it is written into files; the password must come from elsewhere when it is read."""
        if self.scheme in _PLAIN:
            return self._text
        try:
            parts = urlsplit(self._text)
        except ValueError:
            raise InvalidInput(f"{self.shown} is not a store URL") from None
        user, at, host = parts.netloc.rpartition("@")
        query = "&".join(parameter for parameter in parts.query.split("&") if not _is_secret(parameter))
        return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query=query))

    @property
    def has_password(self) -> bool:
        return self.without_password != self._text

    def with_option(self, name: str, value: str) -> "StoreUrl":
        """The URL with one parameter set."""
        parts = urlsplit(self._text)
        options = [one for one in parts.query.split("&") if one and one.partition("=")[0] != name]
        return StoreUrl(urlunsplit(parts._replace(query="&".join([*options, f"{name}={value}"]))))

    def completed(self) -> "StoreUrl":
        """With the password in OUTRIDER_STORE, if that names this store and the URL itself has none."""
        given = StoreUrl(variable(VARIABLE) or "")
        if given and not self.has_password and given.without_password == self.without_password:
            return given
        return self


def _is_secret(parameter: str) -> bool:
    return is_secret_name(unquote_plus(parameter.partition("=")[0]))


def _masked(parameter: str) -> str:
    return f"{parameter.partition('=')[0]}={MASK}"
