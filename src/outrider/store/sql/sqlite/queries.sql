-- name: insert_rollout
-- A new rollout goes to the end of its lane; an id that is taken inserts nothing.
INSERT INTO rollouts (rollout_id, status, mode, tag, seed, group_id, priority, config, enqueued_at, lane, room)
VALUES (?, 'queuing', ?, ?, ?, ?, ?, ?, ?, ?, zeroblob(56))
ON CONFLICT (rollout_id) DO NOTHING

-- name: insert_input
-- Its payloads.
INSERT INTO inputs (seq, input, metadata) VALUES (?, ?, ?)

-- name: next
-- The next rollouts of one mode, those that were set aside or the others, with what a claim must know of them.
SELECT {given}, r.seq, r.n_attempts FROM rollouts r JOIN inputs i ON i.seq = r.seq
WHERE (r.lane >= '~') = ? AND r.mode = ? AND r.lane IS NOT NULL ORDER BY r.priority DESC, r.seq LIMIT ?

-- name: next_tags
-- The same, only where they stand and which tags they have.
SELECT -r.priority, r.seq, r.tag FROM rollouts r
WHERE (r.lane >= '~') = ? AND r.mode = ? AND r.lane IS NOT NULL ORDER BY r.priority DESC, r.seq LIMIT ?

-- name: lane_head
-- Where the next rollouts of one lane stand.
SELECT -r.priority, r.seq FROM rollouts r
WHERE r.lane = ? AND r.tag IS NOT NULL ORDER BY r.priority DESC, r.seq LIMIT ?

-- name: waiting_at
-- A rollout by its place, with what a claim must know of it.
SELECT {given}, r.seq, r.n_attempts FROM rollouts r JOIN inputs i ON i.seq = r.seq WHERE r.seq = ?

-- name: rollout
-- One rollout.
SELECT {rollout} FROM rollouts r JOIN inputs i ON i.seq = r.seq WHERE r.rollout_id = ?

-- name: waiting
-- The same, with what a claim must know of it.
SELECT {given}, r.seq, r.n_attempts FROM rollouts r JOIN inputs i ON i.seq = r.seq WHERE r.rollout_id = ?

-- name: claimed_by_request
-- What a claim that is being repeated has claimed and still holds.
SELECT {given} FROM rollouts r JOIN inputs i ON i.seq = r.seq
WHERE r.request_id = ? ORDER BY r.priority DESC, r.seq

-- name: claim
-- The rollout leaves its lane and gets an attempt with a lease. Here and below an empty text stands for NULL where that
-- is the common case: the driver takes a text as it is, but looks for a way to adapt a None.
UPDATE rollouts SET status = 'preparing', lane = NULL, room = NULL, failure = NULL, n_attempts = n_attempts + 1,
    attempt_id = ?, worker_id = ?, request_id = nullif(?, ''), started_at = ?, heartbeat_at = ?, expires_at = ?,
    resources_version = nullif(?, 0)
WHERE seq = ?

-- name: current
-- What a fenced write must know.
SELECT {current} FROM rollouts WHERE rollout_id = ?

-- name: expired
-- Live rollouts whose lease is due, the longest overdue first.
SELECT {current} FROM rollouts WHERE expires_at <= ? ORDER BY expires_at LIMIT ?

-- name: next_expiry
-- When the next lease is due.
SELECT min(expires_at) FROM rollouts WHERE expires_at IS NOT NULL

-- name: set_live
-- The attempt says that it acts, or who runs it.
UPDATE rollouts SET status = ?, worker_id = ? WHERE seq = ?

-- name: set_metadata
-- What is noted on the attempt.
UPDATE rollouts SET attempt_metadata = ? WHERE seq = ?

