-- The ledger of groups. Every write to a ledger locks its row, and so does everybody who asks to begin: asks become visible
-- in the order of their numbers, and whoever follows them by number misses none.
CREATE TABLE ledgers (
    name      text   COLLATE "C" PRIMARY KEY,
    epoch     bigint NOT NULL,
    version   bigint NOT NULL DEFAULT 0,
    n_opened  bigint NOT NULL DEFAULT 0,
    n_batches bigint NOT NULL DEFAULT 0,
    settings  bytea  NOT NULL,
    opened_at double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE groups (
    group_id  text    COLLATE "C" PRIMARY KEY,
    ledger    text    COLLATE "C" NOT NULL,
    number    bigint  NOT NULL,
    state     text    COLLATE "C" NOT NULL,
    tag       text    COLLATE "C" NOT NULL,
    seed      bigint  NOT NULL,
    size      bigint  NOT NULL,
    clock     bigint,
    batch     bigint,
    members   bytea,  -- once it is complete
    reason    text    COLLATE "C",
    opened_at double precision NOT NULL,
    moved_at  double precision NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX groups_by_number ON groups (ledger, number);
CREATE INDEX groups_by_state ON groups (ledger, state, number) INCLUDE (tag);
CREATE INDEX groups_by_batch ON groups (ledger, batch, number) WHERE batch IS NOT NULL;

-- One row an attempt that asked to begin, until its group is closed. Those that wait are found by a small index, whose
-- condition is worded so that only the query meant for it matches it.
CREATE TABLE asks (
    attempt_id text   COLLATE "C" PRIMARY KEY,
    ask_seq    bigint GENERATED ALWAYS AS IDENTITY,
    rollout_id text   COLLATE "C" NOT NULL,
    group_id   text   COLLATE "C" NOT NULL,
    ledger     text   COLLATE "C" NOT NULL,
    asked_at   double precision NOT NULL,
    version    bigint -- the one it may begin with, once that is granted
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX asks_by_group ON asks (group_id);
CREATE INDEX asks_waiting ON asks (ledger, ask_seq) WHERE version IS NULL;

-- One row an attempt that has ended and said what it took. The sums over a ledger come from an index alone, for which
-- new rows are noted as visible to all early.
CREATE TABLE accounts (
    attempt_id        text    COLLATE "C" PRIMARY KEY,
    rollout_id        text    COLLATE "C" NOT NULL,
    sequence_id       integer NOT NULL,
    group_id          text    COLLATE "C" NOT NULL,
    ledger            text    COLLATE "C" NOT NULL,
    fate              text    COLLATE "C", -- once its group is closed
    completion_tokens bigint  NOT NULL,
    data              bytea   NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02);
CREATE INDEX accounts_by_rollout ON accounts (rollout_id, sequence_id);
CREATE INDEX accounts_by_fate ON accounts (ledger, fate, completion_tokens);
CREATE INDEX accounts_without_fate ON accounts (ledger, group_id) WHERE fate IS NULL;
