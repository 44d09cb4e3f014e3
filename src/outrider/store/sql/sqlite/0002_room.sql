-- A rollout's row grows when it is claimed. It is inserted with that much room, else each claim would split full pages.
ALTER TABLE rollouts ADD COLUMN room BLOB;
