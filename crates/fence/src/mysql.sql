-- The guard inside MySQL and MariaDB: three tables, and six procedures with their parts. `fencepost fence init mysql://...` runs
-- this file to install and to upgrade. It uses only what MySQL 8.0 and MariaDB 10.6 have in common; MariaDB alone runs what is
-- in /*M! ... */.
--
-- The rules are those of rules.rs, and a test compares the two over random histories.
--
-- No variable has the name of a column in the same statement: MySQL would confuse the two.
--
-- Rights. Three procedures run with the rights of the account that installs them: fencepost_present, fencepost_once and
-- fencepost_try_once. All others run with the rights of their caller. So the parts of these three have the installer's rights when
-- they are called by them, and no rights on the tables when an application calls them. An application needs EXECUTE on
-- fencepost_present, _claim, _write, _read, _once and _try_once, and no rights on the tables. It can lift the mark of any name to
-- any token, and so shut others out, and it can record any key; it cannot lower a mark, and cannot forget a key.
--
-- Install with a separate account that has rights on this database alone. The reason: an account that may drop a table here, and
-- create a view and a function in its place, can make fencepost_present run its function with the rights of the installer. If
-- root has installed the guard, these are the rights of root. `fencepost fence init` refuses an account with rights outside of
-- the database.
--
-- Dropping a procedure also removes the rights that were granted on it: grant them again. MariaDB can replace procedures, which
-- keeps the rights, if the DROP statements are left out. `fencepost fence init` does so.

DELIMITER //

-- One row. `tidied` counts how often marks were forgotten. `idle_seconds` is how long a transaction that has passed the guard
-- may idle before MariaDB ends it; zero means no limit. Keep it below the TTL of your locks.
CREATE TABLE IF NOT EXISTS fencepost_base (
    only_row TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    base BIGINT NOT NULL,
    tidied BIGINT NOT NULL,
    idle_seconds INT NOT NULL
) ENGINE = InnoDB
//

