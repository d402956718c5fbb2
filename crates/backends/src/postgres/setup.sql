-- The locks of Fencepost in Postgres 14 and later: two tables in a schema of their own. Nothing here looks at the
-- search path, so that everybody in a database meets in the same place.
--
-- A program that may create them does so when it connects. Otherwise run this once, and let in the roles that lock:
--
--     GRANT USAGE ON SCHEMA fencepost_lock TO app;
--     GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA fencepost_lock TO app;

CREATE SCHEMA IF NOT EXISTS fencepost_lock;

-- The counter of each name, from which all its tokens come, whichever way it is locked; and for the lock table, who
-- holds it until when. No row is ever deleted: a counter that begins anew fences nothing. It is a column and no
-- sequence, because a sequence may hand out a number before that is on disk, and after a crash hand it out again.
CREATE TABLE IF NOT EXISTS fencepost_lock.locks (
    name text COLLATE "C" PRIMARY KEY,
    -- Programs in other languages read it as a double.
    token bigint NOT NULL CONSTRAINT token_is_below_2_to_the_53 CHECK (token BETWEEN 1 AND 9007199254740991),
    -- A value that only the holder knows; null if nobody holds it.
    holder text,
    -- By the clock of this database, and no other.
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- Rows to be locked. They stand apart from the counters, which are raised and committed while a row is locked.
CREATE TABLE IF NOT EXISTS fencepost_lock.rows (
    name text COLLATE "C" PRIMARY KEY
);
