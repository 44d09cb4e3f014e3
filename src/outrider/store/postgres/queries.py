"""The named queries of the PostgreSQL engine, put together."""

from collections.abc import Mapping

from outrider.store import rows
from outrider.store.sql import queries

ROLLOUT = rows.ROLLOUT.replace(" i.", " r.")
"""The columns of a rollout; its payloads stand in the same table."""

CLAIMED = f"r.seq, r.started_at, r.heartbeat_at, r.expires_at, {ROLLOUT}"
"""A rollout with what its live attempt adds; see `claims.claimed_of`."""


def _composed() -> Mapping[str, str]:
    """Queries in which another one stands as `{name}` get its text."""
    plain = queries("postgres", rollout=ROLLOUT, attempt=rows.ATTEMPT, current=rows.CURRENT, claimed=CLAIMED)
    composed = dict(plain)
    for part in ("insert_rollouts", "candidates"):
        composed = {name: sql.replace("{" + part + "}", plain[part]) for name, sql in composed.items()}
    for heads in ("all", "lane", "lanes"):
        composed[f"claim_of_{heads}"] = composed["claim"].replace("{heads}", composed[f"heads_of_{heads}"])
    return composed


SQL = _composed()
