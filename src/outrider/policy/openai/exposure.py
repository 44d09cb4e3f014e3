"""Which secrets of a policy others could read on their way, and which could reach a server that they are not for."""

from collections.abc import Iterator

from yarl import URL

from outrider.core.errors import InvalidInput
from outrider.policy.extras import secrets_of
from outrider.policy.openai.address import base_urls, is_exposed, key_variables
from outrider.policy.spec import NO_KEY, PolicySpec


def exposed_secrets(spec: PolicySpec) -> Iterator[str]:
    """A warning for each key, header and field that leaves this machine unencrypted."""
    for origin, name in key_variables(spec).items():
        if is_exposed(origin):
            yield f"the key in {name} {_is_readable(origin)}, or --api-key-env {NO_KEY}"
    origins = dict.fromkeys(url.origin() for url in base_urls(spec))
    for what, name in secrets_of(spec):
        for origin in filter(is_exposed, origins):
            yield f"{what} with the secret in {name} {_is_readable(origin)}"


def check_one_origin(spec: PolicySpec) -> None:
    """Raise `InvalidInput` if the policy has secrets in headers or fields and servers of several origins.

    Headers and fields go to all servers of a policy, so it would not be clear which server a secret is for.
    """
    origins = dict.fromkeys(str(url.origin()) for url in base_urls(spec))
    what, name = next(secrets_of(spec), ("", ""))
    if what and len(origins) > 1:
        raise InvalidInput(
            f"{what} has the secret in {name}, and it would go to all servers of this policy: {', '.join(origins)}. "
            "Give each server a policy of its own (`policies: {NAME: {model: …, base_url: [URL], headers: {…}}}`), or "
            "send a key instead, which is named for its server: --api-key-env once for each --base-url"
        )


def _is_readable(origin: URL) -> str:
    return f"goes to {origin} unencrypted, and anybody on the way can read it; use https"
