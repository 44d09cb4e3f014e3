-- Counting and listing read no more than is asked for, however many rollouts have ended; a claim not every lane.

-- How many rollouts were ever enqueued, and how many have ended how. What is in `arrivals`, and what stands behind the
-- place in `tallied`, is not added yet: whoever reads counts it as well. Neither what was enqueued nor what has ended is
-- ever taken back. Only who holds the row of `tallied` adds to the tallies, so nobody waits for anybody.
CREATE TABLE tallies (
    tag    text COLLATE "C" NOT NULL, -- empty: of all rollouts, those without a tag too
    mode   text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL, -- how they ended, or 'enqueued'
    n      bigint NOT NULL,
    PRIMARY KEY (tag, mode, status)
);
CREATE TABLE tallied (finish_seq bigint NOT NULL);

-- Rollouts become visible in another order than that of their places, so they are counted as they come.
CREATE TABLE arrivals (tag text COLLATE "C", mode text COLLATE "C" NOT NULL, n bigint NOT NULL);

INSERT INTO tallied SELECT last FROM feed;
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
CREATE FUNCTION note_retagging() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO arrivals (tag, mode, n) VALUES (old.tag, old.mode, -1), (new.tag, new.mode, 1);
    RETURN NULL;
END
$$;
CREATE TRIGGER rollouts_retagged AFTER UPDATE OF mode, tag ON rollouts
FOR EACH ROW EXECUTE FUNCTION note_retagging();

-- What waits, of one mode, in the order of claims; and for lists in the order of places.
CREATE INDEX rollouts_next ON rollouts (mode, priority DESC, seq) WHERE lane < '~';
CREATE INDEX rollouts_waiting ON rollouts (mode, seq) WHERE lane <> '';
CREATE INDEX rollouts_requeued ON rollouts (seq) WHERE status = 'requeuing';

-- What has ended, in either order; worded so that queries by the place in the feed do not match them.
CREATE INDEX rollouts_ended ON rollouts (mode, status, seq) WHERE ended_at IS NOT NULL;
CREATE INDEX rollouts_ended_last ON rollouts (mode, status, finish_seq) WHERE ended_at IS NOT NULL;
CREATE INDEX rollouts_ended_by_tag ON rollouts (tag, mode, status, seq) INCLUDE (finish_seq)
    WHERE tag IS NOT NULL AND ended_at IS NOT NULL;

-- Every version of a row had an entry in these.
DROP INDEX rollouts_by_status;
DROP INDEX rollouts_by_tag;
