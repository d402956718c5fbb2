-- Whether this session acquired the advisory lock and still holds it. $1 process, $2 key, $3 mode.
SELECT pg_backend_pid() = $1 AND EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND mode = $3
        AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $2
)
