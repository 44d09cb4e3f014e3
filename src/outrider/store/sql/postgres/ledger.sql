-- The ledger of groups, asks for leave to begin, and accounts.

-- name: open_ledger
-- A new ledger, or the next epoch of one that is there.
INSERT INTO ledgers (name, epoch, settings, opened_at) VALUES ($1, 1, $2, $3)
ON CONFLICT (name) DO UPDATE SET epoch = ledgers.epoch + 1, opened_at = excluded.opened_at
RETURNING {ledger}

-- name: ledgers
-- All ledgers.
SELECT {ledger} FROM ledgers ORDER BY name

-- name: hold_ledger
-- One ledger; nobody else writes to it or asks in it until this is committed.
SELECT {ledger} FROM ledgers WHERE name = $1 FOR UPDATE

-- name: advance_ledger
-- What a write adds to the ledger itself.
UPDATE ledgers SET version = $2, n_opened = $3, n_batches = $4 WHERE name = $1

-- name: insert_groups
-- New groups.
INSERT INTO groups ({group})
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::bytea[], $11::text[], $12::double precision[], $13::double precision[])

-- name: groups_by_id
-- Groups by their ids.
SELECT {group} FROM groups WHERE group_id = ANY($1::text[])

-- name: grant
-- Attempts may begin, each with a version. One that was granted before keeps its own, one that did not ask is passed over.
WITH granted AS (
    UPDATE asks a SET version = t.version
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS t (attempt_id, group_id, version)
    WHERE a.attempt_id = t.attempt_id AND a.group_id = t.group_id AND a.ledger = $4 AND coalesce(a.version, -1) < 0
    RETURNING a.group_id, a.version
), lowest AS (SELECT group_id, min(version) AS version FROM granted GROUP BY group_id)
UPDATE groups g SET clock = least(g.clock, l.version) FROM lowest l WHERE g.group_id = l.group_id

-- name: move_groups
-- Groups reach other states.
UPDATE groups g SET state = t.state, batch = t.batch, members = t.members, reason = t.reason, moved_at = $1
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::text[])
    AS t (group_id, state, batch, members, reason)
WHERE g.group_id = t.group_id

-- name: forget_asks
-- Groups that are closed forget what their members asked.
DELETE FROM asks WHERE group_id = ANY($1::text[])

-- name: set_fates
-- What became of attempts; one that has a fate keeps it.
UPDATE accounts a SET fate = t.fate FROM unnest($1::text[], $2::text[]) AS t (attempt_id, fate)
WHERE a.attempt_id = t.attempt_id AND a.ledger = $3 AND coalesce(a.fate, '') = ''

-- name: ask
-- Attempts ask to begin. Their ledgers are locked before they get their numbers; then their groups, so that one which
-- was closed meanwhile is seen to be.
WITH asking AS MATERIALIZED (
    SELECT r.attempt_id, r.rollout_id, g.group_id, g.ledger
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS t (rollout_id, attempt_id, place)
    JOIN rollouts r ON r.rollout_id = t.rollout_id JOIN groups g ON g.group_id = r.group_id
    JOIN ledgers l ON l.name = g.ledger
    WHERE r.attempt_id = t.attempt_id AND r.expires_at IS NOT NULL AND g.state NOT IN ({closed})
    ORDER BY l.name, t.place FOR UPDATE OF l FOR SHARE OF g
)
INSERT INTO asks (attempt_id, rollout_id, group_id, ledger, asked_at) SELECT a.*, $3 FROM asking a
ON CONFLICT DO NOTHING RETURNING (SELECT pg_notify($4, $5))

-- name: asks
-- What is asked and not granted, of attempts that are live.
SELECT {ask} FROM asks a JOIN rollouts r ON r.rollout_id = a.rollout_id AND r.attempt_id = a.attempt_id AND r.expires_at IS NOT NULL
WHERE a.ledger = $1 AND a.ask_seq > $2 AND a.version IS NULL ORDER BY a.ask_seq LIMIT $3

-- name: grants
-- Which attempts may begin, with which version.
SELECT attempt_id, version FROM asks WHERE attempt_id = ANY($1::text[]) AND version IS NOT NULL

-- name: keep_accounts
-- What attempts took, if they were made for a group in a ledger.
INSERT INTO accounts (attempt_id, rollout_id, sequence_id, group_id, ledger, completion_tokens, data)
SELECT m.attempt_id, m.rollout_id, m.n_attempts, m.group_id, g.ledger, ({tokens}::bigint[])[m.place],
    ({accounts}::bytea[])[m.place]
FROM moved m JOIN groups g ON g.group_id = m.group_id WHERE ({accounts}::bytea[])[m.place] IS NOT NULL
ON CONFLICT DO NOTHING

-- name: leave_accounts
-- What attempts took that have ended without saying so.
INSERT INTO accounts (attempt_id, rollout_id, sequence_id, group_id, ledger, completion_tokens, data)
SELECT t.attempt_id, r.rollout_id, e.sequence_id, r.group_id, g.ledger, t.completion_tokens, t.data
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) AS t (rollout_id, attempt_id, completion_tokens, data)
JOIN rollouts r ON r.rollout_id = t.rollout_id JOIN groups g ON g.group_id = r.group_id
CROSS JOIN LATERAL (
    SELECT a.sequence_id FROM attempts a WHERE a.seq = r.seq AND a.attempt_id = t.attempt_id
    UNION ALL SELECT r.n_attempts WHERE r.attempt_id = t.attempt_id AND r.attempt_status IS NOT NULL
) e
ON CONFLICT DO NOTHING

-- name: accounts
-- What the attempts of some rollouts took, in the order given.
SELECT {account} FROM unnest($1::text[]) WITH ORDINALITY AS t (rollout_id, place)
JOIN accounts a ON a.rollout_id = t.rollout_id ORDER BY t.place, a.sequence_id

-- name: late_accounts
-- Those whose group was closed before they came.
SELECT {account} FROM accounts a JOIN groups g ON g.group_id = a.group_id
WHERE a.ledger = $1 AND a.fate IS NULL AND g.state IN ({closed})
ORDER BY g.number, a.rollout_id, a.sequence_id LIMIT $2

-- name: tally
-- Attempts and tokens by what became of them, from an index alone.
SELECT fate, count(*), sum(completion_tokens)::bigint FROM accounts WHERE ledger = $1 GROUP BY fate

-- name: count_groups
-- How many groups there are by tag and state, from an index alone.
SELECT tag, state, count(*) FROM groups WHERE ledger = $1 GROUP BY tag, state

-- name: progress
-- The live members of open groups, each with its last event, found at the end of its own.
SELECT {progress} FROM groups g JOIN rollouts r ON r.group_id = g.group_id AND r.expires_at > 0
LEFT JOIN asks a ON a.attempt_id = r.attempt_id
LEFT JOIN LATERAL (
    SELECT v.place, v.kind, v.name, v.at FROM events v WHERE v.seq = r.seq AND v.sequence_id = r.n_attempts
    ORDER BY v.place DESC LIMIT 1
) e ON TRUE
WHERE g.ledger = $1 AND g.state = 'opened' ORDER BY g.number, r.seq
