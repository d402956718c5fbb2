-- A transaction that holds a row. TTL_MS stands for the TTL: the server ends the session when it idles for so long.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = TTL_MS;
-- Waiting for a lock, and holding it, takes as long as it takes, whatever is usual for this role.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;
SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout';
SELECT set_config(name, 'CHECK_MS', true) FROM pg_settings
WHERE name = 'client_connection_check_interval' AND version() !~ 'Visual C|mingw';
