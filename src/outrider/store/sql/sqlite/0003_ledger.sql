-- Ledgers of groups: which were opened, what became of them, who may begin, and what each attempt took.
CREATE TABLE ledgers (
    name      TEXT PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    version   INTEGER NOT NULL DEFAULT 0,
    n_opened  INTEGER NOT NULL DEFAULT 0,
    n_batches INTEGER NOT NULL DEFAULT 0,
    settings  BLOB NOT NULL,
    opened_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE groups (
    group_id  TEXT PRIMARY KEY,
    ledger    TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    state     TEXT    NOT NULL,
    tag       TEXT    NOT NULL,
    seed      INTEGER NOT NULL,
    size      INTEGER NOT NULL,
    clock     INTEGER,
    batch     INTEGER,
    members   BLOB,
    reason    TEXT,
    opened_at REAL    NOT NULL,
    moved_at  REAL    NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX groups_by_number ON groups (ledger, number);
CREATE INDEX groups_by_state ON groups (ledger, state, tag);
CREATE INDEX groups_by_batch ON groups (ledger, batch) WHERE batch IS NOT NULL;

-- Places are never given twice, though the newest asks may be forgotten: a cursor must not skip one.
CREATE TABLE asks (
    ask_seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    attempt_id TEXT NOT NULL UNIQUE,
    rollout_id TEXT NOT NULL,
    group_id   TEXT NOT NULL,
    ledger     TEXT NOT NULL,
    asked_at   REAL NOT NULL,
    version    INTEGER      -- what was granted, once it was
);
CREATE INDEX asks_by_group ON asks (group_id);
CREATE INDEX asks_open ON asks (ledger, ask_seq) WHERE version IS NULL;

CREATE TABLE accounts (
    attempt_id        TEXT PRIMARY KEY,
    rollout_id        TEXT    NOT NULL,
    group_id          TEXT    NOT NULL,
    ledger            TEXT    NOT NULL,
    fate              TEXT,
    completion_tokens INTEGER NOT NULL,
    data              BLOB    NOT NULL
) WITHOUT ROWID;
CREATE INDEX accounts_by_rollout ON accounts (rollout_id);
CREATE INDEX accounts_tally ON accounts (ledger, fate, completion_tokens);
CREATE INDEX accounts_without_fate ON accounts (ledger, group_id) WHERE fate IS NULL;
