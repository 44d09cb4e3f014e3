-- name: server_time
-- The server's own time at the beginning of a statement.
extract(epoch FROM statement_timestamp())::double precision

-- name: look
-- The time, or the one given, by how much the server's clock has jumped, and when the next lease is due.
SELECT coalesce($1, {server_time}), c.jumped, (SELECT min(expires_at) FROM rollouts WHERE expires_at > 0)
FROM lease_clock c

-- name: hold_rollouts
-- Nobody else writes to a rollout until this is committed.
LOCK TABLE rollouts IN SHARE ROW EXCLUSIVE MODE

-- name: hold_clock
-- By how much the server's clock has jumped; nobody else finds out about a jump until this is committed.
SELECT jumped FROM lease_clock FOR UPDATE

-- name: heard_between
-- Whether a worker was heard of between two times.
SELECT EXISTS (SELECT FROM workers WHERE last_seen_at > $1 AND last_seen_at < $2)

-- name: move_live
-- The server's clock has jumped, and the times of live attempts go with it, but for those that were written since.
UPDATE rollouts SET
    started_at = CASE WHEN started_at BETWEEN $2 AND $3 THEN started_at ELSE started_at + $1 END,
    heartbeat_at = CASE WHEN heartbeat_at BETWEEN $2 AND $3 THEN heartbeat_at ELSE heartbeat_at + $1 END,
    expires_at = CASE WHEN heartbeat_at BETWEEN $2 AND $3 THEN heartbeat_at + lease_seconds ELSE expires_at + $1 END
WHERE expires_at > 0

-- name: move_workers
-- So do the times at which workers were last heard of, but for those that have been silent for long.
UPDATE workers SET last_seen_at = last_seen_at + $1, first_seen_at = least(first_seen_at, last_seen_at + $1)
WHERE last_seen_at > $4 AND NOT last_seen_at BETWEEN $2 AND $3

-- name: shorten_leases
-- Leases that were renewed later than now get the term they have from now on.
UPDATE rollouts SET heartbeat_at = coalesce($1, {server_time}), expires_at = coalesce($1, {server_time}) + lease_seconds
WHERE expires_at > 0 AND heartbeat_at > coalesce($1, {server_time}) + $2

-- name: note_jump
-- The server's clock has jumped, and all follows.
UPDATE lease_clock SET jumped = jumped + $1

-- name: has_schema
-- Whether a store was ever made in the schema.
SELECT to_regclass('schema_version') IS NOT NULL

-- name: schema_version
-- Which migrations were carried out.
SELECT version FROM schema_version

-- name: migration_lock
-- One process at a time brings a schema up to date.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))

-- name: open_receipt
-- A row for a new connection; those of connections long gone are cleared away.
WITH cleared AS (DELETE FROM receipts WHERE written_at < now() - interval '1 day')
INSERT INTO receipts (receipt_id) VALUES ($1)

-- name: write_receipt
-- The number of a connection's latest transaction.
UPDATE receipts SET number = $2, written_at = now() WHERE receipt_id = $1 RETURNING number

-- name: receipt
-- That number, unless the transaction that writes the next one has not ended.
SELECT number FROM receipts WHERE receipt_id = $1 FOR UPDATE NOWAIT

-- name: notify
-- Wake those who listen, once this is committed.
SELECT pg_notify($1, $2)

-- name: insert_rollouts
-- New rollouts go to the ends of their lanes.
INSERT INTO rollouts (rollout_id, status, mode, tag, seed, group_id, priority, config, lease_seconds, lane, input,
    metadata, pinned_version, enqueued_at)
SELECT n.rollout_id, 'queuing', n.mode, n.tag, n.seed, n.group_id, n.priority, n.config, n.lease_seconds, n.lane,
    n.input, n.metadata, n.pinned_version, $13
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::integer[], $7::bytea[],
    $8::double precision[], $9::text[], $10::bytea[], $11::bytea[], $12::bigint[]) WITH ORDINALITY
    AS n (rollout_id, mode, tag, seed, group_id, priority, config, lease_seconds, lane, input, metadata, pinned_version,
    place)
