-- Fencepost's guard for Postgres 14 and later: it makes the database check fencing tokens.
--
-- A lock alone does not stop a holder that was paused past its lease and still tries to write. Every lock comes with a
-- token, and tokens only rise. So the database can recognise the late holder, if it checks the token. In the transaction
-- that writes:
--
--     BEGIN;
--     SELECT fencepost.write('wallet:7', 42);      -- first, and a statement of its own: see below
--     UPDATE wallet SET balance = 400 WHERE id = 7;
--     COMMIT;
--
-- A new holder calls `SELECT fencepost.claim('wallet:7', 42)` before its first read: from then on no older holder can
-- write. Under a shared lock, call `fencepost.read`. A decision from several locks shows all of them at once, with
-- `fencepost.present`.
--
-- A name that begins with '/' is a path, and a lock on it covers everything below. Writers below the same path wait for
-- each other, from the guard to the commit. If no program locks the whole path, names without the slash are faster.
--
-- Work that must be done once has a key, such as '2026-11' for the month's billing. The transaction that does the work
-- records it:
--
--     BEGIN;
--     SELECT fencepost.write('billing', 42);
--     SELECT fencepost.once('billing', '2026-11');     -- refused if an earlier transaction has recorded the key
--     INSERT INTO bill ...;
--     COMMIT;
--
--     FP412  the token is stale: a newer one was seen. The detail is JSON: name, token, at, highest.
--     FP208  the work was done before. The detail is JSON: name, key, token, and own: whether the token is the caller's own.
--     FP428  no token was shown.
--     FP400  a name, a token, a use or a key is not valid.
--
-- Never put guard and write into one statement (WITH guard AS (SELECT fencepost.write(...)) UPDATE ...): a statement
-- sees the database as it was when the statement began, before the guard waited for the holder ahead. And a SELECT in
-- WITH that nothing refers to does not run at all.
--
-- To install, run this file in one transaction (psql -1 -f). Running it again does no harm, and upgrades an older
-- version. Then let in the roles that write: GRANT USAGE ON SCHEMA fencepost TO app. The owner of a guarded table needs
-- this right, too. No role needs rights on the tables in here.
--
-- Rights. Three functions run with the rights of the role that installed them (SECURITY DEFINER): admit, which lifts marks,
-- shown_token, which looks at them, and record, which records keys. They take and return only text, numbers and booleans of Postgres. All others,
-- including the triggers, run with the rights of their caller. The reason: a trigger handles rows, and the types in a
-- row can bring functions of their owner along. For example, to_jsonb(NEW) calls a cast to json that any role may define
-- for its own type. Every function in plpgsql pins its search_path, with pg_temp last, also those that run as the
-- caller: plpgsql looks up the types of variables once in a session, at the first call. A first call under the caller's
-- search_path would put the caller's types into functions that admit calls later.
--
-- What a role with USAGE can do: lift the marks of any name to any token. So it can shut out every other holder with a
-- token that the lock service never gave, delay others by keeping its transaction open, and record keys of work that it
-- has not done. It learns the highest token of a name that it can guess, and whether a key was recorded. What it cannot
-- do: lower or forget a mark, forget a key, pass with a stale token, or run anything with the installer's rights. The
-- owner of the schema repairs a mark that was lifted too far: DELETE FROM fencepost.marks WHERE name = ..., once no older
-- holder is left. A key: SELECT fencepost.forget(name, key).
--
-- The server ends every transaction that has passed the guard and idles for longer than fencepost.set_idle_timeout
-- allows, 5 seconds by default: a paused holder would block its successor. Keep that time below the TTL of your locks.

-- No name in this script may resolve to an object of another role.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE SCHEMA IF NOT EXISTS fencepost;

-- The owner of a schema, a table or a function can replace it. So everything in the schema must belong to the role
-- that runs this script.
DO $$
DECLARE
    its_owner name := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'fencepost');
    strange text;
