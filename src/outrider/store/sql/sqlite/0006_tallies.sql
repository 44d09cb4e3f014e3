-- Counting and listing read no more than is asked for, however many rollouts have ended; a claim not every lane.

-- How many rollouts were ever enqueued, and how many have ended how. What stands behind the places in `tallied` is not
-- added yet: whoever reads counts it as well. Neither what was enqueued nor what has ended is ever taken back.
CREATE TABLE tallies (
    tag    TEXT    NOT NULL, -- empty: of all rollouts, those without a tag too
    mode   TEXT    NOT NULL,
    status TEXT    NOT NULL, -- how they ended, or 'enqueued'
    n      INTEGER NOT NULL,
    PRIMARY KEY (tag, mode, status)
) WITHOUT ROWID;
CREATE TABLE tallied (seq INTEGER NOT NULL, finish_seq INTEGER NOT NULL);

INSERT INTO tallied SELECT
    (SELECT coalesce(max(seq), 0) FROM rollouts),
    (SELECT coalesce(max(finish_seq), 0) FROM rollouts WHERE finish_seq IS NOT NULL);
INSERT INTO tallies
WITH ended AS MATERIALIZED (
    SELECT coalesce(tag, '') AS tag, mode, CASE WHEN finish_seq IS NULL THEN 'open' ELSE status END AS status, count(*) AS n
    FROM rollouts GROUP BY 1, 2, 3
), enqueued AS (
    SELECT tag, mode, status, n FROM ended WHERE status <> 'open'
    UNION ALL
    SELECT tag, mode, 'enqueued', sum(n) FROM ended GROUP BY tag, mode
)
SELECT tag, mode, status, n FROM enqueued WHERE tag <> ''
UNION ALL
SELECT '', mode, status, sum(n) FROM enqueued GROUP BY mode, status;

-- A rollout that waits may get another mode or tag.
CREATE TRIGGER rollouts_retagged AFTER UPDATE OF mode, tag ON rollouts WHEN new.seq <= (SELECT seq FROM tallied)
BEGIN
    UPDATE tallies SET n = n - 1 WHERE tag IN ('', old.tag) AND mode = old.mode AND status = 'enqueued';
    INSERT INTO tallies SELECT '', new.mode, 'enqueued', 1 WHERE TRUE
    ON CONFLICT (tag, mode, status) DO UPDATE SET n = n + 1;
    INSERT INTO tallies SELECT new.tag, new.mode, 'enqueued', 1 WHERE new.tag IS NOT NULL
    ON CONFLICT (tag, mode, status) DO UPDATE SET n = n + 1;
END;

-- What waits, in the order of claims: of one mode, apart from what was set aside; and of one lane.
CREATE INDEX rollouts_next ON rollouts (lane >= '~', mode, priority DESC, seq) WHERE lane IS NOT NULL;
CREATE INDEX rollouts_lanes ON rollouts (lane, priority DESC, seq, tag) WHERE lane IS NOT NULL AND tag IS NOT NULL;

-- For lists: what waits, and what has ended, in either order. What is live is few, and found by its leases. Here and above
-- the last column is one of the condition: without it SQLite reads the row to make sure.
CREATE INDEX rollouts_waiting ON rollouts (mode, seq) WHERE lane IS NOT NULL;
CREATE INDEX rollouts_requeued ON rollouts (seq) WHERE status = 'requeuing';
CREATE INDEX rollouts_ended ON rollouts (mode, status, seq, finish_seq) WHERE finish_seq IS NOT NULL;
CREATE INDEX rollouts_ended_last ON rollouts (mode, status, finish_seq) WHERE finish_seq IS NOT NULL;
CREATE INDEX rollouts_ended_by_tag ON rollouts (tag, mode, status, seq, finish_seq)
    WHERE tag IS NOT NULL AND finish_seq IS NOT NULL;

-- These changed with every step of a rollout, or are contained in the above.
DROP INDEX rollouts_by_status;
DROP INDEX rollouts_by_tag;
DROP INDEX rollouts_queue;
