-- The embedded store. Times are unix seconds; payloads are msgpack.

-- One row a rollout. Its current attempt stands here too, so that a claim or an end is one row's update.
CREATE TABLE rollouts (
    seq          INTEGER PRIMARY KEY,
    rollout_id   TEXT    NOT NULL UNIQUE,
    status       TEXT    NOT NULL,
    mode         TEXT    NOT NULL,
    tag          TEXT,
    seed         INTEGER,
    group_id     TEXT,
    priority     INTEGER NOT NULL,
    config       BLOB    NOT NULL,
    enqueued_at  REAL    NOT NULL,
    ended_at     REAL,
    reward       REAL,
    failure      BLOB,
    n_attempts   INTEGER NOT NULL DEFAULT 0,
    n_failures   INTEGER NOT NULL DEFAULT 0,
    attempt_id     TEXT,
    attempt_status TEXT,   -- how that attempt ended, once it has ended the rollout
    worker_id    TEXT,
    request_id   TEXT,
    started_at   REAL,
    heartbeat_at REAL,
    lane         TEXT,     -- the queue it waits in, while it waits
    expires_at   REAL,     -- when its lease ends, while it is live
    finish_seq   INTEGER   -- its place in the feed, once it has ended
);
CREATE INDEX rollouts_by_status ON rollouts (status);
CREATE INDEX rollouts_by_group ON rollouts (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX rollouts_by_tag ON rollouts (tag) WHERE tag IS NOT NULL;
CREATE INDEX rollouts_queue ON rollouts (lane, priority DESC, seq) WHERE lane IS NOT NULL;
CREATE INDEX rollouts_leases ON rollouts (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX rollouts_claims ON rollouts (request_id) WHERE request_id IS NOT NULL;
CREATE UNIQUE INDEX rollouts_feed ON rollouts (finish_seq) WHERE finish_seq IS NOT NULL;

-- The payloads apart, so that moving a rollout never rewrites them.
CREATE TABLE inputs (
    seq      INTEGER PRIMARY KEY REFERENCES rollouts (seq),
    input    BLOB NOT NULL,
    metadata BLOB NOT NULL
);

-- One row an attempt that was followed by another; the last one stands in its rollout's row.
CREATE TABLE attempts (
    seq          INTEGER NOT NULL REFERENCES rollouts (seq),
    sequence_id  INTEGER NOT NULL,
    attempt_id   TEXT    NOT NULL,
    worker_id    TEXT    NOT NULL,
    status       TEXT    NOT NULL,
    started_at   REAL    NOT NULL,
    heartbeat_at REAL    NOT NULL,
    ended_at     REAL    NOT NULL,
    reward       REAL,
    failure      BLOB,
    PRIMARY KEY (seq, sequence_id)
) WITHOUT ROWID;

CREATE TABLE events (
    seq         INTEGER NOT NULL REFERENCES rollouts (seq),
    sequence_id INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    at          REAL    NOT NULL,
    data        BLOB    NOT NULL,
    PRIMARY KEY (seq, sequence_id, place)
) WITHOUT ROWID;

CREATE TABLE workers (
    worker_id     TEXT PRIMARY KEY,
    first_seen_at REAL NOT NULL,
    last_seen_at  REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE resources (
    version    INTEGER PRIMARY KEY,
    data       BLOB NOT NULL,
    created_at REAL NOT NULL
);
