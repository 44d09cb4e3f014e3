-- name: open_ledger
-- A new ledger, or the next epoch of the one there is, which keeps its settings.
INSERT INTO ledgers (name, epoch, settings, opened_at) VALUES (?, 1, ?, ?)
ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1, opened_at = excluded.opened_at
RETURNING {ledger}

-- name: ledgers
-- All ledgers.
SELECT {ledger} FROM ledgers ORDER BY name

-- name: ledger
-- One ledger.
SELECT {ledger} FROM ledgers WHERE name = ?

-- name: set_ledger
-- How far a ledger has come.
UPDATE ledgers SET version = ?, n_opened = ?, n_batches = ? WHERE name = ?

-- name: groups
-- Those of these groups that there are.
SELECT {group} FROM groups WHERE group_id IN (SELECT value FROM json_each(?))

-- name: insert_group
-- A group that is opened.
INSERT INTO groups ({group}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: set_group
-- A group moves.
UPDATE groups SET state = ?, batch = ?, members = ?, reason = ?, moved_at = ? WHERE group_id = ?

-- name: set_clock
-- A group's clock becomes no higher.
UPDATE groups SET clock = min(coalesce(clock, 9223372036854775807), ?) WHERE group_id = ?

-- name: count_groups
-- How many groups a ledger has by tag and state, from the index alone.
SELECT tag, state, count(*) FROM groups WHERE ledger = ? GROUP BY state, tag

-- name: known_rollouts
-- Which of these rollouts there are.
SELECT rollout_id FROM rollouts WHERE rollout_id IN (SELECT value FROM json_each(?))

-- name: last_seq
-- The last place that was given to a rollout.
SELECT coalesce(max(seq), 0) FROM rollouts

-- name: insert_member
-- A rollout whose place is known, at the end of its lane.
INSERT INTO rollouts (seq, rollout_id, status, mode, tag, seed, group_id, priority, config, enqueued_at, lane, room)
VALUES (?, ?, 'queuing', ?, ?, ?, ?, ?, ?, ?, ?, zeroblob(56))

-- name: insert_asks
-- Asks of the current attempts of members of open groups; one that is there already was sent twice.
INSERT INTO asks (attempt_id, rollout_id, group_id, ledger, asked_at)
SELECT r.attempt_id, r.rollout_id, r.group_id, g.ledger, ?
FROM json_each(?) j CROSS JOIN rollouts r ON r.rollout_id = json_extract(j.value, '$[0]')
    CROSS JOIN groups g ON g.group_id = r.group_id
WHERE r.attempt_id = json_extract(j.value, '$[1]') AND r.expires_at IS NOT NULL AND g.state NOT IN ({closed})
ORDER BY j.key
ON CONFLICT DO NOTHING

-- name: asks_after
-- What is asked and not granted, by attempts that are live.
SELECT {ask} FROM asks a CROSS JOIN rollouts r ON r.rollout_id = a.rollout_id
WHERE a.ledger = ? AND a.version IS NULL AND a.ask_seq > ?
    AND r.attempt_id = a.attempt_id AND r.expires_at IS NOT NULL
ORDER BY a.ask_seq LIMIT ?

-- name: open_asks
-- Those of these attempts that wait for leave to begin, with their groups.
SELECT attempt_id, group_id FROM asks
WHERE attempt_id IN (SELECT value FROM json_each(?)) AND ledger = ? AND version IS NULL

-- name: set_granted
-- Leave to begin.
UPDATE asks SET version = ? WHERE attempt_id = ?

-- name: grants
-- What was granted to these attempts.
SELECT attempt_id, version FROM asks
WHERE attempt_id IN (SELECT value FROM json_each(?)) AND version IS NOT NULL

-- name: forget_asks
-- These groups are closed.
DELETE FROM asks WHERE group_id IN (SELECT value FROM json_each(?))

-- name: insert_account
-- What an attempt took, if its group is in a ledger; one that has left its account was heard twice.
INSERT INTO accounts (attempt_id, rollout_id, group_id, ledger, completion_tokens, data)
SELECT ?, r.rollout_id, r.group_id, g.ledger, ?, ? FROM rollouts r JOIN groups g ON g.group_id = r.group_id
WHERE r.seq = ?
ON CONFLICT DO NOTHING

-- name: ended_attempt
-- The place of a rollout of which this attempt has ended.
SELECT r.seq FROM rollouts r WHERE r.rollout_id = ? AND (
    (r.attempt_id = ? AND r.attempt_status IS NOT NULL)
    OR EXISTS (SELECT 1 FROM attempts a WHERE a.seq = r.seq AND a.attempt_id = ?)
)

-- name: accounts
-- The accounts of these rollouts.
SELECT {account} FROM accounts a WHERE a.rollout_id IN (SELECT value FROM json_each(?))

-- name: late_accounts
-- Accounts without a fate whose group is closed.
SELECT {account} FROM accounts a CROSS JOIN groups g ON g.group_id = a.group_id
WHERE a.ledger = ? AND a.fate IS NULL AND g.state IN ({closed})
ORDER BY a.group_id, a.attempt_id LIMIT ?

-- name: set_fate
-- What became of an attempt, which it keeps.
UPDATE accounts SET fate = ? WHERE attempt_id = ? AND ledger = ? AND fate IS NULL

-- name: tally
-- How many attempts and tokens there are of each fate, from the index alone.
SELECT fate, count(*), sum(completion_tokens) FROM accounts WHERE ledger = ? GROUP BY fate

-- name: progress
-- The live members of groups that are opened, found among all leases, with the last event of each and what it asked.
SELECT {progress} FROM rollouts r INDEXED BY rollouts_leases CROSS JOIN groups g ON g.group_id = r.group_id
    LEFT JOIN events e ON e.seq = r.seq AND e.sequence_id = r.n_attempts AND e.place = (
        SELECT max(place) FROM events WHERE seq = r.seq AND sequence_id = r.n_attempts
    )
    LEFT JOIN asks a ON a.attempt_id = r.attempt_id
WHERE r.expires_at IS NOT NULL AND g.ledger = ? AND g.state = 'opened'
ORDER BY g.number, r.seq
