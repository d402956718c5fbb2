-- Begins a transaction that holds a row. TTL_MS is the TTL: the server ends the session when it idles for that long.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = TTL_MS;
-- No timeout applies to waiting for a lock and holding it, whatever this role's defaults are.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;
SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout';
SELECT set_config(name, 'CHECK_MS', true) FROM pg_settings
WHERE name = 'client_connection_check_interval' AND version() !~ 'Visual C|mingw';
