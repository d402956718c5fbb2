"""Postgres with psycopg 3: the functions in the schema ``fencepost`` decide. This file calls them and parses their refusals.

It is the twin of ``crates/fence/src/postgres.rs``. The guard runs on a cursor of its own, so it disturbs neither the rows that the
caller's cursor has nor what the caller's cursors make of a row.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from fencepost._errors import Refused
from fencepost.fence._errors import DoneBefore, NotInstalled, NoToken, NoTransaction, StaleToken
from fencepost.fence._rules import Shown
from fencepost.fence._steps import Row, Steps

__all__ = ["admit", "once", "refusal", "run", "run_async", "try_once"]

Done = TypeVar("Done")

PRESENT = "SELECT fencepost.present(%s::text[], %s::bigint[], %s::text[])"
ONCE = "SELECT fencepost.once(%s::text, %s::text)"
RECORD = "SELECT fencepost.record_once(%s::text, %s::text)"

INSUFFICIENT_PRIVILEGE = "42501"
#: No such schema, function, table.
MISSING = ("3F000", "42883", "42P01")

INSTALL = "run `fencepost fence init postgres://...`"


# Rule: same-transaction
def admit(shown: Sequence[Shown]) -> Steps[None]:
    yield from _select(PRESENT, ([one.name for one in shown], [one.token for one in shown], [one.use for one in shown]))


# Rule: once
def once(shown: Shown, key: str) -> Steps[None]:
    yield from admit([shown])
    yield from _select(ONCE, (shown.name, key))


# Rule: once
def try_once(shown: Shown, key: str) -> Steps[bool]:
    yield from admit([shown])
    row = yield from _select(RECORD, (shown.name, key))
    # The token that it was recorded with before, zero if this transaction itself has recorded it; null if it was not recorded.
    return row is not None and row[0] is None


def _select(sql: str, parameters: Sequence[object]) -> Steps[Row]:
    try:
        return (yield sql, parameters)
    except Exception as error:
        refused = refusal(error)
        if refused is None:
            raise
        raise refused from error


def refusal(error: BaseException) -> Refused | ValueError | None:
    """What the guard says in an error of psycopg. ``None`` if the error is not of the guard."""
    said = getattr(error, "diag", None)
    code = getattr(said, "sqlstate", None)
    if said is None or code is None:
        return None
    message = said.message_primary or str(error)
    if code == "FP412":
        stale = json.loads(said.message_detail)
        return StaleToken(stale["name"], stale["token"], stale["at"], stale["highest"])
    if code == "FP208":
        before = json.loads(said.message_detail)
        return DoneBefore(before["name"], before["key"], before["token"], before["own"])
    if code == "FP428":
        return NoToken(f"{message}. {said.message_hint}")
    if code == "FP400":
        return ValueError(f"{message}. {said.message_hint}" if said.message_hint else message)
    if "fencepost" in message and code == INSUFFICIENT_PRIVILEGE:
        return NotInstalled(f"this role may not use the guard: GRANT USAGE ON SCHEMA fencepost ({message})")
    if "fencepost" in message and code in MISSING:
        return NotInstalled(f"no marks in this database: {INSTALL}")
    return None


def run(target: Any, steps: Steps[Done]) -> Done:
    psycopg = importlib.import_module("psycopg")
    if isinstance(target, (psycopg.AsyncConnection, psycopg.AsyncCursor)):
        raise TypeError(f"{type(target).__name__} needs `await`: use write_async, once_async and so on")
    connection = target if isinstance(target, psycopg.Connection) else target.connection
    _check_transaction(connection)
    with psycopg.Cursor(connection, row_factory=importlib.import_module("psycopg.rows").tuple_row) as cursor:
        try:
            statement = next(steps)
            while True:
                try:
                    cursor.execute(*statement)
                    row = cursor.fetchone()
                    _check_still_open(connection)
                except Exception as error:
                    statement = steps.throw(error)
                else:
                    statement = steps.send(row)
        except StopIteration as done:
            outcome: Done = done.value
            return outcome


async def run_async(target: Any, steps: Steps[Done]) -> Done:
    psycopg = importlib.import_module("psycopg")
    if not isinstance(target, (psycopg.AsyncConnection, psycopg.AsyncCursor)):
        raise TypeError(f"{type(target).__name__} does not wait with `await`: use write, once and so on")
    connection = target if isinstance(target, psycopg.AsyncConnection) else target.connection
    _check_transaction(connection)
    async with psycopg.AsyncCursor(connection, row_factory=importlib.import_module("psycopg.rows").tuple_row) as cursor:
        try:
            statement = next(steps)
            while True:
                try:
                    await cursor.execute(*statement)
                    row = await cursor.fetchone()
                    _check_still_open(connection)
                except Exception as error:
                    statement = steps.throw(error)
                else:
                    statement = steps.send(row)
        except StopIteration as done:
            outcome: Done = done.value
            return outcome


def _check_transaction(connection: Any) -> None:
    """Without autocommit, psycopg begins a transaction with the first statement."""
    if connection.autocommit:
        _check_still_open(connection)


def _check_still_open(connection: Any) -> None:
    """In a pipeline, only the answer shows whether the statement was in a transaction."""
    if connection.info.transaction_status.name == "IDLE":
        raise NoTransaction(
            "this connection commits each statement by itself, and the guard counts only inside of a transaction: put the guard and the "
            "writes into one `with connection.transaction():`"
        )