ORDER BY n.place

-- name: note_arrivals
-- How many there were, for the tallies.
INSERT INTO arrivals (tag, mode, n) SELECT a.tag, a.mode, count(*) FROM added a GROUP BY a.tag, a.mode

-- name: insert_new_rollouts
-- The same, past the ids that are taken; the ids that were not.
WITH added AS ({insert_rollouts} ON CONFLICT (rollout_id) DO NOTHING RETURNING rollout_id, mode, tag),
arrived AS ({note_arrivals})
SELECT a.rollout_id FROM added a

-- name: insert_and_notify
-- The same, all or none, and wake those who wait for them.
WITH added AS ({insert_rollouts} RETURNING mode, tag), arrived AS ({note_arrivals})
SELECT count(*), (SELECT pg_notify($14, $15)) FROM added

-- name: lock_waiting
-- One rollout and its lane, locked: a claim passes it over meanwhile, or is waited for.
SELECT {rollout} FROM rollouts r WHERE r.rollout_id = $1 FOR UPDATE

-- name: change
-- A rollout that waits becomes another one, in its old place.
UPDATE rollouts SET mode = $2, tag = $3, seed = $4, group_id = $5, priority = $6, config = $7, lease_seconds = $8,
    lane = $9, input = $10, metadata = $11, pinned_version = $12
WHERE rollout_id = $1

-- name: rollouts_by_id
-- Rollouts by their ids.
SELECT {rollout} FROM rollouts r WHERE r.rollout_id = ANY($1::text[])

-- name: lanes
-- The lanes of one mode in which something waits, found by one index seek each.
WITH RECURSIVE lanes (lane) AS (
    (SELECT r.lane FROM rollouts r WHERE r.lane >= $1 AND r.lane < $2 ORDER BY r.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT r.lane FROM rollouts r WHERE r.lane > lanes.lane AND r.lane < $2 ORDER BY r.lane LIMIT 1)
    FROM lanes WHERE lanes.lane IS NOT NULL
)
SELECT lane FROM lanes WHERE lane IS NOT NULL

-- name: heads_of_all
-- The next rollouts of all lanes but those that are set aside. Rows are locked one by one until there are enough, so none
-- is locked in vain.
SELECT r.seq FROM rollouts r WHERE r.expires_at IS NULL AND r.finish_seq IS NULL AND coalesce(r.lane, '') < '~'
ORDER BY r.priority DESC, r.seq LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: heads_of_mode
-- The next rollouts of one mode.
SELECT r.seq FROM rollouts r WHERE r.mode = $7 AND r.lane < '~'
ORDER BY r.priority DESC, r.seq LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: heads_of_tags
-- Those of the first so many rollouts of all lanes that have one of many tags, and the mode if one is given.
SELECT r.seq FROM (
    SELECT q.seq FROM rollouts q WHERE q.expires_at IS NULL AND q.finish_seq IS NULL AND coalesce(q.lane, '') < '~'
    ORDER BY q.priority DESC, q.seq LIMIT $9
) c JOIN rollouts r ON r.seq = c.seq
WHERE coalesce(r.lane, '') <> '' AND ($8::text IS NULL OR r.mode = $8) AND (r.tag IN (SELECT unnest($7::text[]))) IS TRUE
ORDER BY r.priority DESC, r.seq LIMIT $1 FOR UPDATE OF r SKIP LOCKED

-- name: n_ahead
-- How many rollouts wait in all lanes, counted no further than asked.
SELECT count(*) FROM (
    SELECT FROM rollouts r WHERE r.expires_at IS NULL AND r.finish_seq IS NULL AND coalesce(r.lane, '') < '~'
    ORDER BY r.priority DESC, r.seq LIMIT $1
) w

