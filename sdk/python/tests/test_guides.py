"""Runs the code of the pages for users of Python, and looks at what it does.

The pages are docs/guides/python.md, the README of the package, and the two pages about moving from redis-py and kazoo. Code that is a program
of its own runs in a process of its own. The code before a move runs against the real Redis or ZooKeeper, and its faults are real, too: a test
shows each one that a page names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import PATIENCE_S, eventually
from guides import GUIDES, README, ROOT, assert_all_run, path_of, run_shown, shown, text_of
from stores import ZOOKEEPER, Proxy, end_servers, redis_address, server_port, zookeeper_hosts

import fencepost
from fencepost import EFFICIENCY, Client, FenceToken, fence
from fencepost.testing import Server

__all__ = ["end_servers", "redis_address", "zookeeper_hosts"]

PAGES = ("python.md", README, "moving/redis-py.md", "moving/kazoo.md")
#: The address in the pages.
SHOWN_ADDRESS = "fencepost://127.0.0.1:7420"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own for each test, because the pages use the same names."""
    with Server() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def other(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def at_the_shown_address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has the address that the pages show."""
    connect = fencepost.connect

    def connect_there(address: str, **settings: Any) -> Client:
        assert address == SHOWN_ADDRESS
        return connect(server.address, **settings)

    monkeypatch.setattr(fencepost, "connect", connect_there)


@pytest.fixture
def broken(server: Server) -> Callable[[str], None]:
    """An administrator breaks the lock on a name."""

    def breaks(name: str) -> None:
        server.run("break", name, "--yes", "--reason", "the test says so")

    return breaks


@pytest.fixture
def wallet(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store with a guard and two wallets of 500."""
    with closing(sqlite3.connect(tmp_path / "shop.db", timeout=PATIENCE_S)) as connection:
        fence.install(connection)
        with connection:
            connection.execute("CREATE TABLE wallet (id PRIMARY KEY, balance INTEGER NOT NULL)")
            connection.executemany("INSERT INTO wallet VALUES (?, 500)", [(7,), ("user_123",)])
        yield connection


def balance(connection: sqlite3.Connection, wallet: object = 7) -> int:
    (number,) = connection.execute("SELECT balance FROM wallet WHERE id = ?", [wallet]).fetchone()
    return int(number)


def is_free(client: Client, name: str, **terms: Any) -> bool:
    lock = client.lock(name, **terms).try_acquire()
    if lock is not None:
        lock.release()
    return lock is not None


def busy_with(client: Client, name: str, **terms: Any) -> Callable[..., None]:
    """A function that a page calls under the lock on this name. It checks that, and notes its arguments in ``calls``."""

    def called(*arguments: Any) -> None:
        assert client.lock(name, **terms).try_acquire() is None
        called.calls.append(arguments)  # type: ignore[attr-defined]

    called.calls = []  # type: ignore[attr-defined]
    return called


def calls_of(function: Callable[..., object]) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = function.calls  # type: ignore[attr-defined]
    return calls


def impatient(client: Client) -> Any:
    """A client that does not wait as long as the pages do."""
    return SimpleNamespace(lock=lambda *names, **terms: client.lock(*names, **{**terms, "wait": 0.05}))


def wait_for(task: Any) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(task, PATIENCE_S)

    asyncio.run(bounded())


# ---- The guide


def test_the_first_block_withdraws_under_the_lock(at_the_shown_address: None, other: Client) -> None:
    withdraw = busy_with(other, "wallet:7")
    run_shown("python.md", "first", withdraw=withdraw)["client"].close()
    ((amount, token),) = calls_of(withdraw)
    assert amount == 100 and type(token) is FenceToken
    assert is_free(other, "wallet:7")


def test_terms_are_those_of_the_lock(client: Client, other: Client) -> None:
    make_report = busy_with(other, "report/2026-11")
    lock = run_shown("python.md", "terms", client=client, fencepost=fencepost, make_report=make_report)["lock"]
    assert type(lock) is fencepost.Lock and len(calls_of(make_report)) == 1
    assert is_free(other, "report/2026-11")


def test_a_try_makes_the_report_or_says_who_does(
    client: Client, other: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    make_report = busy_with(other, "report/2026-11")
    run_shown("python.md", "try", client=client, make_report=make_report)
    assert len(calls_of(make_report)) == 1 and is_free(other, "report/2026-11")
    with other.lock("report/2026-11"):
        run_shown("python.md", "try", client=client, make_report=make_report)
    assert len(calls_of(make_report)) == 1
    assert capsys.readouterr().out == "another worker makes the report\n"


def test_several_names_are_granted_together(client: Client, other: Client) -> None:
    book = busy_with(other, "account:3")
    run_shown("python.md", "several", client=client, book=book)
    ((first, second),) = calls_of(book)
    assert type(first) is type(second) is FenceToken
    assert is_free(other, "account:3") and is_free(other, "account:7")


def test_an_update_lock_is_upgraded_when_it_has_to_write(client: Client, other: Client) -> None:
    write_price = busy_with(other, "price:3", mode=fencepost.SHARED)
    names = {"client": client, "fencepost": fencepost, "write_price": write_price}
    with other.lock("price:3", mode=fencepost.SHARED):
        run_shown("python.md", "upgrade", **names, read_price=lambda: 5)
        assert calls_of(write_price) == []
    run_shown("python.md", "upgrade", **names, read_price=lambda: -5)
    ((price, token),) = calls_of(write_price)
    assert price == 0 and type(token) is FenceToken
    assert is_free(other, "price:3")


def test_a_path_covers_what_is_below(client: Client, other: Client) -> None:
    with client.lock("/reports"):
        assert not is_free(other, "/reports/today") and is_free(other, "/reports-of-today")


def test_the_block_of_asyncio_runs(at_the_shown_address: None, other: Client) -> None:
    withdrawn: list[tuple[int, FenceToken]] = []

    async def withdraw(amount: int, token: FenceToken) -> None:
        assert await other.lock("wallet:7").try_acquire_async() is None
        withdrawn.append((amount, token))

    run_shown("python.md", "async", withdraw=withdraw)
    assert [amount for amount, _ in withdrawn] == [100] and is_free(other, "wallet:7")


def test_a_decorated_function_skips(client: Client, other: Client, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"client": client, "fencepost": fencepost}
    assert run_shown("python.md", "locked", **names)["make_report"](8) == "report 8"
    assert capsys.readouterr().out == ""
    with other.lock("report:7"):
        run_shown("python.md", "locked", **names)
    assert capsys.readouterr().out == "another worker makes report 7\n"


def test_a_decorated_function_runs_once(client: Client, other: Client) -> None:
    bill = run_shown("python.md", "once", client=client)["bill"]
    done = bill("2026-11")
    assert (done.ran, done.result) == (False, b"bills of 2026-11") and bill("2026-12").ran
    assert not other.job("billing", key="2026-11").run(lambda job: "again").ran


def test_a_semaphore_has_a_permit_for_each(client: Client, other: Client) -> None:
    uploads: list[int] = []

    def upload() -> None:
        held = [other.semaphore("uploads", limit=10).try_acquire() for _ in range(10)]
        taken = [permit for permit in held if permit is not None]
        uploads.append(len(taken))
        for permit in taken:
            permit.release()

    run_shown("python.md", "semaphore", client=client, upload=upload)
    assert uploads == [9]


def test_a_leader_leads_until_it_loses(client: Client, other: Client, broken: Callable[[str], None]) -> None:
    epochs: list[FenceToken] = []

    def schedule_next(epoch: FenceToken) -> None:
        epochs.append(epoch)
        leader = other.election("scheduler").leader()
        assert leader is None or (leader.value, leader.epoch) == (b"10.0.0.7:9000", epoch)
        if len(epochs) == 2:
            broken("scheduler")

    with pytest.raises(fencepost.LockLost):
        run_shown("python.md", "election", client=client, schedule_next=schedule_next)
    assert len(epochs) >= 2 and set(epochs) == {epochs[0]}


def test_a_job_is_billed_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    bills: list[tuple[str, FenceToken]] = []

    def send_bills(month: str, token: FenceToken) -> None:
        if not bills:
            bills.append((month, token))
            raise ConnectionError("no network")
        bills.append((month, token))

    names = {"client": client, "send_bills": send_bills}
    with pytest.raises(ConnectionError):
        run_shown("python.md", "job", **names)
    for _ in range(2):
        run_shown("python.md", "job", **names)
    assert capsys.readouterr().out == "billed now b'{\"bills\": 40}'\nbilled before b'{\"bills\": 40}'\n"
    assert [month for month, _ in bills] == ["2026-11", "2026-11"] and bills[0][1] < bills[1][1]


def test_a_name_is_explained(client: Client, other: Client, capsys: pytest.CaptureFixture[str]) -> None:
    with other.lock("wallet:7") as lock:
        run_shown("python.md", "explain", client=client)
        said = f"session {lock.session} holds it with token {lock.fence_token}\n0 requests wait\n"
    assert capsys.readouterr().out == said


def test_events_are_watched(client: Client, other: Client) -> None:
    # A watch shows that a session begins, whatever it holds.
    other.lock("before").acquire().release()
    heard: list[tuple[Any, ...]] = []

    class Enough(Exception):
        pass

    def hear(*words: Any) -> None:
        heard.append(words)
        if len(heard) == 4:
            raise Enough

    def watch() -> None:
        with pytest.raises(Enough):
            run_shown("python.md", "watch", client=client, print=hear)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    tokens = []
    # The watch begins with its first step, which the test cannot see: it locks until enough was heard.
    while watcher.is_alive():
        with other.lock("wallet:9") as lock:
            tokens.append(lock.fence_token)
        with other.lock("another name"):
            pass
    assert len(heard) == 4 and {kind for kind, _, _ in heard} == {"granted", "released"}
    assert all(names == ("wallet:9",) and token in tokens for _, names, token in heard)


def test_a_token_is_shown_to_the_store(client: Client, wallet: sqlite3.Connection, capsys: Any) -> None:
    run_shown("python.md", "token", client=client, connection=wallet)
    assert balance(wallet) == 400
    # A holder that was paused meanwhile has the older token.
    with pytest.raises(fence.StaleToken):
        run_shown("python.md", "token", client=paused_holder("wallet:7", FenceToken(1)), connection=newer(wallet))
    assert balance(wallet) == 400


def newer(connection: sqlite3.Connection) -> sqlite3.Connection:
    """A store that has seen a newer token for the wallets."""
    with connection:
        fence.write(connection, ("wallet:7", FenceToken(1_000)))
        fence.write(connection, ("wallet:user_123", FenceToken(1_000)))
    return connection


def paused_holder(name: str, token: FenceToken) -> Any:
    """The client of a program that was paused while it held the lock: as far as it knows, it still holds it."""

    @contextmanager
    def lock(asked: str, **terms: Any) -> Iterator[Any]:
        assert asked == name
        yield SimpleNamespace(names=(name,), fence_token=token)

    return SimpleNamespace(lock=lock)


def test_each_answer_has_its_own_branch(server: Server, client: Client, other: Client, broken: Any) -> None:
    def answer(client: Any, withdraw: Callable[..., object]) -> str:
        names = run_shown("python.md", "answers", client=client, fencepost=fencepost, withdraw=withdraw)
        return str(names.get("answer", "done"))

    def broken_in_the_middle(amount: int, token: FenceToken) -> None:
        broken("wallet:7")
        # The end of the block says what became of the lock.

    assert answer(client, lambda amount, token: None) == "done"
    with other.lock("wallet:7") as lock:
        busy = answer(impatient(client), lambda amount, token: None)
    assert busy.startswith("try again later") and str(lock.session)[:12] in busy
    assert answer(client, broken_in_the_middle).startswith("stopped in the middle: ")
    with fencepost.connect("fencepost://127.0.0.1:1", connect_timeout=0.1) as nowhere:
        assert answer(nowhere, lambda amount, token: None) == "try again in 1 s"

    def denied(amount: int, token: FenceToken) -> None:
        raise fencepost.Denied("you may not")

    assert answer(client, denied) == "this will not work: you may not"
    with server.client(call_timeout=1) as hasty:
        eventually("it is connected", lambda: answer(hasty, lambda amount, token: None) == "done")
        server.pause()
        try:
            assert answer(impatient(hasty), lambda amount, token: None).startswith("not known: ")
        finally:
            server.resume()


def test_the_tables_of_exceptions_are_complete() -> None:
    _, _, section = text_of("python.md").partition("\n## Three answers\n")
    section = section.partition("\n## ")[0]
    classes = [getattr(fencepost, name) for name in fencepost.__all__]
    kinds = {each.__name__ for each in classes if isinstance(each, type) and issubclass(each, fencepost.Error)}
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert named == kinds - {"Error"}
    refused = section.partition("The classes of `Refused`")[2]
    for name in re.findall(r"^\| `(\w+)` \|", refused, re.MULTILINE):
        assert issubclass(getattr(fencepost, name), fencepost.Refused)
    assert not issubclass(fencepost.Failed, fencepost.Refused)
    assert not issubclass(fencepost.OutcomeUnknown, (fencepost.Refused, fencepost.Failed))


def test_a_block_that_asks_stops_after_a_loss(client: Client, broken: Callable[[str], None]) -> None:
    stored: list[int] = []
    told: list[fencepost.LockLost] = []

    def run(store: Callable[[int, FenceToken], None]) -> None:
        run_shown("python.md", "check", client=client, rows=range(5), store=store, tell_the_operator=told.append)

    run(lambda row, token: stored.append(row))
    assert (stored, told) == ([0, 1, 2, 3, 4], [])

    def broken_after_two(row: int, token: FenceToken) -> None:
        stored.append(row)
        if row == 1:
            broken("import")
            eventually("the operator hears of it", lambda: told)

    stored.clear()
    with pytest.raises(fencepost.LockLost):
        run(broken_after_two)
    assert stored == [0, 1] and [loss.names for loss in told] == [("import",)]


def test_on_lost_is_called_although_the_block_ends_at_once(client: Client) -> None:
    """``on_lost``: "a function that is called once with the LockLost"."""
    told: list[fencepost.LockLost] = []
    with pytest.raises(fencepost.LockLost), client.lock("import", max_hold=0.1, on_lost=told.append) as lock:
        while lock.is_held:
            pass
    eventually("the function is called", lambda: told)
    assert len(told) == 1


# ---- The guide: programs


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "FENCEPOST_SERVER": server.address, "PYTHONUNBUFFERED": "1"}


def start(file: Path, code: str, server: Server) -> subprocess.Popen[str]:
    """Starts a program, in a session of its own, so that its children can be killed with it."""
    file.write_text(code, encoding="utf-8")
    command, pipe = [sys.executable, str(file)], subprocess.PIPE
    return subprocess.Popen(command, env=environment(server), stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def run_program(page: str, name: str, server: Server, file: Path, after: str = "") -> subprocess.Popen[str]:
    """Starts a program that has the code of a page, and perhaps other code after it."""
    return start(file, f"{shown(page, name)}\n{after}\n", server)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kills the program at the end, with its children."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_children_of_a_fork_have_locks_of_their_own(server: Server, tmp_path: Path, other: Client) -> None:
    with ended(run_program("python.md", "fork", server, tmp_path / "program.py")) as program:
        out, err = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0, err
    said = re.findall(r"worker (\d) has token (\d+)", out)
    assert sorted(worker for worker, _ in said) == ["0", "1", "2"] and len({token for _, token in said}) == 3
    assert is_free(other, "counter")


HOLDS = """
import fencepost, time
held = fencepost.connect(ttl=3600).lock("counter").acquire()
print("held", flush=True)
time.sleep(3600)
"""


def test_a_handler_of_sigterm_gives_the_locks_back(server: Server, tmp_path: Path, other: Client) -> None:
    with ended(run_program("python.md", "sigterm", server, tmp_path / "program.py", HOLDS)) as program:
        assert program.stdout is not None and program.stdout.readline() == "held\n"
        program.terminate()
        assert program.wait(PATIENCE_S) == 0
        assert is_free(other, "counter")

    # Without it, the program is killed.
    with ended(start(tmp_path / "plain.py", HOLDS, server)) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
        assert not is_free(other, "counter")


def test_what_the_library_logs_is_seen(server: Server, tmp_path: Path, broken: Callable[[str], None]) -> None:
    holds = 'import fencepost\nlock = fencepost.connect().lock("counter").acquire()\nprint("held", flush=True)\nlock.lost.wait()'
    with ended(run_program("python.md", "logging", server, tmp_path / "program.py", holds)) as program:
        assert program.stdout is not None and program.stdout.readline() == "held\n"
        broken("counter")
        assert program.stderr is not None
        line = program.stderr.readline()
        assert line.startswith("WARNING:fencepost:locks are lost") and "counter" in line
        assert program.wait(PATIENCE_S) == 0


def test_the_fixtures_are_those_of_the_plugin(client: Client, server: Server, tmp_path: Path) -> None:
    run_shown("python.md", "fixtures")["test_a_second_worker_skips_the_report"](client, server)
    # It fails if both workers have the lock: here the other one locks another name.
    elsewhere = SimpleNamespace(lock=lambda name: client.lock(f"{name}, elsewhere"))
    with pytest.raises(AssertionError):
        run_shown("python.md", "fixtures")["test_a_second_worker_skips_the_report"](
            client, SimpleNamespace(client=lambda: contextlib.nullcontext(elsewhere))
        )


def test_a_bad_minute_is_made() -> None:
    names = run_shown("python.md", "bad-minute")
    assert "a test" in str(names["lock"].lost.reason)


def test_another_system_needs_another_address_only(redis_address: str, server: Server) -> None:
    for address in (redis_address, server.address):
        with fencepost.connect(address) as other:
            make_thumbnail = busy_with(other, "thumbnails/42", tier=EFFICIENCY)
            names = {"fencepost": fencepost, "LOCKS": address, "make_thumbnail": make_thumbnail}
            run_shown("python.md", "other-systems", **names)["client"].close()
            assert calls_of(make_thumbnail) == [(42,)] and is_free(other, "thumbnails/42", tier=EFFICIENCY)


# ---- The README of the package


def test_the_first_block_of_the_readme_withdraws_under_the_lock(at_the_shown_address: None, other: Client) -> None:
    withdraw = busy_with(other, "wallet:user_123")
    run_shown("README.md", "first", withdraw=withdraw)["client"].close()
    ((amount, token),) = calls_of(withdraw)
    assert amount == 100 and type(token) is FenceToken and is_free(other, "wallet:user_123")


def test_the_token_of_the_readme_is_shown_to_the_store(client: Client, wallet: sqlite3.Connection) -> None:
    run_shown("README.md", "token", client=client, connection=wallet)
    assert balance(wallet, "user_123") == 400
    late = paused_holder("wallet:user_123", FenceToken(1))
    with pytest.raises(fence.StaleToken):
        run_shown("README.md", "token", client=late, connection=newer(wallet))
    assert balance(wallet, "user_123") == 400


# ---- Moving from redis-py


@pytest.fixture
def r1(redis_address: str) -> Iterator[Any]:
    """A connection of redis-py to an empty Redis."""
    import redis

    with redis.Redis.from_url(redis_address) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def over_redis(redis_address: str) -> Iterator[Client]:
    """The client of step 1."""
    client = run_shown("moving/redis-py.md", "connect", LOCKS=redis_address)["client"]
    with client:
        yield client


@pytest.fixture(params=["redis", "fencepost"])
def moved(request: pytest.FixtureRequest, redis_address: str, server: Server) -> Iterator[tuple[Client, Client]]:
    """Two clients of step 1, or of step 2."""
    address = redis_address if request.param == "redis" else server.address
    with fencepost.connect(address) as client, fencepost.connect(address) as other:
        yield client, other


def expire(r1: Any, key: str) -> None:
    """The timeout of a lock of redis-py is over."""
    r1.pexpire(key, 1)
    eventually("the lock has ended", lambda: not r1.exists(key))


def test_a_report_before_and_after(r1: Any, moved: tuple[Client, Client], capsys: pytest.CaptureFixture[str]) -> None:
    from redis.exceptions import LockNotOwnedError

    made: list[str] = []
    before = {"r1": r1, "make_report": lambda: made.append("before")}
    run_shown("moving/redis-py.md", "report-before", **before)
    assert made == ["before"] and not r1.exists("report/today")
    # The timeout ends the lock of a program that still works, and it learns of that when it is done.
    long = {"r1": r1, "make_report": lambda: expire(r1, "report/today")}
    with pytest.raises(LockNotOwnedError):
        run_shown("moving/redis-py.md", "report-before", **long)

    client, other = moved
    make_report = busy_with(other, "report/today", tier=EFFICIENCY)
    after = {"client": client, "fencepost": fencepost, "make_report": make_report}
    run_shown("moving/redis-py.md", "report-after", **after)
    assert len(calls_of(make_report)) == 1 and is_free(other, "report/today", tier=EFFICIENCY)
    assert capsys.readouterr().out == ""
    with other.lock("report/today", tier=EFFICIENCY):
        run_shown("moving/redis-py.md", "report-after", **{**after, "client": impatient(client)})
    assert capsys.readouterr().out == "another worker makes the report\n" and len(calls_of(make_report)) == 1


def test_the_library_renews_a_lock_in_redis(r1: Any, redis_address: str) -> None:
    with fencepost.connect(redis_address, ttl=5) as client:
        lock = client.lock("renewed", tier=EFFICIENCY).acquire()
        left_ms = r1.pttl("fencepost:lock:renewed")

        def is_renewed() -> bool:
            nonlocal lock, left_ms
            if lock.lost:  # The machine stood still.
                lock = client.lock("renewed", tier=EFFICIENCY).acquire()
                left_ms = r1.pttl("fencepost:lock:renewed")
            before, left_ms = left_ms, r1.pttl("fencepost:lock:renewed")
            return bool(left_ms > before)

        eventually("the time of the lock is longer than before", is_renewed)


def test_others_skip_before_and_after(r1: Any, moved: tuple[Client, Client]) -> None:
    made: list[int] = []
    before = {"r1": r1, "make_thumbnail": made.append}
    run_shown("moving/redis-py.md", "skip-before", **before)
    with r1.lock("thumbnails/42", timeout=60):
        run_shown("moving/redis-py.md", "skip-before", **before)
    assert made == [42]

    client, other = moved
    after = {"client": client, "fencepost": fencepost, "make_thumbnail": made.append}
    run_shown("moving/redis-py.md", "skip-after", **after)
    with other.lock("thumbnails/42", tier=EFFICIENCY):
        run_shown("moving/redis-py.md", "skip-after", **after)
    assert made == [42, 42]


def test_long_work_before_and_after(r1: Any, over_redis: Client) -> None:
    from redis.exceptions import LockNotOwnedError

    stored: list[int] = []
    run_shown("moving/redis-py.md", "long-before", r1=r1, rows=range(3), store=stored.append)
    assert stored == [0, 1, 2]

    def slow(row: int) -> None:
        stored.append(row)
        expire(r1, "import")

    stored.clear()
    with pytest.raises(LockNotOwnedError):
        run_shown("moving/redis-py.md", "long-before", r1=r1, rows=range(3), store=slow)
    assert stored == [0]

    names = {"client": over_redis, "fencepost": fencepost, "rows": range(3)}
    stored.clear()
    run_shown("moving/redis-py.md", "long-after", **names, store=stored.append)
    assert stored == [0, 1, 2] and not r1.exists("fencepost:lock:import")


def test_long_work_after_the_move_stops_at_a_loss(r1: Any, over_redis: Client) -> None:
    stored: list[int] = []
    told: list[fencepost.LockLost] = []

    def lock(name: str, **terms: Any) -> Any:
        # A shorter TTL, so that the next renewal comes soon.
        return over_redis.lock(name, **{**terms, "ttl": 3}, on_lost=told.append)

    def lose(row: int) -> None:
        stored.append(row)
        r1.delete("fencepost:lock:import")
        eventually("the loss is known", lambda: told)

    names = {"client": SimpleNamespace(lock=lock), "fencepost": fencepost, "rows": range(3)}
    with pytest.raises(fencepost.LockLost):
        run_shown("moving/redis-py.md", "long-after", **names, store=lose)
    assert stored == [0]


def test_another_thread_releases_before_and_after(r1: Any, moved: tuple[Client, Client]) -> None:
    raised: list[BaseException] = []

    def finish_upload(lock: Any) -> None:
        try:
            lock.release()
        except BaseException as error:
            raised.append(error)

    names = {"threading": threading, "finish_upload": finish_upload}
    run_shown("moving/redis-py.md", "thread-before", r1=r1, **names)
    eventually("the other thread has released", lambda: not r1.exists("upload"))
    assert raised == []
    # With the default, another thread has no token.
    lock = r1.lock("upload", timeout=60)
    lock.acquire()
    thread = threading.Thread(target=finish_upload, args=[lock])
    thread.start()
    thread.join()
    assert [type(error) for error in raised] == [AttributeError] and r1.exists("upload")

    client, other = moved
    run_shown("moving/redis-py.md", "thread-after", client=client, fencepost=fencepost, **names)
    eventually("the other thread has released", lambda: is_free(other, "upload", tier=EFFICIENCY))
    assert len(raised) == 1


def test_tasks_before_and_after(redis_address: str, r1: Any, moved: tuple[Client, Client]) -> None:
    from redis.asyncio import Redis

    held: list[bool] = []
    client, other = moved

    async def main() -> None:
        async def report_before() -> None:
            held.append(bool(r1.exists("report/today")))

        async def report_after() -> None:
            held.append(await other.lock("report/today", tier=EFFICIENCY).try_acquire_async() is None)

        async with Redis.from_url(redis_address) as connection:
            await run_shown("moving/redis-py.md", "async-before", r1=connection, make_report=report_before)["shown"]()
        names = {"client": client, "fencepost": fencepost, "make_report": report_after}
        await run_shown("moving/redis-py.md", "async-after", **names)["shown"]()

    wait_for(main())
    assert held == [True, True] and not r1.exists("report/today")


def test_a_late_holder_of_redis_py_writes_and_one_with_a_token_does_not(
    r1: Any, over_redis: Client, client: Client, wallet: sqlite3.Connection
) -> None:
    from redis.exceptions import LockNotOwnedError

    accounts = {7: 500}

    def work(lateness: Callable[[], None], locks: Any) -> None:
        def read_balance(number: int) -> int:
            read = accounts[number]
            lateness()
            return read

        run_shown("moving/redis-py.md", "late-before", r1=locks, read_balance=read_balance, write_balance=accounts.__setitem__)

    def another_worker() -> None:
        expire(r1, "wallet:7")
        work(lambda: None, r1)

    with pytest.raises(LockNotOwnedError):
        work(another_worker, r1)
    assert accounts == {7: 400}, "two workers took 100 each, and one of them was overwritten"

    # Through the library it is the same, whether or not the next holder is still there when the block ends.
    for is_there in (False, True):
        with pytest.raises(fencepost.LockLost), over_redis.lock("wallet:7", tier=EFFICIENCY):
            read = accounts[7]
            r1.delete("fencepost:lock:wallet:7")
            next_holder = over_redis.lock("wallet:7", tier=EFFICIENCY).acquire()
            accounts[7] = accounts[7] - 100
            if not is_there:
                next_holder.release()
            accounts[7] = read - 100
        if is_there:
            next_holder.release()
    assert accounts == {7: 200}, "four withdrawals, and two of them count"

    def write_balance(number: int, new: int) -> None:
        wallet.execute("UPDATE wallet SET balance = ? WHERE id = ?", [new, number])

    def work_with_tokens(locks: Any, lateness: Callable[[], None]) -> None:
        def write_late(connection: Any, lock: Any) -> None:
            lateness()
            fence.write(connection, lock)

        guard = SimpleNamespace(claim=fence.claim, write=write_late)
        names = {"connection": wallet, "fence": guard, "write_balance": write_balance}
        run_shown("moving/redis-py.md", "late-after", client=locks, **names, read_balance=lambda number: balance(wallet, number))

    # The first holder has claimed and read when it is paused. Another one does the whole work meanwhile.
    with client.lock("wallet:7") as lock:
        late = paused_holder("wallet:7", lock.fence_token)
    with pytest.raises(fence.StaleToken):
        work_with_tokens(late, lambda: work_with_tokens(client, lambda: None))
    assert balance(wallet) == 400
    work_with_tokens(client, lambda: None)
    assert balance(wallet) == 300
    # A lock in Redis has no token for it.
    with pytest.raises(fencepost.Unsupported):
        work_with_tokens(over_redis, lambda: None)


def test_old_and_new_workers_of_redis_exclude_each_other_while_they_move(
    r1: Any, moved: tuple[Client, Client]
) -> None:
    client, other = moved
    seen: list[str] = []

    def make_report() -> None:
        # A worker of the old release, and one of the release after this one.
        assert not r1.lock("report/today", timeout=60).acquire(blocking=False)
        assert not is_free(other, "report/today", tier=EFFICIENCY)
        seen.append("both are held")

    run_shown("moving/redis-py.md", "hold-both", r1=r1, client=client, fencepost=fencepost, make_report=make_report)
    assert seen == ["both are held"]
    # Without it they do not exclude each other, also in the same Redis.
    with r1.lock("report/today", timeout=60):
        assert is_free(other, "report/today", tier=EFFICIENCY)


def test_locks_with_the_same_key_exclude_each_other(r1: Any, over_redis: Client) -> None:
    lock = run_shown("moving/redis-py.md", "same-key", r1=r1)["lock"]
    with lock:
        assert not is_free(over_redis, "report/today", tier=EFFICIENCY)
    with over_redis.lock("report/today", tier=EFFICIENCY) as held:
        assert not lock.acquire(blocking=False) and held.is_held
    assert lock.acquire(blocking=False)
    lock.release()


def test_what_the_page_says_about_redis_py(r1: Any) -> None:
    from redis.exceptions import LockError, LockNotOwnedError

    # No timeout: the lock of a program that died is never free again.
    r1.lock("for ever").acquire()
    assert r1.ttl("for ever") == -1
    # A busy lock and a wrong call are one class. A result that is not looked at hides a lock that is busy.
    with pytest.raises(LockError) as busy, r1.lock("for ever", blocking_timeout=0.01):
        pass
    with pytest.raises(LockError) as wrong:
        r1.lock("wrong").release()
    assert type(busy.value) is type(wrong.value) is LockError
    assert r1.lock("for ever").acquire(blocking=False) is False
    with r1.lock("token", timeout=60) as lock:
        assert uuid.UUID(lock.local.token.decode())
    assert issubclass(LockNotOwnedError, LockError)


def test_the_words_of_redis_py_are_refused(client: Client) -> None:
    (line,) = re.findall(r"^(.*) are refused, and the error says what to write instead\.$", text_of("moving/redis-py.md"), re.MULTILINE)
    words = re.findall(r"`(\w+)`", line)
    assert len(words) == 6
    for word in words:
        argument: dict[str, Any] = {word: 1}
        with pytest.raises(TypeError, match=f"has no argument `{word}`: "):
            client.lock("report/today", **argument)


# ---- Moving from kazoo


@pytest.fixture
def zookeeper(zookeeper_hosts: str) -> Iterator[Any]:
    """A started client of kazoo."""
    client = run_shown("moving/kazoo.md", "connect-before", HOSTS=zookeeper_hosts)["zookeeper"]
    yield client
    client.stop()
    client.close()


@pytest.fixture
def over_zookeeper(zookeeper_hosts: str) -> Iterator[Client]:
    """The client of step 1."""
    client = run_shown("moving/kazoo.md", "connect-after", LOCKS=f"zookeeper://{zookeeper_hosts}/app")["client"]
    with client:
        yield client


@pytest.fixture
def second_zookeeper(zookeeper_hosts: str) -> Iterator[Any]:
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper_hosts)
    client.start(PATIENCE_S)
    yield client
    client.stop()
    client.close()


def expire_session(zookeeper: Any, hosts: str) -> None:
    """Ends the session of a client of kazoo, as a long pause does, and waits until it has a new one."""
    from kazoo.client import KazooClient

    before = zookeeper.client_id
    twin = KazooClient(hosts, client_id=before)
    twin.start(PATIENCE_S)
    twin.stop()
    twin.close()
    eventually("the session is another one", lambda: zookeeper.connected and zookeeper.client_id not in (None, before))


def test_a_lock_of_kazoo_ends_in_silence(zookeeper: Any, second_zookeeper: Any, zookeeper_hosts: str) -> None:
    """The three gaps of the code before. The third one is shown with a server that is gone."""
    from kazoo.protocol.states import KazooState

    stored: list[tuple[int, int]] = []
    names = {"zookeeper": zookeeper, "threading": threading, "KazooState": KazooState}

    def store(row: int, token: int) -> None:
        stored.append((row, token))

    run_shown("moving/kazoo.md", "lock-before", **names, rows=range(3), store=store)
    assert [row for row, _ in stored] == [0, 1, 2] and len({token for _, token in stored}) == 1

    def lose(row: int, token: int) -> None:
        stored.append((row, token))
        if row == 0:
            expire_session(zookeeper, zookeeper_hosts)
            second = second_zookeeper.Lock("/locks/import")
            assert second.acquire(timeout=PATIENCE_S)

    stored.clear()
    held = run_shown("moving/kazoo.md", "lock-before", **names, rows=range(3), store=lose)
    # Another program has the lock, the connection is back, and no line of the code noticed.
    assert [row for row, _ in stored] == [0, 1, 2] and not held["in_doubt"].is_set()


def test_is_acquired_stays_true_and_suspended_stays_suspended(zookeeper_hosts: str) -> None:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import KazooState

    proxy = Proxy(server_port(ZOOKEEPER))
    cut_off = KazooClient(f"127.0.0.1:{proxy.port}", timeout=3)
    second = KazooClient(zookeeper_hosts)
    for client in (cut_off, second):
        client.start(PATIENCE_S)
    try:
        lock = cut_off.Lock("/locks/cut-off")
        lock.acquire()
        proxy.cut()
        # ZooKeeper ends the session after its timeout, and the next client has the lock.
        assert second.Lock("/locks/cut-off").acquire(timeout=PATIENCE_S)
        assert lock.is_acquired and cut_off.state == KazooState.SUSPENDED
    finally:
        for client in (cut_off, second):
            client.stop()
            client.close()


def test_a_lock_after_the_move_is_not_lost_in_silence(
    over_zookeeper: Client, zookeeper: Any, zookeeper_hosts: str, second_zookeeper: Any
) -> None:
    stored: list[tuple[int, FenceToken]] = []

    def run(client: Client, store: Callable[[int, FenceToken], None]) -> None:
        run_shown("moving/kazoo.md", "lock-after", client=client, rows=range(3), store=store)

    run(over_zookeeper, lambda row, token: stored.append((row, token)))
    assert [row for row, _ in stored] == [0, 1, 2]

    def lose(row: int, token: FenceToken) -> None:
        stored.append((row, token))
        second_zookeeper.delete("/app/fencepost-locks/import", recursive=True)
        with fencepost.connect(f"zookeeper://{zookeeper_hosts}/app") as second:
            second.lock("import", wait=PATIENCE_S).acquire()
            eventually("the holder knows", lambda: not second_is_held(over_zookeeper))

    def second_is_held(client: Client) -> bool:
        return client.lock("import").try_acquire() is not None

    stored.clear()
    with pytest.raises(fencepost.LockLost):
        run(over_zookeeper, lose)
    assert [row for row, _ in stored] == [0]


def test_the_token_of_kazoo_and_of_the_library_is_one_number(zookeeper: Any, over_zookeeper: Client) -> None:
    tokens: list[int] = []
    for round in range(2):
        lock = zookeeper.Lock("/locks/import")
        with lock:
            _, node = zookeeper.get(f"{lock.path}/{lock.node}")
            tokens.append(node.czxid)
        with over_zookeeper.lock("import") as held:
            tokens.append(held.fence_token)
    assert tokens == sorted(set(tokens))


def test_readers_and_writers_before_and_after(
    zookeeper: Any, second_zookeeper: Any, over_zookeeper: Client, zookeeper_hosts: str, server: Server
) -> None:
    seen: list[str] = []
    readers = {"second": second_zookeeper.ReadLock("/locks/price:3"), "writer": second_zookeeper.WriteLock("/locks/price:3")}

    def show_before() -> None:
        assert readers["second"].acquire(timeout=PATIENCE_S)
        readers["second"].release()
        assert not readers["writer"].acquire(blocking=False)
        seen.append("read")

    def write_before() -> None:
        assert not readers["second"].acquire(blocking=False)
        seen.append("written")

    run_shown("moving/kazoo.md", "readers-before", zookeeper=zookeeper, show_price=show_before, write_price=write_before)
    assert seen == ["read", "written"]

    for address in (f"zookeeper://{zookeeper_hosts}/app", server.address):
        with fencepost.connect(address) as client, fencepost.connect(address) as other:

            def show(other: Client = other) -> None:
                assert is_free(other, "price:3", mode=fencepost.SHARED) and not is_free(other, "price:3")
                seen.append("read")

            def write(other: Client = other) -> None:
                assert not is_free(other, "price:3", mode=fencepost.SHARED)
                seen.append("written")

            run_shown("moving/kazoo.md", "readers-after", client=client, fencepost=fencepost, show_price=show, write_price=write)
    assert seen == ["read", "written"] * 3


def test_semaphores_before_and_after(zookeeper: Any, second_zookeeper: Any, client: Client, other: Client) -> None:
    taken: list[int] = []

    def upload_before() -> None:
        second = [second_zookeeper.Semaphore("/semaphores/uploads", max_leases=10) for _ in range(10)]
        permits = [permit for permit in second if permit.acquire(blocking=False)]
        taken.append(len(permits))
        for permit in permits:
            permit.release()

    def upload() -> None:
        asked = [other.semaphore("uploads", limit=10).try_acquire() for _ in range(10)]
        permits = [permit for permit in asked if permit is not None]
        taken.append(len(permits))
        for permit in permits:
            permit.release()

    run_shown("moving/kazoo.md", "semaphore-before", zookeeper=zookeeper, upload=upload_before)
    run_shown("moving/kazoo.md", "semaphore-after", client=client, upload=upload)
    assert taken == [9, 9]


def test_elections_before_and_after(
    zookeeper: Any, second_zookeeper: Any, client: Client, other: Client, broken: Callable[[str], None]
) -> None:
    stopping = threading.Event()
    epochs: list[FenceToken] = []

    def schedule_before() -> None:
        contenders = second_zookeeper.Election("/elections/scheduler").contenders()
        assert contenders == ["10.0.0.7:9000"]
        stopping.set()

    run_shown("moving/kazoo.md", "election-before", zookeeper=zookeeper, stopping=stopping, schedule_next=schedule_before)
    assert stopping.is_set()

    def schedule(epoch: FenceToken) -> None:
        leader = other.election("scheduler").leader()
        assert leader is not None and (leader.value, leader.epoch) == (b"10.0.0.7:9000", epoch)
        epochs.append(epoch)
        stopping.set()

    stopping.clear()
    run_shown("moving/kazoo.md", "election-after", client=client, stopping=stopping, schedule_next=schedule)
    assert len(epochs) == 1 and other.election("scheduler").leader() is None

    def lose(epoch: FenceToken) -> None:
        epochs.append(epoch)
        if len(epochs) == 2:
            broken("scheduler")

    stopping.clear()
    with pytest.raises(fencepost.LockLost):
        run_shown("moving/kazoo.md", "election-after", client=client, stopping=stopping, schedule_next=lose)
    assert epochs == sorted(epochs)


def test_old_and_new_programs_of_zookeeper_exclude_each_other_while_they_move(
    zookeeper: Any, second_zookeeper: Any, zookeeper_hosts: str, server: Server
) -> None:
    for address in (f"zookeeper://{zookeeper_hosts}/app", server.address):
        with fencepost.connect(address) as client, fencepost.connect(address) as other:
            seen: list[str] = []

            def make_report(other: Client = other, seen: list[str] = seen) -> None:
                assert not second_zookeeper.Lock("/locks/report").acquire(blocking=False)
                assert not is_free(other, "report", tier=EFFICIENCY)
                seen.append("both are held")

            names = {"zookeeper": zookeeper, "client": client, "fencepost": fencepost, "make_report": make_report}
            run_shown("moving/kazoo.md", "hold-both", **names)
            assert seen == ["both are held"]
            # Without it they do not exclude each other, also in the same ensemble.
            with zookeeper.Lock("/locks/report"):
                assert is_free(other, "report", tier=EFFICIENCY)


# ---- The pages


def test_every_python_block_of_the_pages_runs_here() -> None:
    assert_all_run(PAGES, Path(__file__), least=50)


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    links = 0
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
            file, _, heading = link.removeprefix("https://github.com/fencepost/fencepost/blob/main/").partition("#")
            if file.startswith("https://"):
                continue
            links += 1
            base = path_of(page).parent if "://" not in link else ROOT
            target = (base / file).resolve() if file else path_of(page)
            assert target.exists(), f"{page}: {link}"
            if heading:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
                assert heading in anchors, f"{page}: {link}"
    assert links >= 25


def test_the_pages_about_moving_are_linked() -> None:
    for page in ("moving.md", "moving/redlock.md", "moving/zookeeper.md"):
        text = (GUIDES / page).read_text(encoding="utf-8")
        assert "redis-py.md" in text or "kazoo.md" in text, page
