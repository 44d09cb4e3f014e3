"""Which environment variables the episodes of a worker and pools of machines need, and which of them are keys."""

from collections.abc import Iterable, Iterator, Mapping

from outrider.core.secret import Secret
from outrider.core.variables import keys_here
from outrider.policy.extras import FROM_ENVIRONMENT
from outrider.policy.openai.address import KEY_VARIABLE
from outrider.policy.spec import NO_KEY
from outrider.runner.kit import EpisodeSpec

PASSWORD_VARIABLE = "PGPASSWORD"  # noqa: S105 its name
CLOUD = "AWS_"


def key_names(episodes: EpisodeSpec) -> frozenset[str]:
    """The variables that are named as keys: of policies, judges, servers of vectors and of tools."""
    policies = [*([episodes.policy] if episodes.policy else []), *episodes.policies.values()]
    found = {name for policy in policies for name in policy.api_key_env}
    for policy in policies:
        found.update(_named_in([policy.headers, policy.extra_body]))
    found.update(_named_in([kind.config for kind in episodes.environments.values()]))
    found.update(server.bearer_variable for server in episodes.mcp if server.bearer_variable)
    return frozenset(found - {NO_KEY})


def needed_names(episodes: EpisodeSpec) -> frozenset[str]:
    """All variables whose values a worker needs, beside those that agents read by themselves."""
    by_default = {PASSWORD_VARIABLE, *([KEY_VARIABLE] if episodes.policy else [])}
    return key_names(episodes) | by_default | tool_variables(episodes)


def keys_of_pools() -> dict[str, Secret]:
    """The keys that a pool of machines needs in another process: of its store, and of the cloud it is in."""
    return {name: key for name, key in keys_here().items() if name == PASSWORD_VARIABLE or name.startswith(CLOUD)}


def tool_variables(episodes: EpisodeSpec) -> frozenset[str]:
    """Those that servers of tools get when they are started."""
    return frozenset(name for server in episodes.mcp for name in server.variables)


def _named_in(settings: object) -> Iterator[str]:
    """What settings name as `api_key_env` or refer to as `env:NAME`, however deep."""
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(settings, Mapping):
        inner = settings.items()
    elif isinstance(settings, (list, tuple)):
        inner = enumerate(settings)
    elif isinstance(settings, str) and settings.startswith(FROM_ENVIRONMENT):
        yield settings.removeprefix(FROM_ENVIRONMENT)
    for name, value in inner:
        if name == "api_key_env":
            yield from map(str, value if isinstance(value, (list, tuple)) else [value])
        else:
            yield from _named_in(value)