-- name: heads_of_lane
-- The next rollouts of one lane.
SELECT r.seq FROM rollouts r WHERE r.lane = $7
ORDER BY r.priority DESC, r.seq LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: heads_of_lanes
-- The next rollouts of some lanes: the best few candidates unlocked, then the first of them that nobody holds.
SELECT r.seq FROM ({candidates}) c JOIN rollouts r ON r.seq = c.seq WHERE coalesce(r.lane, '') <> ''
ORDER BY c.priority DESC, c.seq LIMIT $1 FOR UPDATE OF r SKIP LOCKED

-- name: candidates
-- The first so many of some lanes together, whether or not another claim is taking them right now.
SELECT h.seq, h.priority FROM unnest($7::text[]) AS l (lane) CROSS JOIN LATERAL (
    SELECT q.seq, q.priority FROM rollouts q WHERE q.lane = l.lane ORDER BY q.priority DESC, q.seq LIMIT $8
) h ORDER BY h.priority DESC, h.seq LIMIT $8

-- name: n_waiting
-- How many rollouts wait in some lanes, counted no further than asked.
SELECT count(*) FROM (
    SELECT FROM unnest($1::text[]) AS l (lane)
    CROSS JOIN LATERAL (SELECT FROM rollouts q WHERE q.lane = l.lane LIMIT $2) h LIMIT $2
) w

-- name: attempt_id
-- The id of the next attempt of a rollout: where the rollout stands, which attempt it is, and a token.
'at-' || to_hex(r.seq) || '-' || (r.n_attempts + 1) || '-' || $2::text

-- name: version_of_claim
-- The version of the resources that an attempt is claimed with.
coalesce(r.pinned_version, (SELECT max(version) FROM resources WHERE resources_id = 'default'))

-- name: claim
-- The heads leave their lanes and get an attempt with a lease, each the worker of its place.
WITH heads AS MATERIALIZED ({heads}),
numbered AS (SELECT h.seq, row_number() OVER () AS place FROM heads h)
UPDATE rollouts r SET status = 'preparing', lane = NULL, failure = NULL, n_attempts = r.n_attempts + 1, n_events = 0,
    attempt_id = {attempt_id}, worker_id = ($3::text[])[n.place], request_id = $4,
    request_place = $5::integer + n.place, started_at = coalesce($6, {server_time}),
    heartbeat_at = coalesce($6, {server_time}), expires_at = coalesce($6, {server_time}) + r.lease_seconds,
    resources_version = {version_of_claim}
FROM numbered n WHERE r.seq = n.seq
RETURNING {claimed}

-- name: claimed_by_request
-- What a claim that is being repeated has claimed and still holds, after a place.
SELECT {claimed} FROM rollouts r WHERE r.request_id = $1 AND r.request_place > $2 ORDER BY r.priority DESC, r.seq

-- name: claim_one
-- A rollout that was just made is claimed past the queue.
UPDATE rollouts r SET status = 'preparing', lane = NULL, n_attempts = 1, attempt_id = {attempt_id}, worker_id = $3,
    started_at = coalesce($4, {server_time}), heartbeat_at = coalesce($4, {server_time}),
    expires_at = coalesce($4, {server_time}) + r.lease_seconds,
    resources_version = {version_of_claim}
WHERE r.rollout_id = $1 RETURNING {claimed}

-- name: claimed_by_id
-- One rollout with its live attempt, if it has one.
SELECT {claimed} FROM rollouts r WHERE r.rollout_id = $1

-- name: current
-- What fenced writes must know.
SELECT {current} FROM rollouts WHERE rollout_id = ANY($1::text[])

-- name: lock_current
-- The same, with the rows locked in the order in which every step locks them.
SELECT {current} FROM rollouts WHERE rollout_id = ANY($1::text[]) ORDER BY seq FOR UPDATE

