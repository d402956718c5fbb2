-- The guard inside MySQL and MariaDB: two tables and four procedures. `fencepost fence init mysql://...` runs this file once.
-- It keeps to what MySQL 8.0 and MariaDB 10.6 have in common; what stands in /*M! ... */ is for MariaDB alone.
--
-- The rules are those of rules.rs, and a test compares the two over random histories.
--
-- The procedures run with the rights of whoever installs them: an application needs EXECUTE, and nothing on the tables.

DELIMITER //

-- One row. `tidied` counts how often marks were forgotten. `idle_seconds` is how long a transaction that has passed the guard
-- may lie idle before MariaDB ends it, zero for ever: keep it below the TTL of your locks.
CREATE TABLE IF NOT EXISTS fencepost_base (
    only_row TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    base BIGINT NOT NULL,
    tidied BIGINT NOT NULL,
    idle_seconds INT NOT NULL
) ENGINE = InnoDB
//

-- Names are bytes: a text collation would take 'a' and 'a ' for one name, or 'a' and 'A'.
-- `writes` and `writes_below` count the writes admitted here and below: a floor does not change when the same token writes again.
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

DROP PROCEDURE IF EXISTS fencepost_present
//

-- Checks everything that an access shows, then lifts the marks, in the transaction of the caller:
--     CALL fencepost_present('[{"name": "order:42", "token": 7, "use": "write"}, {"name": "price:3", "token": 5, "use": "read"}]')
--
-- A stale token fails with SQLSTATE FP412; @fencepost_stale_name, _token, _at and _highest say which one, where, and what has been
-- seen. Then roll back: MySQL does not end a transaction for an error in it. Nor does this procedure. A client that goes on
-- regardless would be outside of any transaction then, and each of its statements would count at once, past recall.
CREATE PROCEDURE fencepost_present(IN access JSON)
    MODIFIES SQL DATA
