-- Acquires the lock if it is free, in one statement. $1 name, $2 holder, $3 TTL in milliseconds.
INSERT INTO fencepost_lock.locks AS held (name, token, holder, expires_at)
SELECT $1, 1, $2, clock_timestamp() + $3 * interval '1 millisecond'
-- A client that polls a held lock only reads.
WHERE NOT EXISTS (
    SELECT FROM fencepost_lock.locks
    WHERE name = $1 AND holder IS NOT NULL AND expires_at > clock_timestamp()
)
ON CONFLICT (name) DO UPDATE
SET token = held.token + 1,
    holder = excluded.holder,
    -- Not `excluded.expires_at`, which was computed before this statement waited for the row.
    expires_at = clock_timestamp() + $3 * interval '1 millisecond'
WHERE held.holder IS NULL OR held.expires_at <= clock_timestamp()
RETURNING
    token,
    -- For this transaction: the grant is on disk before the client hears of it, even if the settings say otherwise.
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