-- name: lock_held
-- The leases of one worker, found among all leases and locked.
SELECT {current} FROM rollouts WHERE worker_id = $1 AND expires_at > 0 ORDER BY seq FOR UPDATE

-- name: lock_expired
-- Live rollouts whose lease is due, the longest overdue first; those that are just being moved are left alone.
SELECT {current} FROM rollouts WHERE expires_at > 0 AND expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: next_expiry
-- When the next lease is due.
SELECT min(expires_at) FROM rollouts WHERE expires_at > 0

-- name: set_metadata
-- What is noted on attempts that still hold their lease.
WITH locked AS MATERIALIZED (
    SELECT t.seq, t.metadata FROM unnest($1::bigint[], $2::integer[], $3::bytea[]) AS t (seq, n_attempts, metadata)
    JOIN rollouts r ON r.seq = t.seq
    WHERE r.n_attempts = t.n_attempts AND coalesce(r.expires_at, 0) > 0
    ORDER BY r.seq FOR UPDATE OF r
)
UPDATE rollouts r SET attempt_metadata = l.metadata FROM locked l WHERE r.seq = l.seq

-- name: set_live
-- Attempts say that they act, who runs them, or that events follow; for those that still hold their lease, in the order
-- of seq, with the places kept for their events.
WITH locked AS MATERIALIZED (
    SELECT t.seq, t.status, t.worker_id, t.n_new, coalesce(t.first_index, r.n_events) AS first
    FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
        AS t (seq, n_attempts, status, worker_id, first_index, n_new)
    JOIN rollouts r ON r.seq = t.seq
    WHERE r.n_attempts = t.n_attempts AND coalesce(r.expires_at, 0) > 0
    ORDER BY r.seq FOR UPDATE OF r
)
UPDATE rollouts r SET status = coalesce(l.status, r.status), worker_id = coalesce(l.worker_id, r.worker_id),
    n_events = CASE WHEN l.n_new > 0 THEN greatest(r.n_events, l.first + l.n_new) ELSE r.n_events END
FROM locked l WHERE r.seq = l.seq
RETURNING r.seq, r.status, r.worker_id, r.heartbeat_at, r.expires_at, l.first, greatest(r.n_events, l.first + l.n_new),
    r.attempt_metadata

-- name: places_in_feed
-- Rollouts that end get the next places in the feed in the order given. Only rows that are as they were read are taken;
-- all of them are locked, in the order given, before the feed is.
locked AS MATERIALIZED (
    SELECT t.seq, t.place::integer
    FROM unnest($1::bigint[], $2::integer[], $3::boolean[]) WITH ORDINALITY AS t (seq, n_attempts, was_live, place)
    JOIN rollouts r ON r.seq = t.seq
    WHERE r.n_attempts = t.n_attempts AND (r.expires_at IS NOT NULL) = coalesce(t.was_live, TRUE)
        AND r.finish_seq IS NULL
    ORDER BY t.place FOR UPDATE OF r
), feed_end AS (
    UPDATE feed SET last = last + (SELECT count(*) FROM locked) WHERE EXISTS (SELECT FROM locked) RETURNING last
), numbered AS (
    SELECT l.seq, l.place, (SELECT last FROM feed_end) - count(*) OVER () + row_number() OVER () AS finish_seq
    FROM locked l
)

-- name: end_numbered
-- What a column does not say of a row is what is common: the attempt was live, has succeeded, and was reported by the
-- worker that claimed it.
UPDATE rollouts r SET status = coalesce(($4::text[])[n.place], 'succeeded'),
    attempt_status = CASE WHEN r.expires_at IS NOT NULL THEN coalesce(($5::text[])[n.place], 'succeeded') END,
    n_failures = coalesce(($6::integer[])[n.place], r.n_failures), failure = ($7::bytea[])[n.place],
    reward = ($8::double precision[])[n.place], worker_id = coalesce(($9::text[])[n.place], r.worker_id),
    ended_at = $10, finish_seq = n.finish_seq, lane = NULL, request_id = NULL, request_place = NULL, expires_at = NULL