-- name: insert_attempt
-- An attempt that has ended.
INSERT INTO attempts (seq, sequence_id, attempt_id, worker_id, status, started_at, heartbeat_at, ended_at, reward,
    failure, resources_version, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: set_requeued
-- The rollout waits again, in its old place.
UPDATE rollouts SET status = ?, n_failures = ?, failure = ?, lane = ?, request_id = NULL, expires_at = NULL,
    attempt_metadata = NULL
WHERE seq = ?

-- name: place
-- Where a rollout stands.
SELECT seq FROM rollouts WHERE rollout_id = ?

-- name: change
-- A rollout that waits becomes another one, in its old place.
UPDATE rollouts SET mode = ?, tag = ?, seed = ?, priority = ?, config = ?, lane = ? WHERE seq = ?

-- name: change_input
-- Its payloads.
UPDATE inputs SET input = ?, metadata = ? WHERE seq = ?

-- name: set_ended
-- The rollout has ended, and gets its place in the feed.
UPDATE rollouts SET status = ?, attempt_status = ?, n_failures = ?, failure = nullif(?, ''), reward = nullif(?, ''),
    worker_id = ?, ended_at = ?, finish_seq = ?, lane = NULL, request_id = NULL, expires_at = NULL
WHERE seq = ?

-- name: attempts
-- The ended attempts of a rollout, in order.
SELECT {attempt} FROM attempts a WHERE a.seq = ?
UNION ALL
SELECT {last_attempt} FROM rollouts r WHERE r.seq = ? AND r.attempt_status IS NOT NULL
ORDER BY 2

-- name: currents
-- The same, for many.
SELECT {current} FROM rollouts WHERE rollout_id IN (SELECT value FROM json_each(?))

-- name: current_at
-- The same, by place.
SELECT {current} FROM rollouts WHERE seq = ?

-- name: insert_event
-- An event; one that is already there was sent twice.
INSERT INTO events (seq, sequence_id, place, kind, name, at, data) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: n_events
-- How many events an attempt has.
SELECT coalesce(max(place), -1) + 1 FROM events WHERE seq = ? AND sequence_id = ?

-- name: held
-- The leases of one worker, found among all leases.
SELECT {current} FROM rollouts INDEXED BY rollouts_leases WHERE expires_at IS NOT NULL AND worker_id = ?

-- name: host_clock
-- The clock by which the times of live attempts were written.
SELECT identity, offset FROM host_clock

-- name: insert_host_clock
-- The first one.
INSERT INTO host_clock (identity, offset) VALUES (?, ?)

-- name: set_host_clock
-- The times of live attempts are those of another clock from now on.
UPDATE host_clock SET identity = ?, offset = ?

-- name: live
-- All live rollouts.
SELECT {current} FROM rollouts WHERE expires_at IS NOT NULL

-- name: move_live
-- The wall clock has jumped, and the times of live attempts go with it.
UPDATE rollouts SET started_at = started_at + ?1, heartbeat_at = heartbeat_at + ?1, expires_at = expires_at + ?1
WHERE expires_at IS NOT NULL

-- name: move_workers
-- So do the times at which workers were last heard of, but for those that have been silent for long.
UPDATE workers SET last_seen_at = last_seen_at + ?1, first_seen_at = min(first_seen_at, last_seen_at + ?1)
WHERE last_seen_at > ?2

-- name: renew
-- A heartbeat.
UPDATE rollouts SET heartbeat_at = ?, expires_at = ? WHERE seq = ?

-- name: see_worker
-- The worker was heard of; noted again only after so many seconds.
INSERT INTO workers (worker_id, first_seen_at, last_seen_at) VALUES (?, ?, ?)
ON CONFLICT (worker_id) DO UPDATE SET last_seen_at = excluded.last_seen_at
WHERE excluded.last_seen_at >= workers.last_seen_at + ?

-- name: workers
-- All workers.
SELECT {worker} FROM workers ORDER BY first_seen_at, worker_id

-- name: note_worker
-- What a worker has done since the last note, and what it says of itself, if it does.
INSERT INTO workers (worker_id, first_seen_at, last_seen_at, n_succeeded, n_failed, last_ended_at, stats)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (worker_id) DO UPDATE SET n_succeeded = workers.n_succeeded + excluded.n_succeeded,
    n_failed = workers.n_failed + excluded.n_failed, stats = coalesce(excluded.stats, workers.stats),
    last_ended_at = nullif(max(coalesce(workers.last_ended_at, 0), coalesce(excluded.last_ended_at, 0)), 0)

-- name: leases
-- Who holds what.
SELECT worker_id, attempt_id, rollout_id, started_at FROM rollouts WHERE expires_at IS NOT NULL

-- name: feed
-- Ended rollouts in the order they ended.
SELECT r.finish_seq, {rollout} FROM rollouts r JOIN inputs i ON i.seq = r.seq
WHERE r.finish_seq > ? ORDER BY r.finish_seq LIMIT ?

-- name: feed_end
-- The last place in the feed.
SELECT coalesce(max(finish_seq), 0) FROM rollouts WHERE finish_seq IS NOT NULL

-- name: counts
-- How many rollouts of a tag (empty: of all) there are, in parts: by mode and status, 'enqueued' all that ever were.
SELECT mode, status, n FROM tallies WHERE tag = ?1
UNION ALL
SELECT mode, 'enqueued', count(*) FROM rollouts
WHERE seq > (SELECT seq FROM tallied) AND (?1 = '' OR tag = ?1) GROUP BY mode
UNION ALL
SELECT mode, status, count(*) FROM rollouts INDEXED BY rollouts_feed
WHERE finish_seq > (SELECT finish_seq FROM tallied) AND (?1 = '' OR tag = ?1) GROUP BY mode, status
UNION ALL
SELECT mode, status, count(*) FROM rollouts INDEXED BY rollouts_leases
WHERE expires_at IS NOT NULL AND (?1 = '' OR tag = ?1) GROUP BY mode, status
UNION ALL
SELECT mode, status, count(*) FROM rollouts INDEXED BY rollouts_requeued
WHERE status = 'requeuing' AND (?1 = '' OR tag = ?1) GROUP BY mode

-- name: untallied
-- The places up to which tallies were kept, and those up to which there are rollouts and ends.
SELECT t.seq, t.finish_seq, (SELECT coalesce(max(seq), 0) FROM rollouts),
    (SELECT coalesce(max(finish_seq), 0) FROM rollouts WHERE finish_seq IS NOT NULL)
FROM tallied t

-- name: tally_enqueued
-- Add rollouts that were enqueued, behind one place and up to another.
WITH added AS MATERIALIZED (
    SELECT tag, mode, count(*) AS n FROM rollouts WHERE seq > ? AND seq <= ? GROUP BY tag, mode
)
INSERT INTO tallies
SELECT tag, mode, 'enqueued', n FROM added WHERE tag IS NOT NULL
UNION ALL
SELECT '', mode, 'enqueued', sum(n) FROM added WHERE TRUE GROUP BY mode
ON CONFLICT (tag, mode, status) DO UPDATE SET n = n + excluded.n

-- name: tally_ended
-- Add rollouts that have ended, behind one place of the feed and up to another.
WITH added AS MATERIALIZED (
    SELECT tag, mode, status, count(*) AS n FROM rollouts INDEXED BY rollouts_feed
    WHERE finish_seq > ? AND finish_seq <= ? GROUP BY tag, mode, status
)
INSERT INTO tallies
SELECT tag, mode, status, n FROM added WHERE tag IS NOT NULL
UNION ALL
SELECT '', mode, status, sum(n) FROM added WHERE TRUE GROUP BY mode, status
ON CONFLICT (tag, mode, status) DO UPDATE SET n = n + excluded.n

-- name: set_tallied
-- How far the tallies are.
UPDATE tallied SET seq = ?, finish_seq = ?

-- name: oldest_queued
-- How long something of one mode has been waiting.
SELECT enqueued_at FROM rollouts WHERE mode = ? AND lane IS NOT NULL ORDER BY seq LIMIT 1

-- name: n_set_aside
-- How many rollouts wait to run alone.
SELECT count(*) FROM rollouts WHERE (lane >= '~') = 1 AND lane IS NOT NULL

-- name: insert_resources
-- A new version of the resources.
INSERT INTO resources (resources_id, data, created_at) VALUES (?, ?, ?) RETURNING {resources}

-- name: latest_resources
-- The newest version of the resources of an id.
SELECT {resources} FROM resources WHERE resources_id = ? ORDER BY version DESC LIMIT 1

-- name: latest_version
-- Its number alone; 0 if there is none.
SELECT coalesce(max(version), 0) FROM resources WHERE resources_id = ?
