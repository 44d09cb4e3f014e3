-- The shared store. Times are unix seconds; payloads are msgpack. Text is compared by its bytes, so that the order of
-- lanes and ids is the same on every server. No foreign keys: nothing is ever deleted, and checks cost a lock a row.

-- One row a rollout. What its current attempt holds stands here too, so that a claim is one row's update. A payload of
-- more than 2 kB lies apart (TOAST), and moving the rollout does not rewrite it.
CREATE TABLE rollouts (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rollout_id    text   COLLATE "C" NOT NULL,
    status        text   COLLATE "C" NOT NULL,
    mode          text   COLLATE "C" NOT NULL,
    tag           text   COLLATE "C",
    seed          bigint,
    group_id      text   COLLATE "C",
    priority      integer NOT NULL,
    config        bytea   NOT NULL,
    lease_seconds double precision NOT NULL, -- how long a fresh lease lasts, by its configuration
    enqueued_at   double precision NOT NULL,
    ended_at      double precision,
    reward        double precision,
    failure       bytea,
    n_attempts    integer NOT NULL DEFAULT 0,
    n_failures    integer NOT NULL DEFAULT 0,
    n_events      bigint  NOT NULL DEFAULT 0, -- of the current attempt
    attempt_id    text   COLLATE "C",
    worker_id     text   COLLATE "C",
    request_id    text   COLLATE "C", -- the claim that made the current attempt, while it is live
    request_place integer,            -- its place among what that claim took
    started_at    double precision,
    heartbeat_at  double precision,
    lane          text   COLLATE "C", -- the queue it waits in, while it waits
    expires_at    double precision,   -- when its lease ends, while it is live
    finish_seq    bigint,             -- its place in the feed, once it has ended
    input         bytea NOT NULL,
    metadata      bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX rollouts_by_id ON rollouts (rollout_id);
CREATE INDEX rollouts_by_status ON rollouts (status, seq);
CREATE INDEX rollouts_by_group ON rollouts (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX rollouts_by_tag ON rollouts (tag) WHERE tag IS NOT NULL;

-- What waits and what is live is found by small indexes, each with a condition worded so that only the queries meant
-- for it match it. Otherwise statistics from a moment when an index was empty make it look like the best way to
-- everything, and a plan that reads all of it would be kept.
CREATE INDEX rollouts_queue ON rollouts (priority DESC, seq) WHERE expires_at IS NULL AND finish_seq IS NULL;
CREATE INDEX rollouts_lanes ON rollouts (lane, priority DESC, seq) WHERE lane IS NOT NULL;
CREATE INDEX rollouts_leases ON rollouts (expires_at) WHERE expires_at > 0;
CREATE INDEX rollouts_holders ON rollouts (worker_id) WHERE expires_at IS NOT NULL;
CREATE UNIQUE INDEX rollouts_feed ON rollouts (finish_seq) WHERE finish_seq IS NOT NULL;

-- Unique, so that a claim sent twice, because its reply was lost, is carried out once even if both arrive together.
CREATE UNIQUE INDEX rollouts_claims ON rollouts (request_id, request_place) WHERE request_id IS NOT NULL;

-- One row an attempt that has ended; a live one stands in its rollout's row.
CREATE TABLE attempts (
    seq          bigint  NOT NULL,
    sequence_id  integer NOT NULL,
    attempt_id   text    COLLATE "C" NOT NULL,
    worker_id    text    COLLATE "C" NOT NULL,
    status       text    COLLATE "C" NOT NULL,
    started_at   double precision NOT NULL,
    heartbeat_at double precision NOT NULL,
    ended_at     double precision NOT NULL,
    reward       double precision,
    failure      bytea,
    PRIMARY KEY (seq, sequence_id)
);
CREATE UNIQUE INDEX attempts_by_id ON attempts (attempt_id);

CREATE TABLE events (
    seq         bigint  NOT NULL,
    sequence_id integer NOT NULL,
    place       bigint  NOT NULL,
    kind        text    COLLATE "C" NOT NULL,
    name        text    COLLATE "C" NOT NULL,
    at          double precision NOT NULL,
    data        bytea   NOT NULL,
    PRIMARY KEY (seq, sequence_id, place)
);

CREATE TABLE workers (
    worker_id     text COLLATE "C" PRIMARY KEY,
    first_seen_at double precision NOT NULL,
    last_seen_at  double precision NOT NULL
);

CREATE TABLE resources (
    version    bigint PRIMARY KEY,
    data       bytea  NOT NULL,
    created_at double precision NOT NULL
);

-- One row a connection: the number of its latest transaction, so that a commit whose reply was lost can be found out.
CREATE TABLE receipts (
    receipt_id text   COLLATE "C" PRIMARY KEY,
    number     bigint NOT NULL DEFAULT 0,
    written_at timestamptz NOT NULL DEFAULT now()
);

-- The end of the feed. Its one row is locked from the moment a place is given until that is committed, so that places
-- become visible in their order and without a gap.
CREATE TABLE feed (last bigint NOT NULL);
INSERT INTO feed (last) VALUES (0);
