-- Sets a new TTL if the lock is ours and has not expired. $1 name, $2 holder, $3 TTL in milliseconds.
UPDATE fencepost_lock.locks
SET expires_at = clock_timestamp() + $3 * interval '1 millisecond'
WHERE name = $1 AND holder = $2 AND expires_at > clock_timestamp()
RETURNING
    -- As in acquire.sql: a crash must not undo a renewal.
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
