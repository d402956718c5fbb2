"""SQLite with the module ``sqlite3``: the marks live in the database file, and the rules run in this process, in the transaction that writes.

It is the twin of ``crates/fence/src/sqlite.rs``. SQLite has one writer at a time, so the check needs no locks of its own. It also means
that a process that is paused inside of its transaction keeps all others from writing: keep the transaction short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from fencepost.fence import _steps
from fencepost.fence._errors import DoneBefore, NotInstalled, NoTransaction
from fencepost.fence._rules import Marks, MarkTable, Shown, ancestors
from fencepost.fence._steps import Row, Steps

__all__ = ["SCRIPT", "VERSION", "admit", "install", "once", "run", "try_once"]

Done = TypeVar("Done")

#: The tables of the guard. A test compares this text with the one of the Rust crate.
SCRIPT = """\
CREATE TABLE IF NOT EXISTS fencepost_base (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version INTEGER NOT NULL,
    base INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS fencepost_marks (
    name TEXT PRIMARY KEY,
    write_floor INTEGER NOT NULL,
    read_floor INTEGER NOT NULL,
    write_floor_below INTEGER NOT NULL,
    read_floor_below INTEGER NOT NULL,
    writes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fencepost_keys (
    name TEXT NOT NULL,
    job_key TEXT NOT NULL,
    token INTEGER NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (name, job_key)
) WITHOUT ROWID;
INSERT INTO fencepost_base VALUES (1, 2, 0) ON CONFLICT (only_row) DO UPDATE SET version = 2;
"""
#: The version of these tables.
VERSION = 2

TAKE = "UPDATE fencepost_base SET only_row = only_row"
BASE = "SELECT version, base FROM fencepost_base"
LOAD = "SELECT write_floor, read_floor, write_floor_below, read_floor_below FROM fencepost_marks WHERE name = ?1"
KEEP = """INSERT INTO fencepost_marks VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name) DO UPDATE SET
    write_floor = ?2, read_floor = ?3, write_floor_below = ?4, read_floor_below = ?5, writes = writes + ?6"""
RECORDED = "SELECT token FROM fencepost_keys WHERE name = ?1 AND job_key = ?2"
RECORD = "INSERT INTO fencepost_keys (name, job_key, token) VALUES (?1, ?2, ?3)"

INSTALL = "run `fencepost fence init sqlite:FILE`, or call fence.install(connection)"


# Rule: same-transaction
def admit(shown: Sequence[Shown]) -> Steps[None]:
    # The first statement writes, so that no other process can write from here on. A transaction that began with a read fails here if
    # another process has written since. So it does not go on with an old view.
    try:
        yield TAKE, ()
        row = yield BASE, ()
    except Exception as error:
        if "no such table" in str(error):
            raise NotInstalled(f"no marks in this database: {INSTALL}") from error
        raise
    table = MarkTable(_base(row))
    names = sorted({name for one in shown for name in (*ancestors(one.name), one.name)})
    for name in names:
        if (kept := (yield LOAD, (name,))) is not None:
            table.restore(name, Marks(*kept))
    table.admit(shown)
    for name in names:
        marks = table.marks(name)
        floors = (marks.write_floor, marks.read_floor, marks.write_floor_below, marks.read_floor_below)
        writes = sum(one.name == name and one.use == "write" for one in shown)
        yield KEEP, (name, *floors, writes)


# Rule: once
def once(shown: Shown, key: str) -> Steps[None]:
    before = yield from _record(shown, key)
    if before is not None:
        raise DoneBefore(shown.name, key, before, before == shown.token)


# Rule: once
def try_once(shown: Shown, key: str) -> Steps[bool]:
    before = yield from _record(shown, key)
    return before is None


def _record(shown: Shown, key: str) -> Steps[int | None]:
    """Records the key; or returns the token with which it was recorded before."""
    # First, because it takes the write lock. So no other process can record the key from here on.
    yield from admit([shown])
    if (before := (yield RECORDED, (shown.name, key))) is not None:
        return int(before[0])
    yield RECORD, (shown.name, key, shown.token)
    return None


def run(target: Any, steps: Steps[Done]) -> Done:
    connection = _connection(target)
    _check_transaction(connection)
    cursor = connection.cursor()
    try:
        return _steps.run(_plain(cursor), steps)
    finally:
        cursor.close()


def install(target: Any) -> bool:
    connection = _connection(target)
    cursor = _plain(connection.cursor())
    alone = not connection.in_transaction
    if alone:
        cursor.execute("BEGIN IMMEDIATE")
    try:
        there = cursor.execute("SELECT count(*) FROM sqlite_master WHERE name = 'fencepost_base'").fetchone()[0]
        version = cursor.execute(BASE).fetchone()[0] if there else 0
        if version > VERSION:
            raise _other_version(version)
        if version < VERSION:
            for statement in SCRIPT.split(";\n")[:-1]:
                cursor.execute(statement)
    except BaseException:
        if alone:
            cursor.execute("ROLLBACK")
        raise
    if alone:
        cursor.execute("COMMIT")
    return bool(version < VERSION)


def _check_transaction(connection: Any) -> None:
    """By default ``sqlite3`` begins a transaction with the first statement that writes, which is the first one of the guard."""
    # Python 3.12 and later have `autocommit`: False keeps a transaction open, True leaves it to SQL, and else `isolation_level` decides.
    autocommit = getattr(connection, "autocommit", None)
    by_hand = autocommit is True or (autocommit is not False and connection.isolation_level is None)
    if by_hand and not connection.in_transaction:
        raise NoTransaction(
            "this connection commits each statement by itself, and the guard counts only inside of a transaction: execute "
            "BEGIN IMMEDIATE before the guard, and COMMIT after the writes"
        )


def _connection(target: Any) -> Any:
    return target if hasattr(target, "cursor") else target.connection


def _plain(cursor: Any) -> Any:
    """The cursor, with rows that are tuples: the connection may have another factory."""
    cursor.row_factory = None
    return cursor


def _base(row: Row) -> int:
    version, base = row or (0, 0)
    if version != VERSION:
        raise _other_version(version)
    return int(base)


def _other_version(version: int) -> NotInstalled:
    what_to_do = "use a newer release of Fencepost" if version > VERSION else INSTALL
    return NotInstalled(f"the guard's marks have format version {version}, and this release knows {VERSION}: {what_to_do}")
