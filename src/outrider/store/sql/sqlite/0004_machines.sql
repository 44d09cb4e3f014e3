-- The journal of machines: who owns each pool, how its machines stand, and every move they made.
CREATE TABLE pools (
    name      TEXT PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    opened_at REAL    NOT NULL,
    n_writes  INTEGER NOT NULL, -- in this epoch
    digest    BLOB              -- of the last of them
) WITHOUT ROWID;

CREATE TABLE machines (
    machine_id TEXT PRIMARY KEY,
    pool       TEXT    NOT NULL,
    provider   TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    n_uses     INTEGER NOT NULL,
    holder     TEXT,
    address    BLOB    NOT NULL,
    reason     TEXT    NOT NULL,
    created_at REAL    NOT NULL,
    moved_at   REAL    NOT NULL
) WITHOUT ROWID;
CREATE INDEX machines_by_state ON machines (state, pool);

CREATE TABLE machine_moves (
    move_seq   INTEGER PRIMARY KEY,
    machine_id TEXT    NOT NULL,
    pool       TEXT    NOT NULL,
    before     TEXT,             -- none when the machine was made
    state      TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    holder     TEXT,
    reason     TEXT    NOT NULL,
    seconds    REAL    NOT NULL,
    at         REAL    NOT NULL
);
CREATE INDEX machine_moves_by_machine ON machine_moves (machine_id);
CREATE INDEX machine_moves_by_pool ON machine_moves (pool);
