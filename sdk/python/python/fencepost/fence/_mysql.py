"""MySQL and MariaDB: the procedures in the database decide. This file calls them and reads their refusals.

It is the twin of ``crates/fence/src/mysql.rs``. Some drivers drop the SQLSTATE of an error, so the guard asks the server for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from fencepost.fence import _steps
from fencepost.fence._errors import DoneBefore, NotInstalled, NoTransaction, StaleToken
from fencepost.fence._rules import Shown
from fencepost.fence._steps import Steps

__all__ = ["admit", "once", "run", "try_once"]

Done = TypeVar("Done")

#: The server's numbers for an error that a procedure signals, for a table and a procedure that do not exist, and for a procedure that the
#: account may not call.
SIGNALED = 1644
NO_SUCH_TABLE = 1146
NO_SUCH_PROCEDURE = 1305
MAY_NOT_CALL = 1370

PRESENT = "CALL fencepost_present(%s)"
ONCE = "CALL fencepost_once(%s, %s, %s)"
TRY_ONCE = "CALL fencepost_try_once(%s, %s, %s, @fencepost_first)"
#: The next statement after the failed one: the server keeps the state of one statement only.
STATE = "GET DIAGNOSTICS CONDITION 1 @fencepost_sqlstate = RETURNED_SQLSTATE"
#: An error message of MySQL is too short for two names, so the procedures leave the facts in variables.
FACTS = (
    "SELECT @fencepost_sqlstate AS a, @fencepost_stale_name AS b, @fencepost_stale_token AS c, @fencepost_stale_at AS d, "
    "@fencepost_stale_highest AS e, @fencepost_before_token AS f, @fencepost_before_own AS g"
)
FIRST = "SELECT @fencepost_before_token AS a"


# Rule: same-transaction
def admit(shown: Sequence[Shown]) -> Steps[None]:
    listed = [{"name": one.name, "token": one.token, "use": one.use} for one in shown]
    yield from _call(PRESENT, (json.dumps(listed, ensure_ascii=False),), "")


# Rule: once
def once(shown: Shown, key: str) -> Steps[None]:
    yield from _call(ONCE, (shown.name, key, shown.token), key)


# Rule: once
def try_once(shown: Shown, key: str) -> Steps[bool]:
    yield from _call(TRY_ONCE, (shown.name, key, shown.token), key)
    row = yield FIRST, ()
    return row is not None and row[0] is None


def _call(sql: str, parameters: Sequence[Any], key: str) -> Steps[None]:
    try:
        yield sql, parameters
        return
    except Exception as error:
        failed = error
    number = _number(failed)
    if number == MAY_NOT_CALL:
        raise NotInstalled(
            "this account may not use the guard: GRANT EXECUTE ON PROCEDURE fencepost_present, and on fencepost_once and "
            f"fencepost_try_once if it calls them ({failed})"
        ) from failed
    if number in (NO_SUCH_TABLE, NO_SUCH_PROCEDURE):
        raise NotInstalled("no guard in this database: run `fencepost fence init mysql://...`") from failed
    if number != SIGNALED:
        raise failed
    yield STATE, ()
    facts: tuple[Any, ...] = (yield FACTS, ()) or ()
    state, name, token, at, highest, before, own = facts
    if state == "FP412":
        raise StaleToken(str(name), int(token), str(at), int(highest)) from failed
    if state == "FP208":
        raise DoneBefore(parameters[0], key, int(before), bool(own)) from failed
    if state == "FP428":
        raise NoTransaction(
            "the guard counts only inside of a transaction: turn autocommit off, or begin one with connection.begin() or "
            "START TRANSACTION, and commit after the writes"
        ) from failed
    if state == "FP400":
        raise ValueError(failed.args[-1]) from failed
    raise failed


def _number(error: Exception) -> object:
    """The server's number of an error. mysql-connector-python has an attribute, the others the first argument."""
    return getattr(error, "errno", None) or (error.args[0] if error.args else None)


def run(target: Any, steps: Steps[Done]) -> Done:
    # A cursor of its own leaves the rows that the caller's cursor has. A cursor of mysql-connector-python does not tell its connection.
    connection = target if hasattr(target, "cursor") else getattr(target, "connection", None)
    if connection is None:
        return _steps.run(target, steps)
    cursor = connection.cursor()
    try:
        return _steps.run(cursor, steps)
    finally:
        cursor.close()
