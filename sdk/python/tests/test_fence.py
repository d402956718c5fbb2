"""The guard of the store: ``fencepost.fence`` against the rules of the Rust crate, and against real stores.

``fence_cases.json`` has histories that the Rust rules have judged. Every guard of this package must judge each step the same, with the same
names and numbers in its refusals. The other tests are about what only Python has: drivers, cursors, transactions that begin by themselves.
"""

from __future__ import annotations

import asyncio
import doctest
import importlib.util
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fencepost
from fencepost import fence
from fencepost._errors import Unsupported
from fencepost.fence import (
    Access,
    DoneBefore,
    FenceToken,
    NotInstalled,
    NoToken,
    NoTransaction,
    ReadToken,
    StaleToken,
    _rules,
    _sqlite,
)
from guides import assert_all_run, run_shown
from stores import driver, end_servers, mariadb, mariadb_bare, postgres, postgres_bare

__all__ = ["end_servers", "mariadb", "mariadb_bare", "postgres", "postgres_bare"]

CASES = json.loads((Path(__file__).parent / "fence_cases.json").read_text(encoding="utf-8"))
HISTORIES = {case["history"]: case["steps"] for case in CASES["histories"]}
SOURCES = Path(__file__).parents[1] / "python"
ODD_NAME = 'it\'s %_\\ "quoted" ü 😀 %s'


def writer(name: str, token: int) -> tuple[str, FenceToken]:
    return name, FenceToken(token)


def reader(name: str, token: int) -> tuple[str, ReadToken]:
    return name, ReadToken(token)


# ---- The stores, each with one way to run a transaction.


class Store:
    """A guarded store. ``connect`` opens a connection that begins a transaction with its first statement."""

    def connect(self) -> Any:
        raise NotImplementedError

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[Any]:
        """A cursor in a transaction that is committed, or rolled back after an exception."""
        cursor = connection.cursor()
        try:
            yield cursor
        except BaseException:
            connection.rollback()
            raise
        else:
            connection.commit()
        finally:
            cursor.close()

    def forget_below(self, connection: Any, floor: int) -> None:
        """Forgets marks, as an operator does with the command line."""
        with self.transaction(connection) as cursor:
            cursor.execute(f"UPDATE fencepost_base SET base = {floor} WHERE base < {floor}")
            cursor.execute(f"DELETE FROM fencepost_marks WHERE {self.highest} <= (SELECT base FROM fencepost_base)")

    highest = "greatest(write_floor, write_floor_below)"


class Sqlite(Store):
    highest = "max(write_floor, write_floor_below)"

    def __init__(self, place: Path) -> None:
        self.file = place / "store.db"
        with closing(self.connect()) as connection:
            assert fence.install(connection)

    def connect(self) -> Any:
        return sqlite3.connect(self.file, timeout=60, check_same_thread=False)


class Postgres(Store):
    def __init__(self, address: str) -> None:
        self.address = address

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.address)

    def forget_below(self, connection: Any, floor: int) -> None:
        with self.transaction(connection) as cursor:
            cursor.execute("SELECT fencepost.forget_below(%s)", [floor])


class MariaDb(Store):
    def __init__(self, module: Any, arguments: dict[str, Any]) -> None:
        self.module, self.arguments = module, arguments

    def connect(self) -> Any:
        return self.module.connect(**self.arguments)


@pytest.fixture
def in_sqlite(tmp_path: Path) -> Store:
    return Sqlite(tmp_path)


@pytest.fixture
def in_postgres(postgres: str) -> Store:
    return Postgres(postgres)


@pytest.fixture
def in_pymysql(mariadb: dict[str, Any], request: pytest.FixtureRequest) -> Store:
    return MariaDb(driver(request, "pymysql", "pymysql"), mariadb)


@pytest.fixture
def in_mysql_connector(mariadb: dict[str, Any], request: pytest.FixtureRequest) -> Store:
    return MariaDb(driver(request, "mysql.connector", "mysql-connector-python"), mariadb)


@pytest.fixture
def in_mysqlclient(mariadb: dict[str, Any], request: pytest.FixtureRequest) -> Store:
    return MariaDb(driver(request, "MySQLdb", "mysqlclient"), {**mariadb, "charset": "utf8mb4"})


#: mysqlclient has no wheels for Linux, so it is tested where it happens to be installed.
MYSQL_DRIVERS = ["pymysql", "mysql_connector", *(["mysqlclient"] if importlib.util.find_spec("MySQLdb") else [])]


@pytest.fixture(params=["sqlite", "postgres", *MYSQL_DRIVERS])
def store(request: pytest.FixtureRequest) -> Store:
    """Every store, with every driver."""
    found: Store = request.getfixturevalue(f"in_{request.param}")
    return found


# ---- What the Rust rules say.


def access_of(shown: list[tuple[str, str, int]]) -> Access:
    """The access of a case, through the public methods."""
    access = Access([])
    for use, name, token in shown:
        if use == "read":
            access = access.and_read(reader(name, token))
        elif use == "claim":
            access = access.and_claim(writer(name, token))
        else:
            access = access.and_write(writer(name, token))
    return access


