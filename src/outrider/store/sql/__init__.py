"""The SQL of the store engines: named queries and numbered migrations, one folder a database."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path


@lru_cache
def queries(database: str, **fragments: str) -> Mapping[str, str]:
    """The named queries of `database`, each `{fragment}` replaced. A query is what follows a `-- name:` line."""
    text = "\n".join(read for name, read in _scripts(database) if not name[:4].isdigit())
    found = {}
    for block in text.split("-- name: ")[1:]:
        name, _, body = block.partition("\n")
        sql = "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))
        for fragment, columns in fragments.items():
            sql = sql.replace("{" + fragment + "}", columns)
        found[name.strip()] = sql
    return found


@lru_cache
def migrations(database: str) -> tuple[str, ...]:
    """The migrations of `database` in order; the n-th leads to schema n."""
    return tuple(read for name, read in _scripts(database) if name[:4].isdigit())


def _scripts(database: str) -> list[tuple[str, str]]:
    return sorted((script.name, script.read_text()) for script in (Path(__file__).parent / database).glob("*.sql"))
