-- What a session needs that holds an advisory lock, for as long as it lives. $1 TTL in milliseconds, $2 check in
-- milliseconds.
SELECT
    -- Thrown out when it has said nothing for so long: this is the TTL of the lock.
    set_config('idle_session_timeout', $1, false),
    -- Waiting for a lock takes as long as it takes, whatever is usual for this role.
    set_config('statement_timeout', '0', false),
    set_config('lock_timeout', '0', false),
    (SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'),
    -- Two readers that raise the counter together wait for each other, and neither fails.
    set_config('default_transaction_isolation', 'read committed', false),
    -- Whether somebody still waits is looked at while the server waits for the lock. Windows cannot.
    (SELECT set_config(name, $2, false) FROM pg_settings
        WHERE name = 'client_connection_check_interval' AND version() !~ 'Visual C|mingw'),
    -- A machine that vanished says nothing at all, so it is asked.
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '4', false)
