-- The locks of Fencepost in Postgres 14 and later: two tables in their own schema. Nothing here depends on the search
-- path, so that all clients of a database use the same tables.
--
-- A program that may create them does so when it connects. Otherwise run this once, and grant access to the roles
-- that lock:
--
--     GRANT USAGE ON SCHEMA fencepost_lock TO app;
--     GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA fencepost_lock TO app;

CREATE SCHEMA IF NOT EXISTS fencepost_lock;

-- One row for each name. Its counter gives all tokens of the name, for all three ways to lock. The lock table also
-- stores the holder and the expiry. No row is ever deleted: a counter that starts again fences nothing. It is a column
-- and not a sequence, because a sequence may give a number before it is on disk, and give it again after a crash.
CREATE TABLE IF NOT EXISTS fencepost_lock.locks (
    name text COLLATE "C" PRIMARY KEY,
    -- Programs in other languages read it as a double.
    token bigint NOT NULL CONSTRAINT token_is_below_2_to_the_53 CHECK (token BETWEEN 1 AND 9007199254740991),
    -- A value that only the holder knows; null if the lock is free.
    holder text,
    -- By the clock of this database.
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- The rows that row locks lock. They are separate from the counters, which are increased and committed while a row is
-- locked.
CREATE TABLE IF NOT EXISTS fencepost_lock.rows (
    name text COLLATE "C" PRIMARY KEY
);
