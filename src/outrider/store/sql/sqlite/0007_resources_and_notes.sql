-- Resources have ids, and every attempt says which version of them it was claimed with.
ALTER TABLE resources ADD COLUMN resources_id TEXT NOT NULL DEFAULT 'default';
CREATE INDEX resources_by_id ON resources (resources_id, version);
ALTER TABLE rollouts ADD COLUMN resources_version INTEGER; -- of the current attempt
ALTER TABLE attempts ADD COLUMN resources_version INTEGER;

-- What a worker notes on its attempt.
ALTER TABLE rollouts ADD COLUMN attempt_metadata BLOB;     -- on the current attempt
ALTER TABLE attempts ADD COLUMN metadata BLOB;

-- What workers have done, and what they say of themselves.
ALTER TABLE workers ADD COLUMN n_succeeded INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN n_failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN last_ended_at REAL;
ALTER TABLE workers ADD COLUMN stats BLOB;
