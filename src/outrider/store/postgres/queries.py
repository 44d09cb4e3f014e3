"""The named queries of the PostgreSQL engine, put together."""

from collections.abc import Mapping

from outrider.store import ledger_rows, machine_rows, rows
from outrider.store.sql import queries

ROLLOUT = rows.ROLLOUT.replace(" i.", " r.")
"""The columns of a rollout; its payloads stand in the same table."""

CLAIMED = (
    f"{rows.GIVEN.replace(' i.', ' r.')}, r.seq, r.status, r.n_attempts, r.attempt_id, r.worker_id, r.started_at, "
    "r.heartbeat_at, r.expires_at, r.resources_version, r.attempt_metadata, r.request_place"
)
"""A rollout with what its live attempt adds; see `claims.claimed_of`."""


def _composed() -> Mapping[str, str]:
    """Queries in which another one stands as `{name}` get its text."""
    plain = queries(
        "postgres",
        rollout=ROLLOUT,
        attempt=rows.ATTEMPT,
        last_attempt=rows.LAST_ATTEMPT,
        current=rows.CURRENT,
        worker=rows.WORKER,
        resources=rows.RESOURCES,
        claimed=CLAIMED,
        ledger=ledger_rows.LEDGER,
        group=ledger_rows.GROUP,
        closed=ledger_rows.CLOSED,
        ask=ledger_rows.ASK,
        account=ledger_rows.ACCOUNT,
        progress=ledger_rows.PROGRESS,
        pool=machine_rows.POOL,
        written=machine_rows.WRITTEN,
        machine=machine_rows.MACHINE,
        move=machine_rows.MOVE,
    )
    composed = dict(plain)
    parts = (
        "server_time",
        "insert_rollouts",
        "note_arrivals",
        "candidates",
        "attempt_id",
        "version_of_claim",
        "places_in_feed",
        "end_numbered",
        "moved_to_queue",
    )
    for part in parts:
        composed = {name: sql.replace("{" + part + "}", plain[part]) for name, sql in composed.items()}
    for heads in ("all", "mode", "tags", "lane", "lanes"):
        composed[f"claim_of_{heads}"] = composed["claim"].replace("{heads}", composed[f"heads_of_{heads}"])
    for ends, tokens, accounts in (("set_ended", "$13", "$14"), ("set_requeued", "$12", "$13")):
        kept = plain["keep_accounts"].replace("{tokens}", tokens).replace("{accounts}", accounts)
        composed[f"{ends}_with_accounts"] = composed[f"{ends}_with_accounts"].replace("{keep_accounts}", kept)
    return composed


SQL = _composed()
