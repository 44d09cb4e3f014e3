-- Resources have ids, and every attempt says which version of them it was claimed with.
ALTER TABLE resources ADD COLUMN resources_id text COLLATE "C" NOT NULL DEFAULT 'default';
CREATE INDEX resources_by_id ON resources (resources_id, version);
ALTER TABLE rollouts ADD COLUMN pinned_version bigint;    -- that its attempts must run with, by its configuration
ALTER TABLE rollouts ADD COLUMN resources_version bigint; -- of the current attempt
ALTER TABLE attempts ADD COLUMN resources_version bigint;

-- What a worker notes on its attempt.
ALTER TABLE rollouts ADD COLUMN attempt_metadata bytea;   -- on the current attempt
ALTER TABLE attempts ADD COLUMN metadata bytea;

-- What workers have done, and what they say of themselves.
ALTER TABLE workers ADD COLUMN n_succeeded bigint NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN n_failed bigint NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN last_ended_at double precision;
ALTER TABLE workers ADD COLUMN stats bytea;