BEGIN
    DECLARE nth, stale_nth, idle INT;
    DECLARE name, at_name, stale_name, stale_at VARBINARY(2052);
    DECLARE used_to VARCHAR(8) CHARACTER SET utf8mb4;
    DECLARE token, base_floor, highest, stale_token, stale_highest, newest, in_view BIGINT;
    DECLARE message VARCHAR(128) CHARACTER SET utf8mb4;
    DECLARE no_more BOOLEAN DEFAULT FALSE;
    -- Every mark that counts for a name shown: its own, and for a path those above, '/a' and '/a/b' for '/a/b/c'.
    -- All in the order of their names, so that no two transactions wait for each other. (No variable may be called as a column
    -- here: it would be taken for it.)
    DECLARE touched CURSOR FOR
        SELECT shown.nth, shown.name, shown.token, shown.used_to,
            CASE WHEN shown.name LIKE '/%' THEN SUBSTRING_INDEX(shown.name, '/', level.slash) ELSE shown.name END AS mark_name
        FROM (SELECT raw.nth, CAST(raw.name AS BINARY) AS name, raw.used_to,
                CASE WHEN raw.token REGEXP '^[0-9]{1,16}$' THEN CAST(raw.token AS SIGNED) END AS token
            FROM JSON_TABLE(access, '$[*]' COLUMNS (
                nth FOR ORDINALITY,
                name VARCHAR(513) CHARACTER SET utf8mb4 PATH '$.name',
                token VARCHAR(20) CHARACTER SET utf8mb4 PATH '$.token',
                used_to VARCHAR(8) CHARACTER SET utf8mb4 PATH '$.use')) AS raw) AS shown
        JOIN JSON_TABLE('[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]', '$[*]' COLUMNS (slash INT PATH '$')) AS level
            ON level.slash = 2
            OR shown.name LIKE '/%' AND level.slash <= LENGTH(shown.name) - LENGTH(REPLACE(shown.name, '/', '')) + 1
        ORDER BY mark_name, shown.nth;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET no_more = TRUE;

    -- Outside of a transaction a savepoint is gone at once. Rule: same-transaction
    BEGIN
        DECLARE EXIT HANDLER FOR 1305 SIGNAL SQLSTATE 'FP428' SET MESSAGE_TEXT =
            'the guard counts only inside a transaction: START TRANSACTION before it, and COMMIT after the write';
        SAVEPOINT fencepost;
        ROLLBACK TO SAVEPOINT fencepost;
    END;

    -- While this transaction lasts, nobody forgets marks. Rule: fence-gc
    SELECT base, tidied, idle_seconds INTO base_floor, newest, idle FROM fencepost_base WHERE only_row = 1 LOCK IN SHARE MODE;

    OPEN touched;
    locking: LOOP
        FETCH touched INTO nth, name, token, used_to, at_name;
        IF no_more THEN
            LEAVE locking;
        END IF;
        IF name IS NULL OR LENGTH(name) NOT BETWEEN 1 AND 512 OR CONVERT(name USING utf8mb4) REGEXP '\\p{Cc}'
            OR name LIKE '/%' AND (name LIKE '%//%' OR name LIKE '%/' OR LENGTH(name) - LENGTH(REPLACE(name, '/', '')) > 16)
        THEN
            SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT =
                'a name is 1 to 512 bytes without control characters; a path has 1 to 16 segments, none of them empty';
        END IF;
        IF token IS NULL OR token NOT BETWEEN 1 AND 9007199254740991 THEN
            SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT =
                'a fencing token is a whole number from 1 to 2^53 - 1: pass on what the lock service gave';
        END IF;
        IF used_to IS NULL OR used_to NOT IN ('read', 'claim', 'write') THEN
            SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT = 'a lock is used to "read", to "claim" or to "write"';
        END IF;
        -- An insert, because a locking read that finds nothing lets many in at once, and then each bars the insert of the others.
        INSERT INTO fencepost_marks (name) VALUES (at_name) ON DUPLICATE KEY UPDATE writes = writes;
    END LOOP;
    CLOSE touched;
    IF nth IS NULL THEN
        SIGNAL SQLSTATE 'FP400' SET MESSAGE_TEXT = 'nothing is shown: give a JSON list of {"name", "token", "use"}';
    END IF;

    -- The first plain read in a transaction fixes what later ones see, unless it is READ COMMITTED. So there is none above. If
    -- the caller has read before, and somebody has written since, then its view is too old to decide from. Rule: claim-before-read
    SELECT max(tidied) INTO in_view FROM fencepost_base WHERE only_row = 1;
    SET no_more = FALSE;
    OPEN touched;
    checking: LOOP
        IF NOT (in_view <=> newest) THEN
            ROLLBACK TO SAVEPOINT fencepost;
            SIGNAL SQLSTATE 'FP409' SET MESSAGE_TEXT =
                'this transaction has read before the guard, and sees what is no longer so: roll back, and call the guard first';
        END IF;
        FETCH touched INTO nth, name, token, used_to, at_name;
        IF no_more THEN
            LEAVE checking;
        END IF;
        SELECT max(writes + IF(at_name = name, writes_below, 0)) INTO in_view
            FROM fencepost_marks WHERE fencepost_marks.name = at_name;
        SELECT writes + IF(at_name = name, writes_below, 0), GREATEST(base_floor,
                IF(used_to = 'read', read_floor, write_floor),
                IF(at_name <> name, 0, IF(used_to = 'read', read_floor_below, write_floor_below)))
            INTO newest, highest
            FROM fencepost_marks WHERE fencepost_marks.name = at_name FOR UPDATE;
        -- Rule: fence, fence-hierarchy. The first that was shown is the one that is named, and its own mark before those above.
        IF token < highest AND (stale_nth IS NULL OR nth < stale_nth OR nth = stale_nth AND at_name = name) THEN
            SELECT nth, name, token, at_name, highest INTO stale_nth, stale_name, stale_token, stale_at, stale_highest;
        END IF;
    END LOOP;
    CLOSE touched;
    IF stale_nth IS NOT NULL THEN
        ROLLBACK TO SAVEPOINT fencepost;
        SET @fencepost_stale_name = CONVERT(stale_name USING utf8mb4), @fencepost_stale_token = stale_token,
            @fencepost_stale_at = CONVERT(stale_at USING utf8mb4), @fencepost_stale_highest = stale_highest;
        -- It has room for 128 characters.
        SET message = CONCAT('stale fencing token ', stale_token, ': token ', stale_highest, ' has been seen at ',
            LEFT(@fencepost_stale_at, 40));
        SIGNAL SQLSTATE 'FP412' SET MESSAGE_TEXT = message;
    END IF;

    SET no_more = FALSE;
    OPEN touched;
    lifting: LOOP
        FETCH touched INTO nth, name, token, used_to, at_name;
        IF no_more THEN
            LEAVE lifting;
        END IF;
        IF at_name = name THEN
            UPDATE fencepost_marks SET write_floor = GREATEST(write_floor, token),
                    read_floor = IF(used_to = 'write', GREATEST(read_floor, token), read_floor), writes = writes + (used_to = 'write')
                WHERE fencepost_marks.name = at_name;
        ELSE
            UPDATE fencepost_marks SET write_floor_below = GREATEST(write_floor_below, token),
                    read_floor_below = IF(used_to = 'write', GREATEST(read_floor_below, token), read_floor_below),
                    writes_below = writes_below + (used_to = 'write')
                WHERE fencepost_marks.name = at_name;
        END IF;
    END LOOP;
    CLOSE touched;
    RELEASE SAVEPOINT fencepost;

    -- A holder that is paused in its transaction bars the next one. MySQL has nothing against it but `wait_timeout`.
    /*M!100600 IF idle > 0 AND @@idle_write_transaction_timeout NOT BETWEEN 1 AND idle THEN
        SET SESSION idle_write_transaction_timeout = idle;
    END IF; */
END
//

DROP PROCEDURE IF EXISTS fencepost_claim
//

-- The first access of a new holder that means to write: nobody older writes from here on.
CREATE PROCEDURE fencepost_claim(IN name TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
BEGIN
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', name, 'token', token, 'use', 'claim')));
END
//

DROP PROCEDURE IF EXISTS fencepost_write
//

-- Before each write, in its transaction.
CREATE PROCEDURE fencepost_write(IN name TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
BEGIN
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', name, 'token', token, 'use', 'write')));
END
//

DROP PROCEDURE IF EXISTS fencepost_read
//

-- Before a read under a shared or update lock, in its transaction.
CREATE PROCEDURE fencepost_read(IN name TEXT CHARACTER SET utf8mb4, IN token VARCHAR(20) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA
BEGIN
    CALL fencepost_present(JSON_ARRAY(JSON_OBJECT('name', name, 'token', token, 'use', 'read')));
END
//

-- Last: the guard is there when this row is.
INSERT INTO fencepost_base VALUES (1, 1, 0, 0, 5)
//