def verdict_of(work: Callable[[], object]) -> dict[str, Any]:
    """What became of a step, in the words of the file."""
    try:
        work()
    except StaleToken as stale:
        return {"stale": [stale.name, stale.token, stale.at, stale.highest]}
    except DoneBefore as before:
        return {"recorded": [before.token, before.own]}
    return {}


def expected_of(step: dict[str, Any]) -> dict[str, Any]:
    return {word: step[word] for word in ("stale", "recorded") if word in step}


@pytest.mark.parametrize("history", HISTORIES)
def test_the_rules_are_those_of_the_rust_crate(history: str) -> None:
    table, keys = _rules.MarkTable(), dict[tuple[str, str], int]()
    for at, step in enumerate(HISTORIES[history]):
        if floor := step.get("forget_below"):
            assert [table.forget_below(floor), table.base] == step["forgotten"], f"step {at}"
            continue
        name, key, token = step.get("once", (None, None, None))
        shown = access_of(step["show"] if "show" in step else [("write", name, token)]).shown
        if (name, key) in keys and "stale" not in step:
            # The caller rolls back, so no mark moves.
            assert step["recorded"] == [keys[name, key], keys[name, key] == token], f"step {at}"
            continue
        assert verdict_of(partial(table.admit, shown)) == expected_of(step), f"step {at}"
        if name is not None and "stale" not in step:
            keys[name, key] = token


def test_every_store_judges_as_the_rules(store: Store, tmp_path: Path) -> None:
    with closing(store.connect()) as connection:
        for history, steps in HISTORIES.items():
            for at, step in enumerate(steps):
                if floor := step.get("forget_below"):
                    store.forget_below(connection, floor)
                    continue

                def work(step: dict[str, Any] = step) -> None:
                    with store.transaction(connection) as cursor:
                        if "show" in step:
                            fence.admit(cursor, access_of(step["show"]))
                        else:
                            name, key, token = step["once"]
                            fence.once(cursor, writer(name, token), key)

                assert verdict_of(work) == expected_of(step), f"{history}, step {at}: {step}"
            empty(store, connection)


def empty(store: Store, connection: Any) -> None:
    """A store as it was installed, for the next history."""
    tables = ("fencepost.store", "fencepost.marks", "fencepost.keys")
    base, marks, keys = tables if isinstance(store, Postgres) else ("fencepost_base", "fencepost_marks", "fencepost_keys")
    with store.transaction(connection) as cursor:
        cursor.execute(f"UPDATE {base} SET base = 0")
        cursor.execute(f"DELETE FROM {marks}")
        cursor.execute(f"DELETE FROM {keys}")


def test_psycopg_with_await_judges_as_the_rules(in_postgres: Postgres) -> None:
    import psycopg

    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(in_postgres.address) as connection:
            for at, step in enumerate(HISTORIES["random history 1"]):
                found: dict[str, Any] = {}
                try:
                    async with connection.transaction(), connection.cursor() as cursor:
                        if floor := step.get("forget_below"):
                            await cursor.execute("SELECT fencepost.forget_below(%s)", [floor])
                        elif "show" in step:
                            await fence.admit_async(cursor, access_of(step["show"]))
                        else:
                            name, key, token = step["once"]
                            await fence.once_async(connection, writer(name, token), key)
                except StaleToken as stale:
                    found = {"stale": [stale.name, stale.token, stale.at, stale.highest]}
                except DoneBefore as before:
                    found = {"recorded": [before.token, before.own]}
                assert found == expected_of(step), f"step {at}: {step}"

    asyncio.run(play())


def test_names_and_keys_are_those_of_the_rust_crate() -> None:
    for kind, checked in (("names", _rules.checked_name), ("keys", _rules.checked_key)):
        for text in CASES["words"][kind]["valid"]:
            assert checked(text) == text
        for text in [*CASES["words"][kind]["invalid"], "\ud800"]:
            with pytest.raises(ValueError):
                checked(text)
        with pytest.raises(TypeError):
            checked(7)  # type: ignore[arg-type]


def test_the_tables_of_sqlite_are_those_of_the_rust_crate() -> None:
    assert _sqlite.SCRIPT == CASES["sqlite"]["script"]
    assert _sqlite.VERSION == CASES["sqlite"]["version"]


# ---- What a holder sees.


