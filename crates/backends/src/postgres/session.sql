-- Settings of a session that holds an advisory lock, for its whole life. $1 TTL in milliseconds, $2 interval of the
-- client check in milliseconds.
SELECT
    -- The server ends the session when it idles for that long: this is the TTL of the lock.
    set_config('idle_session_timeout', $1, false),
    -- No timeout applies to waiting for a lock, whatever this role's defaults are.
    set_config('statement_timeout', '0', false),
    set_config('lock_timeout', '0', false),
    (SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'),
    -- With this level, two readers that increase the counter at the same time queue up, and neither fails.
    set_config('default_transaction_isolation', 'read committed', false),
    -- While the server waits for the lock, it checks whether the client is still connected. Windows cannot do that.
    (SELECT set_config(name, $2, false) FROM pg_settings
        WHERE name = 'client_connection_check_interval' AND version() !~ 'Visual C|mingw'),
    -- A dead client machine closes no connection, so the server probes it.
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '4', false)
