-- Releases the lock if it is ours, and returns whether it had expired. The counter stays. $1 name, $2 holder.
UPDATE fencepost_lock.locks
SET holder = NULL
WHERE name = $1 AND holder = $2
RETURNING expires_at <= clock_timestamp()