-- Names are bytes: a text collation would treat 'a' and 'a ', or 'a' and 'A', as one name.
-- `writes` counts the writes admitted at this name, `writes_below` those at the names below it. Floors cannot show every write:
-- they do not change when the same token writes again.
CREATE TABLE IF NOT EXISTS fencepost_marks (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    write_floor BIGINT NOT NULL DEFAULT 0,
    read_floor BIGINT NOT NULL DEFAULT 0,
    write_floor_below BIGINT NOT NULL DEFAULT 0,
    read_floor_below BIGINT NOT NULL DEFAULT 0,
    writes BIGINT NOT NULL DEFAULT 0,
    writes_below BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB
//

-- The keys of finished work, one row for each. A row commits with the work, and stays until an operator forgets it. Keys are bytes,
-- as names are.
CREATE TABLE IF NOT EXISTS fencepost_keys (
    name VARBINARY(512) NOT NULL,
    job_key VARBINARY(256) NOT NULL,
    token BIGINT NOT NULL,
    recorded_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (name, job_key)
) ENGINE = InnoDB
//

DROP PROCEDURE IF EXISTS fencepost_present
//

-- Checks everything that an access shows, then lifts the marks, in the transaction of the caller:
--     CALL fencepost_present('[{"name": "order:42", "token": 7, "use": "write"},
--                              {"name": "price:3", "token": 5, "use": "read"}]')
--
-- A stale token fails with SQLSTATE FP412. @fencepost_stale_name, _token, _at and _highest say which token it is, where the
-- higher mark is, and what that mark is. Then roll back: MySQL does not end a transaction after an error. Nor does this
-- procedure: a client that goes on after the error would then be outside of any transaction, and each of its statements would
-- commit at once.
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_present(IN access JSON)
    MODIFIES SQL DATA
    SQL SECURITY DEFINER
BEGIN
    DECLARE many INT DEFAULT COALESCE(JSON_LENGTH(access), 0);
    DECLARE turn, nth, idle INT DEFAULT 0;
    DECLARE base_floor, newest, in_view BIGINT;
    -- In the order of a tree, each name before the names below it, so that no two transactions wait for each other.
    DECLARE in_order CURSOR FOR
        SELECT shown.number - 1
        FROM JSON_TABLE(access, '$[*]' COLUMNS (
            number FOR ORDINALITY, name VARCHAR(513) CHARACTER SET utf8mb4 PATH '$.name')) AS shown
        ORDER BY REPLACE(CONVERT(shown.name USING binary), '/', x'01'), shown.number;

    -- Outside of a transaction a savepoint ends at once, and the rollback to it fails with 1305. Rule: same-transaction
    BEGIN
        DECLARE EXIT HANDLER FOR 1305 SIGNAL SQLSTATE 'FP428' SET MESSAGE_TEXT =
            'the guard counts only inside a transaction: START TRANSACTION before it, and COMMIT after the write';
        SAVEPOINT fencepost;
        ROLLBACK TO SAVEPOINT fencepost;
    END;
    IF many = 0 THEN
        SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT = 'nothing is shown: give a JSON list of {"name", "token", "use"}';
    END IF;

    -- This lock keeps marks from being forgotten until this transaction ends. Rule: fence-gc
    SELECT base, tidied, idle_seconds INTO base_floor, newest, idle FROM fencepost_base WHERE only_row = 1 LOCK IN SHARE MODE;

    -- A single name needs no sorting, and a cursor costs more than all the rest.
    IF many > 1 THEN
        OPEN in_order;
    END IF;
    WHILE turn < many DO
        IF many > 1 THEN
            FETCH in_order INTO nth;
        END IF;
        CALL fencepost_lock_marks(JSON_EXTRACT(access, CONCAT('$[', nth, ']')));
        SET turn = turn + 1;
    END WHILE;

    -- Unless the transaction is READ COMMITTED, its first plain read fixes what later ones see. So there is no plain read above.
    SELECT max(tidied) INTO in_view FROM fencepost_base WHERE only_row = 1;
    CALL fencepost_check_view(in_view, newest);

    SET nth = 0;
    WHILE nth < many DO
        CALL fencepost_check_marks(JSON_EXTRACT(access, CONCAT('$[', nth, ']')), base_floor);
        SET nth = nth + 1;
    END WHILE;
    SET nth = 0;
    WHILE nth < many DO
        CALL fencepost_lift_marks(JSON_EXTRACT(access, CONCAT('$[', nth, ']')));
        SET nth = nth + 1;
    END WHILE;
    RELEASE SAVEPOINT fencepost;

    -- A holder that is paused in its transaction blocks the next one. MySQL can end it by `wait_timeout` only.
    /*M!100600 IF idle > 0 AND @@idle_write_transaction_timeout NOT BETWEEN 1 AND idle THEN
        SET SESSION idle_write_transaction_timeout = idle;
    END IF; */
END
//

DROP PROCEDURE IF EXISTS fencepost_lock_marks
//

-- A part of fencepost_present: locks every mark that one name is checked against. For a path, those above come first.
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_lock_marks(IN shown JSON)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE shown_name BLOB DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.name'));
    DECLARE token TEXT CHARACTER SET utf8mb4 DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.token'));
    DECLARE used_to BLOB DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.use'));
    DECLARE slashes INT DEFAULT LENGTH(shown_name) - LENGTH(REPLACE(shown_name, '/', ''));
    DECLARE level INT DEFAULT 2;

    IF NOT (JSON_TYPE(JSON_EXTRACT(shown, '$.name')) <=> 'STRING') OR LENGTH(shown_name) NOT BETWEEN 1 AND 512
        OR CONVERT(shown_name USING utf8mb4) REGEXP '\\p{Cc}'
        OR shown_name LIKE '/%' AND (shown_name LIKE '%//%' OR shown_name LIKE '%/' OR slashes > 16)
    THEN
        SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT =
            'a name is 1 to 512 bytes without control characters; a path has 1 to 16 segments, none of them empty';
    END IF;
    IF NOT COALESCE(token REGEXP '^[0-9]{1,16}$' AND CAST(token AS SIGNED) BETWEEN 1 AND 9007199254740991, FALSE) THEN
        SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT =
            'a fencing token is a whole number from 1 to 2^53 - 1: pass on what the lock service gave';
    END IF;
    IF NOT COALESCE(used_to IN ('read', 'claim', 'write'), FALSE) THEN
        SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT = 'a lock is used to "read", to "claim" or to "write"';
    END IF;

    -- Inserts, not locking reads: several locking reads that find no row succeed at once, and then block the inserts of each other.
    WHILE shown_name LIKE '/%' AND level <= slashes DO
        INSERT INTO fencepost_marks (name) VALUES (SUBSTRING_INDEX(shown_name, '/', level))
            ON DUPLICATE KEY UPDATE writes = writes;
        SET level = level + 1;
    END WHILE;
    INSERT INTO fencepost_marks (name) VALUES (shown_name) ON DUPLICATE KEY UPDATE writes = writes;
END
//

DROP PROCEDURE IF EXISTS fencepost_check_marks
//

-- A part of fencepost_present: checks one token against every mark that applies to it. Rule: fence, fence-hierarchy
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_check_marks(IN shown JSON, IN base_floor BIGINT)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE shown_name, mark_name VARBINARY(512) DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.name'));
    DECLARE token BIGINT DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.token'));
    DECLARE only_reads BOOLEAN DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.use')) = 'read';
    DECLARE level INT DEFAULT 1;
    DECLARE highest, newest, in_view BIGINT;
    DECLARE message VARCHAR(128) CHARACTER SET utf8mb4;

    -- First the marks of the name itself.
    SELECT max(writes + writes_below) INTO in_view FROM fencepost_marks WHERE name = shown_name;
    SELECT writes + writes_below, IF(only_reads, GREATEST(read_floor, read_floor_below), GREATEST(write_floor, write_floor_below))
        INTO newest, highest FROM fencepost_marks WHERE name = shown_name FOR UPDATE;
    CALL fencepost_check_view(in_view, newest);
    SET highest = GREATEST(highest, base_floor);
    -- Then the marks of the names above a path, from the top.
    WHILE token >= highest AND shown_name LIKE '/%' AND SUBSTRING_INDEX(shown_name, '/', level + 1) <> shown_name DO
        SET level = level + 1;
        SET mark_name = SUBSTRING_INDEX(shown_name, '/', level);
        SELECT max(writes) INTO in_view FROM fencepost_marks WHERE name = mark_name;
        SELECT writes, IF(only_reads, read_floor, write_floor) INTO newest, highest
            FROM fencepost_marks WHERE name = mark_name FOR UPDATE;
        CALL fencepost_check_view(in_view, newest);
    END WHILE;
    IF token < highest THEN
        ROLLBACK TO SAVEPOINT fencepost;
        SET @fencepost_stale_name = CONVERT(shown_name USING utf8mb4), @fencepost_stale_token = token,
            @fencepost_stale_at = CONVERT(mark_name USING utf8mb4), @fencepost_stale_highest = highest;
        -- MESSAGE_TEXT has room for 128 characters.
        SET message = CONCAT('stale fencing token ', token, ': token ', highest, ' has been seen at ',
            LEFT(@fencepost_stale_at, 40));
        SIGNAL SQLSTATE 'FP412' SET MESSAGE_TEXT = message;
    END IF;
END
//

DROP PROCEDURE IF EXISTS fencepost_check_view
//

-- A part of fencepost_present. If the caller has read before the guard, and another transaction has written since, the view of
-- the caller is too old to decide from. Rule: claim-before-read
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_check_view(IN in_view BIGINT, IN newest BIGINT)
    SQL SECURITY INVOKER
BEGIN
    IF NOT (in_view <=> newest) THEN
        ROLLBACK TO SAVEPOINT fencepost;
        SIGNAL SQLSTATE 'FP409' SET MESSAGE_TEXT =
            'this transaction has read before the guard, and sees what is no longer so: roll back, and call the guard first';
    END IF;
END
//

DROP PROCEDURE IF EXISTS fencepost_lift_marks
//

-- A part of fencepost_present. Rule: fence, fence-hierarchy, claim-before-read
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_lift_marks(IN shown JSON)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE shown_name VARBINARY(512) DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.name'));
    DECLARE token BIGINT DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.token'));
    DECLARE wrote BOOLEAN DEFAULT JSON_UNQUOTE(JSON_EXTRACT(shown, '$.use')) = 'write';
    DECLARE level INT DEFAULT 1;

    UPDATE fencepost_marks SET write_floor = GREATEST(write_floor, token),
            read_floor = IF(wrote, GREATEST(read_floor, token), read_floor), writes = writes + wrote
        WHERE name = shown_name;
    WHILE shown_name LIKE '/%' AND SUBSTRING_INDEX(shown_name, '/', level + 1) <> shown_name DO
        SET level = level + 1;
        UPDATE fencepost_marks SET write_floor_below = GREATEST(write_floor_below, token),
                read_floor_below = IF(wrote, GREATEST(read_floor_below, token), read_floor_below),
                writes_below = writes_below + wrote
            WHERE name = SUBSTRING_INDEX(shown_name, '/', level);
    END WHILE;
END
//

DROP PROCEDURE IF EXISTS fencepost_claim
//

-- The first access of a new holder that is going to write: from here on no older holder can write.
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_claim(IN name TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', name, 'token', token, 'use', 'claim')));
END
//

DROP PROCEDURE IF EXISTS fencepost_write
//

-- Call it before each write, in the same transaction.
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_write(IN name TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', name, 'token', token, 'use', 'write')));
END
//

DROP PROCEDURE IF EXISTS fencepost_read
//

-- Call it before a read under a shared or update lock, in the same transaction.
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_read(IN name TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', name, 'token', token, 'use', 'read')));
END
//

DROP PROCEDURE IF EXISTS fencepost_once
//

-- Records in this transaction that the work of a key is done, and shows the token of the lock that it is done under:
--     START TRANSACTION;
--     CALL fencepost_once('billing', '2026-11', 42);
--     INSERT INTO bill ...;
--     COMMIT;
--
-- Fails with SQLSTATE FP208 if the key was recorded before. @fencepost_before_token says with which token, and
-- @fencepost_before_own whether that is the caller's own: then a COMMIT without an answer took effect. Roll back in either case.
--
-- The token is an argument, because MySQL does not let a procedure see whether it was shown earlier in the same transaction: the
-- number of a transaction is visible only to accounts with rights outside of the database. For the same reason, a key that one
-- transaction records twice looks like one that was recorded before: record each key once in its transaction.
--
-- No statement that creates or changes a table may follow before the work is done: it would commit the key alone. Rule: once
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_once(
    IN name TEXT CHARACTER SET utf8mb4, IN job_key TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
    SQL SECURITY DEFINER
BEGIN
    DECLARE message VARCHAR(128) CHARACTER SET utf8mb4;
    CALL fencepost_record(name, job_key, token, @fencepost_before_token);
    SET @fencepost_before_own = (@fencepost_before_token = CAST(token AS SIGNED));
    IF @fencepost_before_token IS NOT NULL THEN
        -- MESSAGE_TEXT has room for 128 characters.
        SET message = CONCAT('the work with the key ', LEFT(job_key, 40), ' was done before, with token ', @fencepost_before_token);
        SIGNAL SQLSTATE 'FP208' SET MESSAGE_TEXT = message;
    END IF;
END
//

DROP PROCEDURE IF EXISTS fencepost_try_once
//

-- As fencepost_once, but says whether the key is the first, and does not fail: for batches, which leave out what was done.
--     CALL fencepost_try_once('billing', '2026-11/40', 42, @first);
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_try_once(
    IN name TEXT CHARACTER SET utf8mb4, IN job_key TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4,
    OUT is_first BOOLEAN)
    MODIFIES SQL DATA
    SQL SECURITY DEFINER
BEGIN
    CALL fencepost_record(name, job_key, token, @fencepost_before_token);
    SET @fencepost_before_own = (@fencepost_before_token = CAST(token AS SIGNED));
    SET is_first = @fencepost_before_token IS NULL;
END
//

DROP PROCEDURE IF EXISTS fencepost_record
//

-- A part of fencepost_once and fencepost_try_once: shows the token and records the key. before_token is null if the key was not
-- recorded, else the token that it was recorded with.
CREATE /*M!100104 OR REPLACE */ PROCEDURE fencepost_record(
    IN shown_name TEXT CHARACTER SET utf8mb4, IN shown_key TEXT CHARACTER SET utf8mb4,
    IN shown_token VARCHAR(20) CHARACTER SET utf8mb4, OUT before_token BIGINT)
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    IF NOT COALESCE(LENGTH(shown_key) BETWEEN 1 AND 256, FALSE) OR shown_key REGEXP '\\p{Cc}' THEN
        SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT = 'a key is 1 to 256 bytes without control characters';
    END IF;
    -- First, because it refuses a late holder, and makes the transactions of one name wait for each other.
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', shown_name, 'token', shown_token, 'use', 'write')));
    SET before_token = NULL;
    BEGIN
        DECLARE name_bytes VARBINARY(512) DEFAULT shown_name;
        DECLARE key_bytes VARBINARY(256) DEFAULT shown_key;
        DECLARE recorded BOOLEAN DEFAULT FALSE;
        -- A plain INSERT: INSERT IGNORE would cut a long key to fit, and several locking reads that find no row succeed at once and
        -- then block the inserts of each other.
        BEGIN
            DECLARE CONTINUE HANDLER FOR 1062 SET recorded = TRUE;
            INSERT INTO fencepost_keys (name, job_key, token) VALUES (name_bytes, key_bytes, shown_token);
        END;
        IF recorded THEN
            -- A locking read: a plain one may have a view from before the row.
            SELECT token INTO before_token FROM fencepost_keys WHERE name = name_bytes AND job_key = key_bytes LOCK IN SHARE MODE;
        END IF;
    END;
END
//

-- Last: this row says that the guard is completely installed, in this version.
INSERT INTO fencepost_base VALUES (1, 3, 0, 0, 5) ON DUPLICATE KEY UPDATE version = 3
//