def numbers(store: Store) -> Any:
    """A connection to the store, with a table of numbers."""
    connection = store.connect()
    with store.transaction(connection) as cursor:
        cursor.execute("CREATE TABLE wallet (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
        cursor.execute("INSERT INTO wallet VALUES (7, 500)")
    return connection


def balance(store: Store, connection: Any) -> int:
    with store.transaction(connection) as cursor:
        cursor.execute("SELECT balance FROM wallet")
        return int(cursor.fetchone()[0])


# Rule: fence, claim-before-read
def test_a_late_write_of_a_paused_holder_is_refused(store: Store) -> None:
    with closing(numbers(store)) as paused, closing(store.connect()) as successor:
        for connection, token in ((paused, 5), (successor, 7)):
            with store.transaction(connection) as cursor:
                fence.claim(cursor, writer(ODD_NAME, token))
        with pytest.raises(StaleToken) as refused, store.transaction(paused) as cursor:
            fence.write(cursor, writer(ODD_NAME, 5))
            cursor.execute("UPDATE wallet SET balance = 400")
        assert (refused.value.name, refused.value.token) == (ODD_NAME, 5)
        assert (refused.value.at, refused.value.highest) == (ODD_NAME, 7)
        assert balance(store, paused) == 500
        with store.transaction(successor) as cursor:
            fence.write(cursor, writer(ODD_NAME, 7))
            cursor.execute("UPDATE wallet SET balance = 450")
        assert balance(store, successor) == 450


# Rule: same-transaction
def test_marks_and_keys_that_are_rolled_back_do_not_count(store: Store) -> None:
    with closing(store.connect()) as connection:
        with pytest.raises(RuntimeError), store.transaction(connection) as cursor:
            fence.write(cursor, writer("wallet", 7))
            fence.once(cursor, writer("billing", 7), "2026-11")
            raise RuntimeError("the program fails")
        with store.transaction(connection) as cursor:
            fence.write(cursor, writer("wallet", 5))
            fence.once(cursor, writer("billing", 5), "2026-11")


# Rule: once
def test_a_batch_leaves_out_what_was_done(store: Store) -> None:
    with closing(store.connect()) as connection:
        with store.transaction(connection) as cursor:
            fence.once(cursor, writer("billing", 5), "b")
        with store.transaction(connection) as cursor:
            found = [fence.try_once(cursor, writer("billing", 6), key) for key in "abca"]
        assert found == [True, False, True, False]
        with pytest.raises(StaleToken), store.transaction(connection) as cursor:
            fence.try_once(cursor, writer("billing", 5), "d")
        with pytest.raises(DoneBefore) as before, store.transaction(connection) as cursor:
            fence.once(cursor, writer("billing", 7), "a")
        found_before = before.value
        assert (found_before.name, found_before.key, found_before.token, found_before.own) == ("billing", "a", 6, False)
        with pytest.raises(DoneBefore) as before, store.transaction(connection) as cursor:
            fence.once(cursor, writer("billing", 6), "a")
        assert before.value.own


# Rule: once
def test_a_key_that_the_transaction_itself_has_recorded(store: Store) -> None:
    """Only Postgres shows which transaction wrote a row. In the others it is a trap, and the documentation warns of it."""
    expected: tuple[type[Exception], str] = (DoneBefore, "this same token")
    if isinstance(store, Postgres):
        expected = (ValueError, "this transaction has recorded the key")
    with closing(store.connect()) as connection:
        with pytest.raises(expected[0], match=expected[1]), store.transaction(connection) as cursor:
            fence.once(cursor, writer("billing", 5), "a")
            fence.once(cursor, writer("billing", 5), "a")


# Rule: once
def test_of_racing_transactions_with_one_key_one_does_the_work(store: Store) -> None:
    with closing(numbers(store)):
        pass
    racers, races, first = 4, 10, list[int]()
    start = threading.Barrier(racers)

    def race(racer: int) -> None:
        with closing(store.connect()) as connection:
            for number in range(races):
                start.wait(60)
                while True:
                    try:
                        with store.transaction(connection) as cursor:
                            fence.once(cursor, writer("billing", 1 + number), str(number))
                            cursor.execute("UPDATE wallet SET balance = balance + 1")
                        first.append(number)
                    except (DoneBefore, StaleToken):
                        pass
                    except Exception as error:  # A deadlock: the transaction is over, and runs again.
                        assert "eadlock" in str(error), error
                        continue
                    break

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(first) == list(range(races))
    with closing(store.connect()) as connection:
        assert balance(store, connection) == 500 + races


def test_the_rows_of_the_callers_cursor_stay(store: Store, request: pytest.FixtureRequest) -> None:
    """A loop over rows calls the guard for each row. mysql-connector-python has a way of its own, see the next test."""
    connector = "mysql_connector" in request.node.name
    with closing(store.connect()) as connection, store.transaction(connection) as cursor:
        cursor.execute("SELECT 'a' UNION ALL SELECT 'b' UNION ALL SELECT 'c'")
        rows = cursor.fetchall() if connector else cursor
        seen = [row[0] for row in rows if fence.try_once(cursor, writer("billing", 5), row[0])]
    assert seen == ["a", "b", "c"]


def test_a_connection_is_as_good_as_a_cursor(store: Store) -> None:
    with closing(store.connect()) as connection:
        with store.transaction(connection):
            fence.claim(connection, writer("wallet", 5))
            fence.once(connection, writer("billing", 5), "2026-11")
            assert not fence.try_once(connection, writer("billing", 5), "2026-11")
        with pytest.raises(StaleToken), store.transaction(connection):
            fence.read(connection, reader("billing", 4))


def test_a_key_is_bytes_for_the_store(store: Store) -> None:
    keys = ["a", "a ", " a", "A", "ä", "a\u0308", "／a", "😀", ODD_NAME, "NULL", "0", "00", "ü" * 128]
    with closing(store.connect()) as connection:
        for key in keys:
            with store.transaction(connection) as cursor:
                fence.once(cursor, writer("billing", 5), key)
        for key in keys:
            with pytest.raises(DoneBefore) as before, store.transaction(connection) as cursor:
                fence.once(cursor, writer("billing", 6), key)
            assert before.value.key == key


# ---- Locks and tokens.


def test_a_lock_shows_all_of_its_names(in_sqlite: Store) -> None:
    one = SimpleNamespace(names=("wallet:7",), fence_token=FenceToken(7))
    several = SimpleNamespace(names=("a", "b"), token={"a": FenceToken(5), "b": FenceToken(6)}.__getitem__)
    shared = SimpleNamespace(names=("price",), fence_token=ReadToken(4))
    access = Access.write(one).and_write(several).and_read(shared).and_read(one)
    shown = [(shown.use, shown.name, shown.token) for shown in access.shown]
    assert shown == [("write", "wallet:7", 7), ("write", "a", 5), ("write", "b", 6), ("read", "price", 4), ("read", "wallet:7", 7)]
    with closing(in_sqlite.connect()) as connection:
        with connection:
            fence.write(connection, several)
        with pytest.raises(StaleToken) as stale, connection:
            fence.write(connection, writer("b", 5))
        assert stale.value.highest == 6


def test_a_job_brings_its_key_along(in_sqlite: Store) -> None:
    job = SimpleNamespace(names=("billing",), fence_token=FenceToken(7), key="2026-11")
    with closing(in_sqlite.connect()) as connection:
        with connection:
            fence.once(connection, job)
            assert fence.try_once(connection, job, "2026-11/1")
        with pytest.raises(DoneBefore, match="2026-11"), connection:
            fence.once(connection, job)


class EfficiencyLock:
    names = ("cache",)

    @property
    def fence_token(self) -> FenceToken:
        raise AttributeError("a lock of the efficiency tier has no token")


@pytest.mark.parametrize(
    ("lock", "text"),
    [
        (("wallet:7", 42), "42 is no fencing token for wallet:7"),
        (("wallet:7", True), "True is no fencing token"),
        (("wallet:7", "42"), "'42' is no fencing token"),
        (("wallet:7", ReadToken(42)), "its token can only read"),
        (("wallet:7",), "no pair"),
        ((7, FenceToken(42)), "the name of a lock is a str"),
        (FenceToken(42), "no lock"),
        ("wallet:7", "no lock"),
        (None, "NoneType is no lock"),
        (EfficiencyLock(), "EfficiencyLock has no fencing token, so no store can check it: a lock of the efficiency tier"),
        (SimpleNamespace(names=("a",), fence_token=ReadToken(4)), "its token can only read: to (write|claim), hold"),
        (SimpleNamespace(names=("a",), fence_token=4), "4 is no fencing token"),
        (SimpleNamespace(names=("a", "b"), fence_token=FenceToken(4)), "does not say the token of each"),
        (SimpleNamespace(names=(), fence_token=FenceToken(4)), "on no name"),
        (SimpleNamespace(names="ab", fence_token=FenceToken(4)), "no lock"),
        (SimpleNamespace(names=("a", "b"), token=lambda name: ReadToken(4)), "can only read"),
    ],
    # Without the addresses of objects: each process that runs tests must give a test the same name.
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_write_is_refused(lock: Any, text: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for shows in (fence.write, fence.claim):
            with pytest.raises(TypeError, match=text):
                shows(connection, lock)
        with pytest.raises(TypeError, match=text):
            fence.once(connection, lock, "2026-11")
        assert not connection.in_transaction


def test_once_wants_one_name_and_a_key() -> None:
    several: Any = SimpleNamespace(names=("a", "b"), token=lambda name: FenceToken(7))
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(TypeError, match="one name, and this lock is on a, b"):
            fence.once(connection, several, "2026-11")
        with pytest.raises(TypeError, match="name the piece of work"):
            fence.once(connection, writer("billing", 7))
        for key in ("", "a\nb", "n" * 257):
            with pytest.raises(ValueError, match="the key is not valid"):
                fence.try_once(connection, writer("billing", 7), key)
        for name in ("", "/a//b", "line\nbreak"):
            with pytest.raises(ValueError, match="the name is not valid"):
                fence.write(connection, writer(name, 7))


def test_the_error_of_a_lost_lock_is_passed_on() -> None:
    class Lost:
        names = ("wallet",)

        @property
        def fence_token(self) -> FenceToken:
            raise LookupError("the lock is lost")

    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(LookupError):
        fence.write(connection, Lost())


CHECKED = """
from fencepost import fence
from fencepost._jobs import Job
from fencepost._locks import EfficiencyLock, Leadership, Lock, MultiLock, MultiReadLock, Permits, ReadLock, UpdateLock
from fencepost.fence import Access, FenceToken, ReadToken

def good(cursor: object, lock: Lock, several: MultiLock, job: Job, leadership: Leadership) -> None:
    fence.write(cursor, lock)
    fence.claim(cursor, several)
    fence.write(cursor, leadership)
    fence.once(cursor, job)
    fence.once(cursor, ("billing", FenceToken(7)), "2026-11")

def also_good(cursor: object, lock: Lock, shared: ReadLock, update: UpdateLock, several: MultiReadLock) -> None:
    for one in (lock, shared, update, several, ("price:3", ReadToken(5))):
        fence.read(cursor, one)
    fence.admit(cursor, Access.write(lock).and_read(shared).and_read(several))

def bad(cursor: object, shared: ReadLock, update: UpdateLock, several: MultiReadLock, cheap: EfficiencyLock, permits: Permits) -> None:
    fence.write(cursor, shared)  # wrong
    fence.claim(cursor, update)  # wrong
    fence.write(cursor, several)  # wrong
    fence.write(cursor, cheap)  # wrong
    fence.read(cursor, permits)  # wrong
    fence.once(cursor, shared, "2026-11")  # wrong
    fence.claim(cursor, ("wallet:7", ReadToken(7)))  # wrong
    fence.write(cursor, ("wallet:7", 42))  # wrong
"""


def test_a_type_checker_sees_the_mistakes(tmp_path: Path) -> None:
    """What does not compile in Rust is an error of mypy here."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(CHECKED, encoding="utf-8")
    # The sources, because an installed package may be older. What they import of others is checked elsewhere.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}", str(program)]
    checked = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(SOURCES)})
    found = [int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line]
    wrong = [number for number, line in enumerate(CHECKED.splitlines(), 1) if line.endswith("# wrong")]
    assert (checked.returncode, found) == (1, wrong), checked.stdout + checked.stderr


# ---- Drivers and transactions.


def test_an_unknown_driver_is_refused_with_a_list() -> None:
    with pytest.raises(TypeError, match=r"types\.SimpleNamespace is no cursor .* psycopg 3 for Postgres; PyMySQL"):
        fence.write(SimpleNamespace(), writer("wallet", 5))
    with pytest.raises(TypeError, match="is no Access"):
        fence.admit(sqlite3.connect(":memory:"), writer("wallet", 5))  # type: ignore[arg-type]


def test_no_driver_is_imported_before_it_is_used() -> None:
    program = (
        "import sys; before = set(sys.modules); from fencepost import fence; "
        "print(*{'psycopg', 'pymysql', 'MySQLdb', 'mysql', 'sqlite3'} & (set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == ""


def test_refusals_survive_the_way_to_another_process() -> None:
    for refusal in (StaleToken("/a/b", 5, "/a", 7), DoneBefore("billing", "2026-11", 5, True)):
        copy = pickle.loads(pickle.dumps(refusal))
        assert (str(copy), copy.__dict__) == (str(refusal), refusal.__dict__)


def test_the_docstrings_run() -> None:
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    tried = 0
    for name in ("__init__", "_access", "_errors", "_rules", "_postgres", "_mysql", "_sqlite", "_steps"):
        module = importlib.import_module("fencepost.fence" + ("" if name == "__init__" else f".{name}"))
        result = doctest.testmod(module, optionflags=flags)
        assert result.failed == 0, name
        tried += result.attempted
    assert tried > 30


def test_sqlite_without_a_transaction_is_refused(in_sqlite: Store) -> None:
    with closing(in_sqlite.connect()) as connection:
        connection.isolation_level = None
        work: Callable[[], object]
        for work in (lambda: fence.write(connection, writer("a", 5)), lambda: fence.once(connection, writer("a", 5), "k")):
            with pytest.raises(NoTransaction, match="BEGIN IMMEDIATE"):
                work()
        connection.execute("BEGIN IMMEDIATE")
        fence.write(connection, writer("a", 5))
        connection.execute("COMMIT")
        with pytest.raises(StaleToken):
            connection.execute("BEGIN")
            fence.write(connection, writer("a", 4))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has `autocommit` since Python 3.12")
def test_sqlite_with_autocommit_as_an_attribute(in_sqlite: Sqlite) -> None:
    with closing(sqlite3.connect(in_sqlite.file, autocommit=True)) as connection:  # type: ignore[call-overload,unused-ignore]
        with pytest.raises(NoTransaction):
            fence.write(connection, writer("a", 5))
    with closing(sqlite3.connect(in_sqlite.file, autocommit=False)) as connection:  # type: ignore[call-overload,unused-ignore]
        fence.write(connection, writer("a", 5))
        connection.commit()
        with pytest.raises(StaleToken):
            fence.write(connection, writer("a", 4))


def test_sqlite_begins_a_transaction_with_the_guard(in_sqlite: Store) -> None:
    with closing(in_sqlite.connect()) as connection, closing(sqlite3.connect(in_sqlite.file, timeout=0)) as other:  # type: ignore[attr-defined]
        connection.row_factory = sqlite3.Row
        fence.claim(connection, writer("a", 5))
        assert connection.in_transaction
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            fence.claim(other, writer("a", 7))
        connection.commit()
        fence.claim(other, writer("a", 7))
        other.commit()
        with pytest.raises(StaleToken), connection:
            fence.write(connection, writer("a", 5))
        assert not connection.in_transaction


# Rule: claim-before-read
def test_sqlite_refuses_an_old_view(in_sqlite: Sqlite) -> None:
    with closing(numbers(in_sqlite)) as early, closing(in_sqlite.connect()) as other:
        early.execute("PRAGMA journal_mode = WAL")
        early.execute("BEGIN")
        early.execute("SELECT balance FROM wallet").fetchone()
        with other:
            fence.write(other, writer("wallet", 5))
            other.execute("UPDATE wallet SET balance = 400")
        with pytest.raises(sqlite3.OperationalError):
            fence.claim(early, writer("wallet", 7))


def test_sqlite_is_installed_once_and_upgraded(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        with pytest.raises(NotInstalled, match="fence init sqlite:FILE"):
            fence.write(connection, writer("a", 5))
        assert [fence.install(connection), fence.install(connection.cursor())] == [True, False]
        with connection:
            fence.write(connection, writer("a", 5))
            connection.execute("DROP TABLE fencepost_keys")
            connection.execute("UPDATE fencepost_base SET version = 1")
        with pytest.raises(NotInstalled, match="format version 1, and this release knows 2: run"):
            fence.write(connection, writer("a", 5))
        connection.rollback()
        assert fence.install(connection)
        with connection:
            fence.once(connection, writer("a", 5), "k")
        with pytest.raises(StaleToken), connection:
            fence.write(connection, writer("a", 4))
        with connection:
            connection.execute("UPDATE fencepost_base SET version = 3")
        for work in (lambda: fence.install(connection), lambda: fence.write(connection, writer("a", 5))):
            with pytest.raises(NotInstalled, match=r"version 3.*newer release"):
                work()
            connection.rollback()
        # In a transaction it is a part of it.
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("BEGIN")
        assert fence.install(connection)
        connection.rollback()
        assert fence.install(connection)


def test_psycopg_without_a_transaction_is_refused(in_postgres: Postgres) -> None:
    import psycopg

    with psycopg.connect(in_postgres.address, autocommit=True) as connection:
        work: Callable[[], object]
        for work in (
            lambda: fence.write(connection, writer("a", 5)),
            lambda: fence.once(connection.cursor(), writer("a", 5), "k"),
            lambda: fence.try_once(connection, writer("a", 5), "k"),
        ):
            with pytest.raises(NoTransaction, match=r"connection\.transaction"):
                work()
        with connection.transaction():
            fence.write(connection, writer("a", 5))
        with connection.pipeline(), connection.transaction():
            fence.write(connection, writer("a", 6))
            connection.execute("SELECT 1")
        # What waits in the pipeline hides that no transaction is open, until the server has answered.
        with pytest.raises(NoTransaction), connection.pipeline():
            connection.execute("SELECT 1")
            fence.write(connection, writer("a", 6))
        with pytest.raises((NoTransaction, NoToken)), connection.pipeline():
            connection.execute("SELECT 1")
            fence.once(connection, writer("a", 6), "in a pipeline")
        with pytest.raises(StaleToken), connection.transaction():
            fence.write(connection, writer("a", 5))
        with pytest.raises(StaleToken), connection.pipeline(), connection.transaction():
            fence.write(connection, writer("a", 5))


def test_psycopg_with_other_cursors_and_rows(in_postgres: Postgres) -> None:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(in_postgres.address, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        for cursor in (connection.cursor(), psycopg.ClientCursor(connection), connection.cursor("named")):
            with connection.transaction():
                fence.write(cursor, writer("a", 5))
                assert fence.try_once(cursor, writer("a", 5), type(cursor).__name__)
                assert not fence.try_once(cursor, writer("a", 5), type(cursor).__name__)


def test_psycopg_with_await(in_postgres: Postgres) -> None:
    import psycopg

    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(in_postgres.address, autocommit=True) as connection:
            with pytest.raises(NoTransaction):
                await fence.write_async(connection, writer("a", 5))
            async with connection.transaction(), connection.cursor() as cursor:
                await fence.claim_async(cursor, writer("a", 5))
                await fence.write_async(cursor, writer("a", 5))
                await fence.read_async(connection, reader("b", 5))
                await fence.once_async(cursor, writer("a", 5), "k")
                assert [await fence.try_once_async(cursor, writer("a", 5), key) for key in ("k", "l")] == [False, True]
            with pytest.raises(DoneBefore):
                async with connection.transaction():
                    await fence.once_async(connection, writer("a", 5), "l")
            with pytest.raises(TypeError, match="needs `await`"):
                fence.write(connection, writer("a", 5))
            with pytest.raises(TypeError, match="is no Access"):
                await fence.admit_async(connection, None)  # type: ignore[arg-type]
        with psycopg.connect(in_postgres.address) as sync, pytest.raises(TypeError, match="does not wait"):
            await fence.write_async(sync, writer("a", 5))
        with closing(sqlite3.connect(":memory:")) as sqlite, pytest.raises(TypeError, match="does not wait"):
            await fence.write_async(sqlite, writer("a", 5))

    asyncio.run(play())


def test_what_a_trigger_of_postgres_refuses(in_postgres: Postgres) -> None:
    import psycopg

    with closing(numbers(in_postgres)) as connection:
        connection.execute("SELECT fencepost.guard_rows('wallet', 'wallet:', 'id')")
        connection.commit()
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("UPDATE wallet SET balance = 0")
        connection.rollback()
        found = fence.refusal(refused.value)
        assert isinstance(found, NoToken) and "wallet:7" in str(found)
        assert fence.refusal(psycopg.OperationalError("the server is gone")) is None
        assert fence.refusal(KeyError("wallet")) is None
        with connection.transaction():
            fence.write(connection, writer("wallet:7", 5))
            connection.execute("UPDATE wallet SET balance = 400")


def test_postgres_says_what_is_missing(postgres_bare: str, postgres: str) -> None:
    import psycopg

    with psycopg.connect(postgres) as connection:
        with pytest.raises(Unsupported, match="fencepost fence init postgres://"):
            fence.install(connection)
        connection.execute("DROP SCHEMA fencepost CASCADE")
        connection.commit()
        with pytest.raises(NotInstalled, match="fencepost fence init postgres://"):
            fence.write(connection, writer("a", 5))


def test_a_role_of_postgres_without_the_right_is_told_so(postgres: str) -> None:
    import psycopg

    with psycopg.connect(postgres) as connection:
        role = f"app_of_{connection.info.dbname}"
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(NotInstalled, match="GRANT USAGE ON SCHEMA fencepost"):
            fence.write(connection, writer("a", 5))


def test_the_connection_is_durable_again_after_once_in_postgres(in_postgres: Postgres) -> None:
    with closing(in_postgres.connect()) as connection:
        connection.execute("SET synchronous_commit = off")
        fence.once(connection, writer("a", 5), "k")
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.fixture(params=MYSQL_DRIVERS)
def in_mysql(request: pytest.FixtureRequest) -> Store:
    """MariaDB, with every driver."""
    found: Store = request.getfixturevalue(f"in_{request.param}")
    return found


def test_mysql_without_a_transaction_is_refused(in_mysql: Store) -> None:
    store = in_mysql
    with closing(store.connect()) as connection:
        by_method = callable(getattr(connection, "autocommit", None))
        connection.autocommit(True) if by_method else setattr(connection, "autocommit", True)
        work: Callable[[], object]
        for work in (lambda: fence.write(connection, writer("a", 5)), lambda: fence.once(connection, writer("a", 5), "k")):
            with pytest.raises(NoTransaction, match="START TRANSACTION"):
                work()
        with store.transaction(connection) as cursor:
            cursor.execute("START TRANSACTION")
            fence.write(cursor, writer("a", 5))
        connection.autocommit(False) if by_method else setattr(connection, "autocommit", False)
        with pytest.raises(StaleToken), store.transaction(connection) as cursor:
            fence.write(cursor, writer("a", 4))


def test_mysql_says_what_is_missing(in_mysql: Store) -> None:
    store = in_mysql
    with closing(store.connect()) as connection:
        with pytest.raises(Unsupported, match="fencepost fence init mysql://"):
            fence.install(connection)
        with store.transaction(connection) as cursor:
            cursor.execute("DROP PROCEDURE fencepost_present")
        with pytest.raises(NotInstalled, match="fencepost fence init mysql://"), store.transaction(connection) as cursor:
            fence.write(cursor, writer("a", 5))


# Rule: claim-before-read
def test_mysql_refuses_an_old_view_with_the_error_of_the_driver(in_mysql: Store) -> None:
    store = in_mysql
    with closing(numbers(store)) as early, closing(store.connect()) as other:
        with store.transaction(other) as cursor:
            fence.write(cursor, writer("wallet", 5))
        cursor = early.cursor()
        cursor.execute("SELECT balance FROM wallet")
        cursor.fetchall()
        with store.transaction(other) as newer:
            fence.write(newer, writer("wallet", 6))
        with pytest.raises(Exception, match="has read before the guard"):
            fence.claim(cursor, writer("wallet", 7))
        early.rollback()


def test_an_account_of_mysql_without_the_right_is_told_so(mariadb: dict[str, Any]) -> None:
    import pymysql

    with closing(pymysql.connect(**mariadb)) as root, root.cursor() as cursor:
        account, database = f"app_{mariadb['database']}", mariadb["database"]
        cursor.execute(f"CREATE USER {account}")
        cursor.execute(f"CREATE TABLE {database}.bill (id INTEGER)")
        cursor.execute(f"GRANT SELECT ON {database}.bill TO {account}")
        with closing(pymysql.connect(**{**mariadb, "user": account})) as connection:
            with pytest.raises(NotInstalled, match="GRANT EXECUTE ON PROCEDURE"):
                fence.write(connection, writer("a", 5))
            cursor.execute(f"GRANT EXECUTE ON PROCEDURE {database}.fencepost_present TO {account}")
            fence.write(connection, writer("a", 5))
            connection.commit()
            with pytest.raises(StaleToken):
                fence.write(connection, writer("a", 4))


def test_mysql_with_cursors_that_make_dictionaries_or_do_not_buffer(mariadb: dict[str, Any]) -> None:
    import pymysql.cursors

    for kind in (pymysql.cursors.DictCursor, pymysql.cursors.SSCursor, pymysql.cursors.SSDictCursor):
        with closing(pymysql.connect(**mariadb, cursorclass=kind)) as connection, connection.cursor() as cursor:
            fence.write(cursor, writer(kind.__name__, 5))
            assert fence.try_once(cursor, writer(kind.__name__, 5), "k")
            assert not fence.try_once(cursor, writer(kind.__name__, 5), "k")
            connection.commit()
            late = writer(kind.__name__, 4)
            for refuses in (partial(fence.write, cursor, late), partial(fence.once, connection, late, "l")):
                with pytest.raises(StaleToken) as stale:
                    refuses()
                assert (stale.value.name, stale.value.highest) == (kind.__name__, 5)
                connection.rollback()


# ---- The guides.

LOCK = SimpleNamespace(names=("wallet:7",), fence_token=FenceToken(42))


def late(function: Callable[[], object]) -> None:
    """The code is run by a holder whose lock is lost."""
    with pytest.raises(StaleToken):
        function()


def test_the_guide_of_fencing_runs_in_postgres(in_postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> None:
    import psycopg

    older = SimpleNamespace(names=("wallet:7",), fence_token=FenceToken(41))
    with closing(numbers(in_postgres)) as connection:
        create_bills(in_postgres, connection)
        connection.autocommit = True
        run_shown("fencing.md", "postgres", connection=connection, lock=LOCK)
        assert balance(in_postgres, connection) == 400
        late(lambda: run_shown("fencing.md", "postgres", connection=connection, lock=older))
        for said in ("", "billed by this holder\n"):
            run_shown("fencing.md", "once", connection=connection, lock=LOCK, fence=fence)
            assert capsys.readouterr().out == said
        assert connection.execute("SELECT count(*) FROM bill").fetchone() == (2,)
        with connection.transaction():
            order, price = writer("order:42", 7), reader("price:3", 5)
            run_shown("fencing.md", "several", cursor=connection, order=order, price=price, header="43", fence=fence)
        late(lambda: run_shown("fencing.md", "once", connection=connection, lock=LOCK, fence=fence))

    async def play() -> None:
        async with await psycopg.AsyncConnection.connect(in_postgres.address, autocommit=True) as connection:
            newer = SimpleNamespace(names=("wallet:7",), fence_token=FenceToken(44))
            await run_shown("fencing.md", "postgres-async", connection=connection, lock=newer, fence=fence)["shown"]()
            with pytest.raises(StaleToken):
                await run_shown("fencing.md", "postgres-async", connection=connection, lock=LOCK, fence=fence)["shown"]()

    asyncio.run(play())


def create_bills(store: Store, connection: Any) -> None:
    with store.transaction(connection) as cursor:
        cursor.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, due INTEGER NOT NULL)")
        cursor.execute("CREATE TABLE bill (id INTEGER NOT NULL, due INTEGER NOT NULL)")
        cursor.execute("INSERT INTO account VALUES (1, 10), (2, 20)")


def test_the_guide_of_fencing_runs_in_mysql(in_mysql: Store) -> None:
    with closing(numbers(in_mysql)) as connection:
        run_shown("fencing.md", "mysql", connection=connection, lock=LOCK, fence=fence)
        assert balance(in_mysql, connection) == 400
        older = SimpleNamespace(names=("wallet:7",), fence_token=FenceToken(41))
        late(lambda: run_shown("fencing.md", "mysql", connection=connection, lock=older, fence=fence))


def test_the_guide_of_fencing_runs_in_sqlite(in_sqlite: Store) -> None:
    with closing(numbers(in_sqlite)) as connection:
        run_shown("fencing.md", "sqlite", connection=connection, lock=LOCK, fence=fence)
        assert balance(in_sqlite, connection) == 400
        older = SimpleNamespace(names=("wallet:7",), fence_token=FenceToken(41))
        late(lambda: run_shown("fencing.md", "sqlite", connection=connection, lock=older, fence=fence))


# Rule: once
def test_the_guide_of_jobs_runs(in_postgres: Postgres) -> None:
    """The first attempt commits and dies before it completes the job. The second finds its row."""
    import psycopg

    said: list[str] = []

    def run(work: Callable[[object], str]) -> None:
        token = FenceToken(1 + len(said))
        said.append(work(SimpleNamespace(names=("billing",), fence_token=token, key="2026-12")))

    client = SimpleNamespace(job=lambda name, key: SimpleNamespace(run=run))
    names = {"client": client, "fence": fence, "psycopg": psycopg, "DATABASE": in_postgres.address}
    with closing(numbers(in_postgres)) as connection:
        for _ in range(2):
            run_shown("jobs.md", "once-at-the-store", **names)
        assert (said, balance(in_postgres, connection)) == (["billed", "billed before"], 400)


def test_the_program_of_the_projects_readme_runs(
    in_postgres: Postgres, fencepost_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = fencepost.connect
    monkeypatch.setattr(fencepost, "connect", lambda address: connect(fencepost_address))
    with closing(numbers(in_postgres)) as database:
        database.autocommit = True
        run_shown("/README.md", "program", database=database)["client"].close()
        assert balance(in_postgres, database) == 400
        assert database.execute("SELECT name FROM fencepost.marks").fetchone() == ("wallet:7",)


def test_every_python_block_of_these_pages_runs_here() -> None:
    assert_all_run(("fencing.md", "jobs.md", "/README.md"), Path(__file__), least=8)
