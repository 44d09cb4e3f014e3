-- The attempt that ends a rollout stays in the rollout's row; `attempts` holds those that were followed by another, and
-- the last ones of rollouts that ended before this migration.
ALTER TABLE rollouts ADD COLUMN attempt_status text COLLATE "C"; -- how that attempt ended, once it has ended the rollout

-- The id of an attempt tells where its rollout stands, so that heartbeats need no index of their own.
DROP INDEX rollouts_holders;

-- A rollout's row is rewritten when it is claimed and when it ends, and each time these two get an entry more for it.
-- Room for them costs less than making room.
ALTER INDEX rollouts_pkey SET (fillfactor = 50);
ALTER INDEX rollouts_by_id SET (fillfactor = 50);