FROM numbered n WHERE r.seq = n.seq

-- name: set_ended
-- Rollouts have ended.
WITH {places_in_feed}
{end_numbered}
RETURNING r.seq, r.worker_id, r.heartbeat_at, r.n_events, r.attempt_metadata, (SELECT pg_notify($11, $12))

-- name: set_ended_with_accounts
-- The same, with what their attempts took.
WITH {places_in_feed}, moved AS (
    {end_numbered}
    RETURNING n.place, r.seq, r.n_attempts, r.attempt_id, r.rollout_id, r.group_id, r.worker_id, r.heartbeat_at, r.n_events,
        r.attempt_metadata
), kept AS ({keep_accounts})
SELECT m.seq, m.worker_id, m.heartbeat_at, m.n_events, m.attempt_metadata, (SELECT pg_notify($11, $12)) FROM moved m

-- name: moved_to_queue
-- Attempts have ended and their rollouts wait again, in their old places; the same rows as above, in the same order.
locked AS MATERIALIZED (
    SELECT t.seq, t.place::integer, r.attempt_metadata
    FROM unnest($1::bigint[], $2::integer[]) WITH ORDINALITY AS t (seq, n_attempts, place)
    JOIN rollouts r ON r.seq = t.seq
    WHERE r.n_attempts = t.n_attempts AND coalesce(r.expires_at, 0) > 0
    ORDER BY t.place FOR UPDATE OF r
), moved AS (
    UPDATE rollouts r SET status = 'requeuing', n_failures = ($3::integer[])[l.place], failure = ($4::bytea[])[l.place],
        lane = ($5::text[])[l.place], request_id = NULL, request_place = NULL, expires_at = NULL, attempt_metadata = NULL
    FROM locked l WHERE r.seq = l.seq
    RETURNING l.place, r.seq, r.n_attempts, r.attempt_id, r.rollout_id, r.group_id, r.started_at, r.heartbeat_at,
        r.failure, r.n_events, r.resources_version, l.attempt_metadata,
        coalesce(($6::text[])[l.place], r.worker_id) AS worker_id
), ended AS (
    INSERT INTO attempts (seq, sequence_id, attempt_id, worker_id, status, started_at, heartbeat_at, ended_at, reward,
        failure, resources_version, metadata)
    SELECT m.seq, m.n_attempts, m.attempt_id, m.worker_id, ($7::text[])[m.place], m.started_at, m.heartbeat_at, $9,
        ($8::double precision[])[m.place], m.failure, m.resources_version, m.attempt_metadata
    FROM moved m
)

-- name: set_requeued
-- Rollouts wait again.
WITH {moved_to_queue}
SELECT m.seq, m.worker_id, m.heartbeat_at, m.n_events, m.attempt_metadata, (SELECT pg_notify($10, $11)) FROM moved m

-- name: set_requeued_with_accounts
-- The same, with what their attempts took.
WITH {moved_to_queue}, kept AS ({keep_accounts})
SELECT m.seq, m.worker_id, m.heartbeat_at, m.n_events, m.attempt_metadata, (SELECT pg_notify($10, $11)) FROM moved m

-- name: attempts_by_id
-- Attempts that have ended, by their ids; that of a rollout's last one is looked for at the places given.
SELECT r.rollout_id, {attempt} FROM attempts a JOIN rollouts r ON r.seq = a.seq WHERE a.attempt_id = ANY($1::text[])
UNION ALL
SELECT r.rollout_id, {last_attempt} FROM rollouts r
WHERE r.seq = ANY($2::bigint[]) AND r.attempt_id = ANY($1::text[]) AND r.attempt_status IS NOT NULL

