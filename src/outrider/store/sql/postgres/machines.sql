-- The journal of machines.

-- name: open_pool
-- A new pool, or the next epoch of one that is there.
INSERT INTO pools (name, epoch, opened_at, n_writes) VALUES ($1, 1, $2, 0)
ON CONFLICT (name) DO UPDATE SET epoch = pools.epoch + 1, opened_at = excluded.opened_at, n_writes = 0, digest = NULL
RETURNING epoch

-- name: pools
-- All pools.
SELECT {pool} FROM pools ORDER BY name

-- name: hold_pool
-- How far the journal of one pool is; nobody else opens it or writes to it until this is committed.
SELECT {written} FROM pools WHERE name = $1 FOR UPDATE

-- name: set_written
-- One write more.
UPDATE pools SET n_writes = $2, digest = $3 WHERE name = $1

-- name: machines_by_id
-- Machines by their ids.
SELECT {machine} FROM machines WHERE machine_id = ANY($1::text[])

-- name: put_machines
-- Machines as they stand now, but for those that have just become another pool's.
INSERT INTO machines AS m ({machine})
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::bytea[],
    $9::text[], $10::double precision[], $11::double precision[])
ON CONFLICT (machine_id) DO UPDATE SET provider = excluded.provider, state = excluded.state, epoch = excluded.epoch,
    n_uses = excluded.n_uses, holder = excluded.holder, address = excluded.address, reason = excluded.reason,
    created_at = excluded.created_at, moved_at = excluded.moved_at
WHERE m.pool = excluded.pool
RETURNING m.machine_id

-- name: insert_machine_moves
-- Moves that machines made, in their order.
INSERT INTO machine_moves ({move})
SELECT {move} FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[],
    $8::double precision[], $9::double precision[]) WITH ORDINALITY AS t ({move}, place)
ORDER BY place
