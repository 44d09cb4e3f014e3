-- The journal of machines. Every write to a pool locks its row, so that whoever opened it meanwhile is seen, and a pool's
-- moves become visible in the order of their numbers.
CREATE TABLE pools (
    name      text   COLLATE "C" PRIMARY KEY,
    epoch     bigint NOT NULL,
    opened_at double precision NOT NULL,
    n_writes  bigint NOT NULL, -- in this epoch
    digest    bytea            -- of the last of them
) WITH (fillfactor = 50);

CREATE TABLE machines (
    machine_id text   COLLATE "C" PRIMARY KEY,
    pool       text   COLLATE "C" NOT NULL,
    provider   text   COLLATE "C" NOT NULL,
    state      text   COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    n_uses     bigint NOT NULL,
    holder     text   COLLATE "C",
    address    bytea  NOT NULL,
    reason     text   COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    moved_at   double precision NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX machines_by_state ON machines (state, pool);

CREATE TABLE machine_moves (
    move_seq   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    machine_id text   COLLATE "C" NOT NULL,
    pool       text   COLLATE "C" NOT NULL,
    before     text   COLLATE "C", -- none when the machine was made
    state      text   COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    holder     text   COLLATE "C",
    reason     text   COLLATE "C" NOT NULL,
    seconds    double precision NOT NULL,
    at         double precision NOT NULL
);
CREATE INDEX machine_moves_by_machine ON machine_moves (machine_id, move_seq);
CREATE INDEX machine_moves_by_pool ON machine_moves (pool, move_seq);