-- name: attempts
-- The ended attempts of a rollout, in order.
SELECT {attempt} FROM attempts a WHERE a.seq = $1
UNION ALL
SELECT {last_attempt} FROM rollouts r WHERE r.seq = $1 AND r.attempt_status IS NOT NULL
ORDER BY 2

-- name: insert_events
-- Events; one that is already there was sent twice.
INSERT INTO events (seq, sequence_id, place, kind, name, at, data)
SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::text[], $5::text[], $6::double precision[],
    $7::bytea[])
ON CONFLICT DO NOTHING

-- name: held
-- The leases at some places.
SELECT {current} FROM rollouts WHERE seq = ANY($1::bigint[]) AND expires_at IS NOT NULL

-- name: renew
-- Heartbeats, for the attempts that still hold their lease: each may be silent for so long, and run for so long.
WITH locked AS MATERIALIZED (
    SELECT t.seq, t.silent_seconds, t.run_seconds
    FROM unnest($1::bigint[], $2::integer[], $3::double precision[], $4::double precision[])
        AS t (seq, n_attempts, silent_seconds, run_seconds)
    JOIN rollouts r ON r.seq = t.seq
    WHERE r.n_attempts = t.n_attempts AND coalesce(r.expires_at, 0) > 0
    ORDER BY r.seq FOR UPDATE OF r
)
UPDATE rollouts r SET heartbeat_at = coalesce($5, {server_time}),
    expires_at = least(coalesce($5, {server_time}) + l.silent_seconds, r.started_at + l.run_seconds)
FROM locked l WHERE r.seq = l.seq
RETURNING r.attempt_id

-- name: see_workers
-- Workers were heard of; noted again only after so many seconds.
INSERT INTO workers (worker_id, first_seen_at, last_seen_at)
SELECT w.worker_id, coalesce($2, {server_time}), coalesce($2, {server_time})
FROM unnest($1::text[]) AS w (worker_id) ORDER BY w.worker_id
ON CONFLICT (worker_id) DO UPDATE SET last_seen_at = excluded.last_seen_at
WHERE excluded.last_seen_at >= workers.last_seen_at + $3

-- name: workers
-- All workers.
SELECT {worker} FROM workers ORDER BY first_seen_at, worker_id

-- name: note_workers
-- What workers have done since the last note, and what they say of themselves, if they do; with its receipt, without
-- which nothing is noted.
WITH receipt AS (UPDATE receipts SET number = $2, written_at = now() WHERE receipt_id = $1 RETURNING number)
INSERT INTO workers (worker_id, first_seen_at, last_seen_at, n_succeeded, n_failed, last_ended_at, stats)
SELECT n.worker_id, $8, $8, n.n_succeeded, n.n_failed, n.ended_at, n.stats
FROM receipt, unnest($3::text[], $4::bigint[], $5::bigint[], $6::double precision[], $7::bytea[])
    AS n (worker_id, n_succeeded, n_failed, ended_at, stats)
ORDER BY n.worker_id
ON CONFLICT (worker_id) DO UPDATE SET n_succeeded = workers.n_succeeded + excluded.n_succeeded,
    n_failed = workers.n_failed + excluded.n_failed, stats = coalesce(excluded.stats, workers.stats),
    last_ended_at = greatest(workers.last_ended_at, excluded.last_ended_at)
RETURNING TRUE

-- name: leases
-- Who holds what.
SELECT worker_id, attempt_id, rollout_id, started_at FROM rollouts WHERE expires_at > 0

-- name: feed
-- Ended rollouts in the order they ended.
SELECT r.finish_seq, {rollout} FROM rollouts r WHERE r.finish_seq > $1 ORDER BY r.finish_seq LIMIT $2

-- name: feed_end
-- The last place in the feed.
SELECT last FROM feed

-- name: tallied
-- The place in the feed up to which tallies were kept.
SELECT finish_seq FROM tallied