BEGIN
    IF current_setting('search_path') <> 'pg_catalog, pg_temp' THEN
        RAISE EXCEPTION 'this script must run in one transaction' USING HINT = 'psql -1 -f FILE does it.';
    END IF;
    IF its_owner <> current_user THEN
        RAISE EXCEPTION 'the schema fencepost belongs to %', its_owner USING HINT = 'Install as that role, or drop it.';
    END IF;
    SELECT pg_describe_object(found.classid, found.objid, 0) INTO strange
    FROM (
        SELECT tableoid, oid, relowner FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace
        UNION ALL SELECT tableoid, oid, proowner FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
    ) AS found (classid, objid, owner)
    WHERE pg_get_userbyid(found.owner) <> current_user LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'another role owns % in the schema fencepost', strange USING HINT = 'Drop it.';
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS fencepost.store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL,
    -- No token below this one is admitted anywhere.
    base bigint NOT NULL DEFAULT 0,
    idle_timeout interval NOT NULL DEFAULT '5 s' CHECK (idle_timeout BETWEEN '1 ms' AND '1 day')
);

DO $$
BEGIN
    IF (SELECT version FROM fencepost.store) > 3 THEN
        RAISE EXCEPTION 'the schema fencepost is of a newer version than this script'
            USING HINT = 'Use the script of that version.';
    END IF;
END $$;

INSERT INTO fencepost.store (version) VALUES (3) ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;

-- A write must not be older than any token that was seen (write_floor). A read must not be older than any token that
-- wrote (read_floor). The same holds for the names below a path. The fill factor leaves room on each page, so that an
-- update need not touch the index.
CREATE TABLE IF NOT EXISTS fencepost.marks (
    name text COLLATE "C" PRIMARY KEY,
    write_floor bigint NOT NULL DEFAULT 0,
    read_floor bigint NOT NULL DEFAULT 0,
    write_floor_below bigint NOT NULL DEFAULT 0,
    read_floor_below bigint NOT NULL DEFAULT 0,
    writes bigint NOT NULL DEFAULT 0,
    -- The transaction that wrote last: the triggers check whether it is their own. Rolling back to a savepoint undoes
    -- it, too. In a copy of the database on another server, set it to null: transaction numbers differ there.
    written_by xid8
) WITH (fillfactor = 50);

-- The keys of finished work, one row for each. A row commits with the work, and stays until an operator forgets it.
CREATE TABLE IF NOT EXISTS fencepost.keys (
    name text COLLATE "C" NOT NULL,
    job_key text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    -- The transaction that recorded the key. A transaction that records a key twice has committed nothing yet. In a copy of
    -- the database on another server, transaction numbers differ: set it to '0' there.
    recorded_by xid8 NOT NULL,
    PRIMARY KEY (name, job_key)
);

-- Functions of earlier versions that no longer exist.
DROP FUNCTION IF EXISTS fencepost.bound_idle_time(interval), fencepost.check_written(text),
    fencepost.names_that_count(text[], bigint[], text[]), fencepost.was_shown(text);

-- None of these functions is STRICT: with a null argument, a STRICT function would return without any check.

