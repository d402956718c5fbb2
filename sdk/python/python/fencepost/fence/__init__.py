"""The guard of the store: the store itself refuses a write whose lock is lost.

A lock alone cannot stop a holder that was paused past its lease and still writes. Every exclusive lock has a fencing token, a number that
only rises. The guard shows it to the store in the transaction that writes, and the store refuses a token that is older than the newest one
that it has seen::

    with client.lock("wallet:7") as lock, connection.transaction():
        fence.claim(connection, lock)       # before the first read: from here on no older holder can write
        balance = ...
        fence.write(connection, lock)       # before the writes, in their transaction
        connection.execute("UPDATE wallet SET balance = %s WHERE id = 7", [balance - 100])

The guard is for Postgres with psycopg 3, for MySQL and MariaDB with PyMySQL, mysqlclient or mysql-connector-python, and for ``sqlite3``. Each
function takes a cursor or a connection of the driver. ``docs/guides/fencing.md`` is about the guard in each store.

``lock`` is a lock that is held, or the pair of a name and its token, for a service that gets the token from another program:
``fence.write(cursor, ("wallet:7", FenceToken(42)))``. Only the token of an exclusive lock can write.

**After a refusal, roll back.** The exception ends a ``with connection.transaction():`` of psycopg and a ``with connection:`` of
``sqlite3`` that way. With the drivers of MySQL call ``connection.rollback()``: until then the locks of the transaction block the next holder.

Files: ``_access.py`` takes names and tokens from locks; ``_rules.py`` has the rules, for SQLite; ``_postgres.py``, ``_mysql.py`` and
``_sqlite.py`` are the guards; ``_steps.py`` runs their statements; ``_errors.py`` has the refusals.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeVar

from fencepost._errors import Refused, Unsupported
from fencepost._tokens import FenceToken, ReadToken
from fencepost.fence import _mysql, _postgres, _sqlite
from fencepost.fence._access import Access, Reader, Writer, named
from fencepost.fence._errors import DoneBefore, NotInstalled, NoToken, NoTransaction, StaleToken
from fencepost.fence._rules import Shown, checked_key
from fencepost.fence._steps import Steps

__all__ = [
    "Access",
    "DoneBefore",
    "FenceToken",
    "NoToken",
    "NoTransaction",
    "NotInstalled",
    "ReadToken",
    "Reader",
    "StaleToken",
    "Writer",
    "admit",
    "admit_async",
    "claim",
    "claim_async",
    "install",
    "once",
    "once_async",
    "read",
    "read_async",
    "refusal",
    "try_once",
    "try_once_async",
    "write",
    "write_async",
]

Done = TypeVar("Done")


def write(cursor: object, lock: Writer) -> None:
    """Lets the writes that follow in this transaction count only if the lock is not lost.

    >>> import sqlite3
    >>> from fencepost import fence
    >>> from fencepost.fence import FenceToken
    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute("CREATE TABLE wallet (id INTEGER PRIMARY KEY, balance INTEGER)")
    >>> fence.install(connection)
    True
    >>> with connection:
    ...     fence.write(connection, ("wallet:7", FenceToken(42)))
    ...     _ = connection.execute("INSERT INTO wallet VALUES (7, 400)")

    A holder with an older token was paused for too long. Its transaction is rolled back:

    >>> with connection:
    ...     fence.write(connection, ("wallet:7", FenceToken(41)))
    ...     _ = connection.execute("UPDATE wallet SET balance = 0")
    Traceback (most recent call last):
    fencepost.fence._errors.StaleToken: stale fencing token 41 for wallet:7: token 42 has been seen. The lock is lost: ...
    >>> connection.execute("SELECT balance FROM wallet").fetchone()
    (400,)

    All names of the lock are shown. Raises ``StaleToken`` if the store has seen a newer token: then roll back. ``NoTransaction`` if each
    statement commits by itself. ``NotInstalled`` if the store has no guard yet. ``TypeError`` if the lock has no token that can write. All
    other errors are those of the driver: after a serialization failure, a deadlock or a lost connection, run the transaction again from its
    start.
    """
    admit(cursor, Access.write(lock))


def claim(cursor: object, lock: Writer) -> None:
    """Shuts out older holders before the first read of a holder that is going to write.

    Without it, a late write could still arrive between the read and the write. Read with the next statement. Raises what ``write`` raises.
    """
    admit(cursor, Access.claim(lock))


def read(cursor: object, lock: Reader) -> None:
    """Lets the transaction read only if no newer token has written. For a lock of any kind that has a token. Raises what ``write`` raises."""
    admit(cursor, Access.read(lock))


def admit(cursor: object, access: Access) -> None:
    """Shows several locks with different uses at once: if one of them is lost, the whole access is refused. Raises what ``write`` raises.

    >>> import sqlite3
    >>> from fencepost import fence
    >>> from fencepost.fence import Access, FenceToken, ReadToken
    >>> connection = sqlite3.connect(":memory:")
    >>> fence.install(connection)
    True
    >>> order, price = ("order:42", FenceToken(7)), ("price:3", ReadToken(5))
    >>> with connection:
    ...     fence.admit(connection, Access.write(order).and_read(price))
    """
    if not isinstance(access, Access):
        raise TypeError(f"{type(access).__name__} is no Access: Access.write(lock).and_read(other)")
    guard = _guard(cursor)
    _run(guard, cursor, guard.admit(access.shown))


def once(cursor: object, lock: Writer, key: str | None = None) -> None:
    """Records in this transaction that the work of a key is done, and shows the token of the lock that it is done under.

    The row of the key and the work commit together, or neither does. A job brings its key along. A job that commits after each of its
    items gives each item its own key, such as ``2026-11/40``.

    >>> import sqlite3
    >>> from fencepost import fence
    >>> from fencepost.fence import FenceToken
    >>> connection = sqlite3.connect(":memory:")
    >>> fence.install(connection)
    True
    >>> billing = ("billing", FenceToken(7))
    >>> with connection:
    ...     fence.once(connection, billing, "2026-11")
    >>> with connection:
    ...     fence.once(connection, billing, "2026-11")
    Traceback (most recent call last):
    fencepost.fence._errors.DoneBefore: the work with the key '2026-11' under billing was done before, with this same token 7: leave it out

    It shows the token as ``write`` does, so that call is not needed for this name. Raises ``DoneBefore`` if the work was done before: then
    roll back. ``ValueError`` if the key is not valid, or, in Postgres, if this transaction itself has recorded it. (MySQL and SQLite do not
    show which transaction wrote a row: there, a second ``once`` with the same key says that the work was done before, although nothing is
    committed yet.) All others as ``write``.
    """
    shown, key = _named(lock, key)
    guard = _guard(cursor)
    _run(guard, cursor, guard.once(shown, key))


def try_once(cursor: object, lock: Writer, key: str | None = None) -> bool:
    """As ``once``, but returns whether the key is the first, and the transaction goes on: for batches, which leave out what was done.

    A key that this transaction itself has recorded counts as recorded before. Raises what ``once`` raises, but no ``DoneBefore``.
    """
    shown, key = _named(lock, key)
    guard = _guard(cursor)
    is_first: bool = _run(guard, cursor, guard.try_once(shown, key))
    return is_first


async def write_async(cursor: object, lock: Writer) -> None:
    """As ``write``, for an async cursor or connection of psycopg."""
    await admit_async(cursor, Access.write(lock))


async def claim_async(cursor: object, lock: Writer) -> None:
    """As ``claim``, for an async cursor or connection of psycopg."""
    await admit_async(cursor, Access.claim(lock))


async def read_async(cursor: object, lock: Reader) -> None:
    """As ``read``, for an async cursor or connection of psycopg."""
    await admit_async(cursor, Access.read(lock))


async def admit_async(cursor: object, access: Access) -> None:
    """As ``admit``, for an async cursor or connection of psycopg. If it is cancelled, roll back: the check may or may not have run."""
    if not isinstance(access, Access):
        raise TypeError(f"{type(access).__name__} is no Access: Access.write(lock).and_read(other)")
    await _run_async(cursor, _postgres.admit(access.shown))


async def once_async(cursor: object, lock: Writer, key: str | None = None) -> None:
    """As ``once``, for an async cursor or connection of psycopg. If it is cancelled, roll back."""
    await _run_async(cursor, _postgres.once(*_named(lock, key)))


async def try_once_async(cursor: object, lock: Writer, key: str | None = None) -> bool:
    """As ``try_once``, for an async cursor or connection of psycopg. If it is cancelled, roll back."""
    return await _run_async(cursor, _postgres.try_once(*_named(lock, key)))


def install(connection: object) -> bool:
    """Creates the tables of the guard in a SQLite database, or upgrades them. Returns whether it changed anything.

    In an open transaction the tables are a part of it; without one they are committed. Raises ``NotInstalled`` if a newer version has created
    them. The guards of servers run with rights of their own, so an operator installs them, and this raises ``Unsupported`` with the command.
    """
    guard = _guard(connection)
    if guard is _sqlite:
        return _sqlite.install(connection)
    store = "postgres" if guard is _postgres else "mysql"
    raise Unsupported(
        "the guard of a server runs with the rights of the account that installs it, so the program that uses it does not install it: run "
        f"`fencepost fence init {store}://user@host/database`"
    )


def refusal(error: BaseException) -> Refused | ValueError | None:
    """What the guard says in an error of psycopg; ``None`` if the error is not of the guard.

    The functions of this module raise it themselves. It is for statements of your own that a trigger of the guard refuses: ``NoToken`` if the
    transaction has shown no token for a row, ``StaleToken`` if the row has seen a newer one.
    """
    return _postgres.refusal(error)


def _named(lock: Writer, key: str | None) -> tuple[Shown, str]:
    shown = named(lock)
    if key is None:
        key = getattr(lock, "key", None)
        if key is None:
            raise TypeError(f"a {type(lock).__name__} has no key of its own: name the piece of work, such as once(cursor, lock, '2026-11')")
    return shown, checked_key(key)


#: The guard for the driver that has the class of a cursor, by the beginning of the class's module.
_GUARDS: dict[str, Any] = {
    "psycopg": _postgres,
    "pymysql": _mysql,
    "MySQLdb": _mysql,
    "mysql.connector": _mysql,
    "sqlite3": _sqlite,
}
_SUPPORTED = "psycopg 3 for Postgres; PyMySQL, mysqlclient and mysql-connector-python for MySQL and MariaDB; sqlite3"


def _guard(target: object) -> Any:
    # A program may have classes of its own that inherit from those of the driver.
    for kind in type(target).__mro__:
        if kind.__module__.startswith("mysql.connector.aio"):
            break
        for driver, guard in _GUARDS.items():
            if kind.__module__ == driver or kind.__module__.startswith(driver + "."):
                return guard
    kind = type(target)
    raise TypeError(
        f"{kind.__module__}.{kind.__qualname__} is no cursor or connection of a supported driver: {_SUPPORTED}. Give the cursor of the "
        "driver itself, not the wrapper of a framework"
    )


def _run(guard: ModuleType, target: object, steps: Steps[Done]) -> Done:
    done: Done = guard.run(target, steps)
    return done


async def _run_async(target: object, steps: Steps[Done]) -> Done:
    guard = _guard(target)
    if guard is not _postgres:
        raise TypeError(f"{type(target).__module__} does not wait with `await`: use write, once and so on")
    return await _postgres.run_async(target, steps)
