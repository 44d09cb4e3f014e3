-- name: open_pool
-- A new pool, or the next epoch of the one there is.
INSERT INTO pools (name, epoch, opened_at, n_writes) VALUES (?, 1, ?, 0)
ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1, opened_at = excluded.opened_at, n_writes = 0, digest = NULL
RETURNING epoch

-- name: pools
-- All pools.
SELECT {pool} FROM pools ORDER BY name

-- name: written
-- How far the journal of one pool is.
SELECT {written} FROM pools WHERE name = ?

-- name: set_written
-- One write more.
UPDATE pools SET n_writes = ?, digest = ? WHERE name = ?

-- name: machines
-- Those of these machines that there are.
SELECT {machine} FROM machines WHERE machine_id IN (SELECT value FROM json_each(?))

-- name: put_machine
-- A machine as it stands now.
INSERT OR REPLACE INTO machines ({machine}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_machine_move
-- A move that a machine made.
INSERT INTO machine_moves ({move}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