-- The name itself and every name above it, from the top: '/a', '/a/b' for '/a/b'; only 'a/b' for 'a/b', which is not a
-- path. Refuses a name that is not valid.
CREATE OR REPLACE FUNCTION fencepost.path(name text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
    path text[] := '{}';
    wrong text;
BEGIN
    wrong := CASE
        WHEN name IS NULL OR name = '' THEN 'empty: say at least one character'
        WHEN octet_length(name) > 512 THEN 'more than 512 bytes'
        WHEN name COLLATE "C" ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN 'control characters are not allowed'
        WHEN starts_with(name, '/') AND (name LIKE '%//%' OR name LIKE '%/') THEN
            'a name that begins with ''/'' is a path: no empty segment, so neither ''//'' nor a ''/'' at the end'
    END;
    IF wrong IS NULL AND NOT starts_with(name, '/') THEN
        RETURN ARRAY[name];
    END IF;
    parts := string_to_array(name, '/');
    IF cardinality(parts) - 1 > 16 THEN
        wrong := coalesce(wrong, 'more than 16 levels');
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%L cannot be the name of a lock: %s', name, wrong);
    END IF;
    FOR level IN 2 .. cardinality(parts) LOOP
        path := path || array_to_string(parts[1:level], '/');
    END LOOP;
    RETURN path;
END $$;

-- Whether the number is in the range of tokens.
CREATE OR REPLACE FUNCTION fencepost.is_token(token bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN coalesce(token BETWEEN 1 AND 9007199254740991, false);

CREATE OR REPLACE FUNCTION fencepost.refuse_token(name text, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF token IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'FP428', MESSAGE = format('no fencing token for %s', name),
            HINT = 'Pass on the token that came with the lock.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s cannot be a fencing token for %s', token, name),
        HINT = 'A token is a whole number from 1 to 2^53 - 1: pass on what the lock service gave.';
END $$;

CREATE OR REPLACE FUNCTION fencepost.refuse_stale(name text, token bigint, at text, highest bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'FP412',
        MESSAGE = format('stale fencing token %s for %s: token %s has been seen%s', token, name, highest,
            CASE WHEN at <> name THEN ' at ' || at END),
        DETAIL = jsonb_build_object('name', name, 'token', token, 'at', at, 'highest', highest),
        HINT = 'The lock is lost: acquire it again, and decide again from what you then read.';
END $$;

-- From here to the end of the transaction, the server ends this session if it idles for longer than the bound. A shorter
-- setting of the session stays.
CREATE OR REPLACE FUNCTION fencepost.bound_idle_time() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest interval := (SELECT idle_timeout FROM fencepost.store);
    so_far interval := current_setting('idle_in_transaction_session_timeout');
BEGIN
    -- Zero means never.
    IF so_far = '0' OR so_far > longest THEN
        PERFORM set_config(
            'idle_in_transaction_session_timeout', round(1000 * extract(epoch FROM longest))::text, true);
    END IF;
END $$;

-- Admits an access and lifts the marks; or refuses it as a whole. A name may be shown several times. The uses are 'read',
-- 'claim' and 'write'.
CREATE OR REPLACE FUNCTION fencepost.present(names text[], tokens bigint[], uses text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- First, because admit may wait for the marks.
    PERFORM fencepost.bound_idle_time();
    PERFORM fencepost.admit(names, tokens, uses);
END $$;

-- Only the part of present that needs the rights of the installer. Every role that may use the schema can call it, so it
-- checks all its arguments. It has no variable for a row, and no types but text, numbers and booleans. Every statement in
-- here is about one row, so that its plan is made once.
CREATE OR REPLACE FUNCTION fencepost.admit(names text[], tokens bigint[], uses text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number_shown integer := coalesce(greatest(cardinality(names), cardinality(tokens), cardinality(uses)), 0);
    -- Every name whose marks are checked, in the order in which they are locked.
    counted text[] := '{}';
    at text;
    base_floor bigint;
    -- The marks of one name before the access.
    write_seen bigint;
    read_seen bigint;
    write_seen_below bigint;
    read_seen_below bigint;
    -- The same marks after the access.
    write_lifted bigint;
    read_lifted bigint;
    write_lifted_below bigint;
    read_lifted_below bigint;
    writes_here bigint;
    is_here boolean;
    highest bigint;
    stale_shown integer;
    stale_at text;
    stale_highest bigint;
BEGIN
    IF number_shown = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'FP428', MESSAGE = 'no fencing token: nothing was shown',
            HINT = 'Show the name and the token of every lock that this was decided from.';
    END IF;
    -- If an array is too short, the missing elements are null, and are refused.
    FOR i IN 1 .. number_shown LOOP
        counted := counted || fencepost.path(names[i]);
        IF NOT fencepost.is_token(tokens[i]) THEN
            PERFORM fencepost.refuse_token(names[i], tokens[i]);
        END IF;
        IF uses[i] IS NULL OR uses[i] NOT IN ('read', 'claim', 'write') THEN
            RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%L is no use of a token', uses[i]),
                HINT = 'It is read, claim or write.';
        END IF;
    END LOOP;
    -- All transactions lock in the same order, so that guards do not deadlock. A single path is in order already.
    IF number_shown > 1 THEN
        counted := array(SELECT DISTINCT each.name COLLATE "C" FROM unnest(counted) AS each (name) ORDER BY 1);
    END IF;

    -- Rule: fence-gc. A transaction that forgets marks locks this table exclusively until it commits. So the base that we
    -- read after this lock stays until we commit. In READ COMMITTED each statement here sees what was committed before
    -- it. At the higher levels the view may be older than the base; then FOR SHARE on its row fails the transaction.
    LOCK TABLE fencepost.marks IN ROW EXCLUSIVE MODE;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        SELECT base INTO STRICT base_floor FROM fencepost.store FOR SHARE;
    ELSE
        SELECT base INTO STRICT base_floor FROM fencepost.store;
    END IF;

    FOREACH at IN ARRAY counted LOOP
        -- Above READ COMMITTED these fail if another transaction has created or changed the row since our view: an
        -- access with an old view does not pass.
        SELECT write_floor, read_floor, write_floor_below, read_floor_below
            INTO write_seen, read_seen, write_seen_below, read_seen_below
            FROM fencepost.marks WHERE name = at FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO fencepost.marks (name) VALUES (at) ON CONFLICT (name) DO NOTHING;
            SELECT write_floor, read_floor, write_floor_below, read_floor_below
                INTO STRICT write_seen, read_seen, write_seen_below, read_seen_below
                FROM fencepost.marks WHERE name = at FOR UPDATE;
        END IF;
        -- Everything that is shown for a name is checked against its marks before they move.
        write_lifted := write_seen;
        read_lifted := read_seen;
        write_lifted_below := write_seen_below;
        read_lifted_below := read_seen_below;
        writes_here := 0;
        FOR i IN 1 .. number_shown LOOP
            is_here := at = names[i];
            CONTINUE WHEN NOT is_here AND NOT (starts_with(at, '/') AND starts_with(names[i], at || '/'));
            -- Rule: fence, fence-hierarchy
            highest := CASE
                WHEN uses[i] = 'read' AND is_here THEN greatest(read_seen, read_seen_below, base_floor)
                WHEN uses[i] = 'read' THEN greatest(read_seen, base_floor)
                WHEN is_here THEN greatest(write_seen, write_seen_below, base_floor)
                ELSE greatest(write_seen, base_floor)
            END;
            -- Report the first name that was shown, and its own mark rather than one above it.
            IF tokens[i] < highest AND (stale_shown IS NULL OR i < stale_shown OR i = stale_shown AND is_here) THEN
                stale_shown := i;
                stale_at := at;
                stale_highest := highest;
            END IF;
            -- Rule: fence, fence-hierarchy, claim-before-read
            IF is_here THEN
                write_lifted := greatest(write_lifted, tokens[i]);
            ELSE
                write_lifted_below := greatest(write_lifted_below, tokens[i]);
            END IF;
            IF uses[i] = 'write' AND is_here THEN
                read_lifted := greatest(read_lifted, tokens[i]);
                writes_here := writes_here + 1;
            ELSIF uses[i] = 'write' THEN
                read_lifted_below := greatest(read_lifted_below, tokens[i]);
            END IF;
        END LOOP;
        -- Update the row even if no mark moves: a changed row makes other transactions above READ COMMITTED fail.
        UPDATE fencepost.marks SET write_floor = write_lifted, read_floor = read_lifted,
            write_floor_below = write_lifted_below, read_floor_below = read_lifted_below,
            writes = writes + writes_here,
            written_by = CASE WHEN writes_here > 0 THEN pg_current_xact_id() ELSE written_by END
        WHERE name = at;
    END LOOP;
    -- A refused access leaves nothing: the error undoes what was lifted.
    IF stale_shown IS NOT NULL THEN
        PERFORM fencepost.refuse_stale(names[stale_shown], tokens[stale_shown], stale_at, stale_highest);
    END IF;
END $$;

-- The same for a single name.

CREATE OR REPLACE FUNCTION fencepost.read(name text, token bigint) RETURNS void
LANGUAGE sql RETURN fencepost.present(ARRAY[name], ARRAY[token], ARRAY['read']);

CREATE OR REPLACE FUNCTION fencepost.claim(name text, token bigint) RETURNS void
LANGUAGE sql RETURN fencepost.present(ARRAY[name], ARRAY[token], ARRAY['claim']);

CREATE OR REPLACE FUNCTION fencepost.write(name text, token bigint) RETURNS void
LANGUAGE sql RETURN fencepost.present(ARRAY[name], ARRAY[token], ARRAY['write']);

-- Work that is done once. Rule: once
--
-- The row of the key and the work commit together, or neither does. So a key that is recorded says that the work was done.
-- Give each transaction a key of its own: a job of many items that commits after each has keys such as '2026-11/40'. The
-- holder's token must have been shown in the same transaction, so that no late holder records a key.
--
-- After a serialization failure, a deadlock or a lost connection, run the transaction again from its start. If the
-- connection was lost at COMMIT and the commit took effect, the second run finds its own token.

-- Records the key. Refused if it was recorded before: then the transaction is aborted, and nothing that it did stays.
CREATE OR REPLACE FUNCTION fencepost.once(name text, key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before bigint := fencepost.record_once(name, key);
BEGIN
    IF before = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'FP400',
            MESSAGE = format('this transaction has recorded the key %L under %s before', key, name),
            HINT = 'Record the key of a piece of work once in its transaction.';
    ELSIF before IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'FP208',
            MESSAGE = format('the work with the key %L under %s was done before, with token %s', key, name, before),
            DETAIL = jsonb_build_object(
                'name', name, 'key', key, 'token', before, 'own', before = fencepost.shown_token(name)),
            HINT = 'Leave it out. If own is true, the holder of this same token did it: a COMMIT without an answer took effect.';
    END IF;
END $$;

-- For libraries. Records the key and returns null; or returns the token with which it was recorded before, zero if this
-- transaction itself has recorded it.
CREATE OR REPLACE FUNCTION fencepost.record_once(name text, key text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before bigint := fencepost.record(name, key);
BEGIN
    -- The work and its key are lost together, but the caller goes on to tell others that the work is done. So the commit
    -- must be durable. Not in `record`: that one runs with the rights of the installer, and changes no settings.
    IF before IS NULL AND current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN before;
END $$;

-- Only the part of record_once that needs the rights of the installer. As admit, it checks all its arguments.
CREATE OR REPLACE FUNCTION fencepost.record(new_name text, new_key text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown bigint := fencepost.shown_token(new_name);
    wrong text;
    before bigint;
    is_ours boolean;
BEGIN
    wrong := CASE
        WHEN new_key IS NULL OR new_key = '' THEN 'empty: say at least one character'
        WHEN octet_length(new_key) > 256 THEN 'more than 256 bytes'
        WHEN new_key COLLATE "C" ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN 'control characters are not allowed'
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'FP400',
            MESSAGE = format('%L cannot be the key of work: %s', left(new_key, 300), wrong);
    END IF;
    IF shown IS NULL THEN
        PERFORM fencepost.refuse_unshown(new_name);
    END IF;
    LOOP
        -- Above READ COMMITTED this fails if the row is there and is not in our view.
        INSERT INTO fencepost.keys (name, job_key, token, recorded_by)
            VALUES (new_name, new_key, shown, pg_current_xact_id()) ON CONFLICT (name, job_key) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT token, recorded_by = pg_current_xact_id() INTO before, is_ours
            FROM fencepost.keys WHERE name = new_name AND job_key = new_key;
        -- An operator may have forgotten the key in between.
        IF FOUND THEN
            RETURN CASE WHEN is_ours THEN 0 ELSE before END;
        END IF;
    END LOOP;
END $$;

-- Records the key and returns true; or returns false if it was recorded before, also by this transaction. For batches, which
-- leave out what was done.
CREATE OR REPLACE FUNCTION fencepost.try_once(name text, key text) RETURNS boolean
LANGUAGE sql RETURN fencepost.record_once(name, key) IS NULL;

-- Triggers for many rows: they refuse a write to a row unless its transaction has shown a token for the row.
--
--     SELECT fencepost.guard_rows('wallet', 'wallet:', 'id');
--
-- The name of a row is the prefix and its key, as text: 'wallet:7'. Use a number, a text or a uuid as the key: their text
-- does not depend on settings. If the name is a path, a write shown for a path above it is enough. The triggers protect
-- from mistakes, not from malice: the owner of the table can take them off. In a partitioned table they guard the rows of
-- every partition. They refuse TRUNCATE of the whole table, but not of one partition.
--
-- Triggers run in the order of their names. These run last, so they see the row that will be written.

CREATE OR REPLACE FUNCTION fencepost.guard_rows(guarded regclass, name_prefix text, key_column name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name_prefix IS NULL OR NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = guarded AND attname = key_column AND attnum > 0 AND NOT attisdropped
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%s has no column %s', guarded, key_column),
            HINT = 'Say the table, the prefix of the names of its rows, and the column that completes a name.';
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER zzz_fencepost_rows BEFORE INSERT OR UPDATE OR DELETE ON %s
            FOR EACH ROW EXECUTE FUNCTION fencepost.check_row(%L, %L)', guarded, name_prefix, key_column);
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER zzz_fencepost_rows_truncate BEFORE TRUNCATE ON %s
            FOR EACH STATEMENT EXECUTE FUNCTION fencepost.refuse_truncate()', guarded);
END $$;

CREATE OR REPLACE FUNCTION fencepost.unguard_rows(guarded regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_rows ON %s', guarded);
    EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_rows_truncate ON %s', guarded);
END $$;

CREATE OR REPLACE FUNCTION fencepost.check_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old_name text;
    new_name text;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        old_name := TG_ARGV[0] || (to_jsonb(OLD) ->> TG_ARGV[1]);
        IF fencepost.shown_token(old_name) IS NULL THEN
            PERFORM fencepost.refuse_unshown(old_name);
        END IF;
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    new_name := TG_ARGV[0] || (to_jsonb(NEW) ->> TG_ARGV[1]);
    -- A row that gets another key needs a token for its old name and for its new one.
    IF (new_name IS DISTINCT FROM old_name OR TG_OP = 'INSERT')
        AND fencepost.shown_token(new_name) IS NULL THEN
        PERFORM fencepost.refuse_unshown(new_name);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.refuse_unshown(row_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'FP428', MESSAGE = format('no fencing token for %s', row_name),
        HINT = format('First, in the same transaction: SELECT fencepost.write(%L, token of its lock).', row_name);
END $$;

-- The token with which this transaction has shown a write for the name, or for a path above it. Null if it has shown none.
-- The marks were checked then and have been locked since, so the token is still good. Runs with the rights of the
-- installer, because no other role may read the marks.
CREATE OR REPLACE FUNCTION fencepost.shown_token(shown_name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    path text[] := fencepost.path(shown_name);
    shown bigint;
BEGIN
    FOR level IN REVERSE cardinality(path) .. 1 LOOP
        -- A write that is admitted is the newest, so it leaves its own token as the read floor.
        SELECT read_floor INTO shown FROM fencepost.marks
            WHERE name = path[level] AND written_by = pg_current_xact_id_if_assigned();
        EXIT WHEN FOUND;
    END LOOP;
    RETURN shown;
END $$;

CREATE OR REPLACE FUNCTION fencepost.refuse_truncate() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'FP428',
        MESSAGE = format('TRUNCATE shows no fencing token for the rows of %s', TG_RELID::regclass),
        HINT = 'Take the guard off first, while no other session writes: fencepost.unguard_rows or fencepost.unguard_column.';
END $$;

-- Triggers for rows that keep their own token, in a column of type bigint.
--
--     SELECT fencepost.guard_column('wallet', 'fencing_token');
--     UPDATE wallet SET fencing_token = 42 WHERE id = 7 RETURNING balance;         -- the claim, before the first read
--     UPDATE wallet SET fencing_token = 42, balance = 400 WHERE id = 7;            -- the write
--
-- The token is part of the statement, so there is nothing to remember between statements. An UPDATE that does not set
-- the column is refused, although the old value in the column would pass the comparison: see note_column. A row has no
-- mark before it exists and after it is gone. So DELETE is refused, and a row should be created before its lock is first
-- taken. Do not change the key of a row: its mark moves with it. Without triggers, one statement does the same by hand:
--
--     UPDATE wallet SET fencing_token = 42, balance = 400 WHERE id = 7 AND fencing_token <= 42;
--
-- If that changes no row, the token is stale.

CREATE OR REPLACE FUNCTION fencepost.guard_column(guarded regclass, token_column name DEFAULT 'fencing_token')
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = guarded AND attname = token_column AND atttypid = 'bigint'::regtype
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'FP400',
            MESSAGE = format('%s has no column %s of type bigint', guarded, token_column),
            HINT = format('ALTER TABLE %s ADD COLUMN %I bigint NOT NULL DEFAULT 0', guarded, token_column);
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER zzz_fencepost_column_1 BEFORE UPDATE OF %I ON %s
            FOR EACH ROW EXECUTE FUNCTION fencepost.note_column(%L)', token_column, guarded, token_column);
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER zzz_fencepost_column_2 BEFORE INSERT OR UPDATE OR DELETE ON %s
            FOR EACH ROW EXECUTE FUNCTION fencepost.check_column(%L)', guarded, token_column);
    EXECUTE format(
        'CREATE OR REPLACE TRIGGER zzz_fencepost_column_truncate BEFORE TRUNCATE ON %s
            FOR EACH STATEMENT EXECUTE FUNCTION fencepost.refuse_truncate()', guarded);
END $$;

CREATE OR REPLACE FUNCTION fencepost.unguard_column(guarded regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_column_1 ON %s', guarded);
    EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_column_2 ON %s', guarded);
    EXECUTE format('DROP TRIGGER IF EXISTS zzz_fencepost_column_truncate ON %s', guarded);
END $$;

-- Runs only if the UPDATE names the column. It makes the token negative, which tells that to check_column, which runs next.
CREATE OR REPLACE FUNCTION fencepost.note_column() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    token bigint := to_jsonb(NEW) ->> TG_ARGV[0];
BEGIN
    IF NOT fencepost.is_token(token) THEN
        PERFORM fencepost.refuse_token('a row of ' || TG_RELID::regclass, token);
    END IF;
    RETURN jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[0], -token));
END $$;

CREATE OR REPLACE FUNCTION fencepost.check_column() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    row_of text := TG_RELID::regclass;
    noted bigint;
    highest bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'FP428',
            MESSAGE = format('DELETE would take the fencing token of a row of %s along', row_of),
            HINT = 'Keep the row and mark it as gone; or use fencepost.guard_rows, which keeps its marks elsewhere.';
    END IF;
    PERFORM fencepost.bound_idle_time();
    noted := to_jsonb(NEW) ->> TG_ARGV[0];
    IF TG_OP = 'INSERT' THEN
        IF NOT fencepost.is_token(noted) THEN
            -- Zero is the default of the column: no token was shown.
            PERFORM fencepost.refuse_token('a row of ' || row_of, nullif(noted, 0));
        END IF;
        RETURN NEW;
    END IF;
    IF noted IS NULL OR noted >= 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'FP428', MESSAGE = format('no fencing token for a row of %s', row_of),
            HINT = format('Set the token of the lock in the same statement: UPDATE ... SET %I = ...', TG_ARGV[0]);
    END IF;
    highest := to_jsonb(OLD) ->> TG_ARGV[0];
    IF -noted < highest THEN
        PERFORM fencepost.refuse_stale(row_of, -noted, row_of, highest);
    END IF;
    RETURN jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[0], -noted));
END $$;

-- For operators. These run with the rights of their caller: the owner of the schema, or a role that was given EXECUTE
-- on them and rights on the tables.

-- Forgets every mark that is not above the oldest living token of the lock service, and raises the base to that token.
-- Rule: fence-gc. Waits for every transaction that has passed the guard, and blocks new ones until it is done.
CREATE OR REPLACE FUNCTION fencepost.forget_below(oldest_live bigint, OUT names bigint, OUT base bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF oldest_live IS NULL OR oldest_live NOT BETWEEN 0 AND (1::bigint << 53) - 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'FP400', MESSAGE = format('%L cannot be a fencing token', oldest_live),
            HINT = 'Say the oldest token that still lives in the lock service.';
    END IF;
    LOCK TABLE fencepost.marks IN EXCLUSIVE MODE;
    UPDATE fencepost.store AS kept SET base = greatest(kept.base, oldest_live)
        RETURNING kept.base INTO STRICT forget_below.base;
    DELETE FROM fencepost.marks AS mark WHERE greatest(mark.write_floor, mark.write_floor_below) <= forget_below.base;
    GET DIAGNOSTICS names = ROW_COUNT;
END $$;

-- Forgets a key, so that its work can be done again. Returns the token with which it was recorded, or null if it was not.
CREATE OR REPLACE FUNCTION fencepost.forget(name text, key text) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM fencepost.keys AS kept WHERE kept.name = forget.name AND kept.job_key = forget.key RETURNING kept.token;
$$;

CREATE OR REPLACE FUNCTION fencepost.set_idle_timeout(longest interval) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE fencepost.store SET idle_timeout = longest;
$$;

-- All rights are set explicitly, because a database may have other defaults. A role gets in by USAGE on the schema.
REVOKE ALL ON fencepost.store, fencepost.marks, fencepost.keys FROM PUBLIC;
GRANT SELECT ON fencepost.store TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO PUBLIC;
REVOKE EXECUTE ON FUNCTION fencepost.forget_below(bigint), fencepost.forget(text, text),
    fencepost.set_idle_timeout(interval) FROM PUBLIC;
