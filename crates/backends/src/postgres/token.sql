-- The next token of a name. $1 name.
INSERT INTO fencepost_lock.locks AS counter (name, token)
VALUES ($1, 1)
ON CONFLICT (name) DO UPDATE
SET token = counter.token + 1
RETURNING
    token,
    -- As in acquire.sql: a token that a crash undoes would be given twice.
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
