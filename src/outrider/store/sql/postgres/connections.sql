-- How many connections the server gives, and how many are taken.

-- name: connections
-- What limits connections: its name, its limit, those it keeps back and those in use; this one is not counted.
-- Rows of other users have no type, so there those with a database count.
WITH taken AS (
    SELECT usename, datname FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND coalesce(backend_type = 'client backend', datid IS NOT NULL)
)
SELECT 'max_connections' AS what, current_setting('max_connections')::integer AS allowed,
    current_setting('superuser_reserved_connections')::integer
    + coalesce(current_setting('reserved_connections', true)::integer, 0) AS reserved,
    (SELECT count(*) FROM taken) AS used
UNION ALL
SELECT format('CONNECTION LIMIT of role %s', rolname), rolconnlimit, 0,
    (SELECT count(*) FROM taken WHERE usename = session_user)
FROM pg_roles WHERE rolname = session_user AND rolconnlimit >= 0
UNION ALL
SELECT format('CONNECTION LIMIT of database %s', datname), datconnlimit, 0,
    (SELECT count(*) FROM taken WHERE datname = current_database())
FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0
