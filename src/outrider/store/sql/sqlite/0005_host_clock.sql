-- How far wall time was ahead of monotonic time when the times of live attempts were written, in one row, and what that
-- monotonic time counts from.
CREATE TABLE host_clock (
    identity TEXT NOT NULL,
    offset   REAL NOT NULL
);