-- name: counts
-- How many rollouts of a tag (empty: of all) there are, in parts: by mode and status, 'enqueued' all that ever were.
SELECT mode, status, n FROM tallies WHERE tag = $1
UNION ALL
SELECT mode, 'enqueued', sum(n)::bigint FROM arrivals WHERE $1 = '' OR tag = $1 GROUP BY mode
UNION ALL
SELECT mode, status, count(*) FROM rollouts WHERE finish_seq > $2 AND ($1 = '' OR tag = $1) GROUP BY mode, status
UNION ALL
SELECT mode, status, count(*) FROM rollouts WHERE expires_at > 0 AND ($1 = '' OR tag = $1) GROUP BY mode, status
UNION ALL
SELECT mode, status, count(*) FROM rollouts WHERE status = 'requeuing' AND ($1 = '' OR tag = $1) GROUP BY mode, status

-- name: is_tallied
-- Whether the tallies are up to date, but for so many rollouts that have ended and so many arrivals.
SELECT f.last - t.finish_seq < $1 AND NOT EXISTS (SELECT FROM arrivals OFFSET $2) FROM feed f, tallied t

-- name: lock_tallied
-- Who may add to the tallies, unless somebody else just does.
SELECT finish_seq FROM tallied FOR UPDATE SKIP LOCKED

-- name: tally_enqueued
-- Add the rollouts that were enqueued.
WITH added AS (DELETE FROM arrivals RETURNING tag, mode, n)
INSERT INTO tallies AS t
SELECT tag, mode, 'enqueued', sum(n) FROM added WHERE tag IS NOT NULL GROUP BY tag, mode
UNION ALL
SELECT '', mode, 'enqueued', sum(n) FROM added GROUP BY mode
ON CONFLICT (tag, mode, status) DO UPDATE SET n = t.n + excluded.n

-- name: tally_ended
-- Add the rollouts that have ended, behind one place of the feed and up to another.
WITH added AS MATERIALIZED (
    SELECT tag, mode, status, count(*) AS n FROM rollouts
    WHERE finish_seq > $1 AND finish_seq <= $2 GROUP BY tag, mode, status
)
INSERT INTO tallies AS t
SELECT tag, mode, status, n FROM added WHERE tag IS NOT NULL
UNION ALL
SELECT '', mode, status, sum(n) FROM added GROUP BY mode, status
ON CONFLICT (tag, mode, status) DO UPDATE SET n = t.n + excluded.n

-- name: set_tallied
-- How far the tallies are.
UPDATE tallied SET finish_seq = $1

-- name: oldest_queued
-- How long something of one mode has been waiting.
SELECT enqueued_at FROM rollouts WHERE mode = $1 AND lane <> '' ORDER BY seq LIMIT 1

-- name: n_set_aside
-- How many rollouts wait to run alone.
SELECT count(*) FROM rollouts WHERE lane >= '~'

-- name: lock_resources
-- One new version at a time.
LOCK TABLE resources IN SHARE ROW EXCLUSIVE MODE

-- name: insert_resources
-- A new version of the resources.
INSERT INTO resources (version, resources_id, data, created_at)
SELECT coalesce(max(version), 0) + 1, $1::text, $2::bytea, $3::double precision FROM resources
RETURNING {resources}

-- name: latest_resources
-- The newest version of the resources of an id.
SELECT {resources} FROM resources WHERE resources_id = $1 ORDER BY version DESC LIMIT 1

-- name: resources
-- What was published, of one id or version or of all.
SELECT {resources} FROM resources
WHERE ($1::text IS NULL OR resources_id = $1) AND ($2::bigint IS NULL OR version = $2)
ORDER BY CASE WHEN $3 THEN -version ELSE version END LIMIT $4 OFFSET $5

-- name: n_resources
-- How many that are.
SELECT count(*) FROM resources
WHERE ($1::text IS NULL OR resources_id = $1) AND ($2::bigint IS NULL OR version = $2)
