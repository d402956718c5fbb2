"""The same locks over Redis, Redlock, etcd, ZooKeeper and Postgres, each with its real server.

It shows three things for every system: a lock excludes other clients and is lost when its system says so, what the system does not promise is
refused before it is sent, and the table of docs/guides/python.md says neither more nor less than what happens.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import PATIENCE_S, eventually
from guides import text_of
from stores import ETCD, POSTGRES, REDIS, ZOOKEEPER, Kind, Proxy, driver, end_servers, missing, server_port, skip

import fencepost
from fencepost import EFFICIENCY, SHARED, UPDATE, Client

__all__ = ["end_servers"]

#: How long a lock outlives its client where a test waits for its end. Long enough for a renewal on a busy machine.
SHORT_S = 2.0


@dataclass(frozen=True)
class System:
    """A lock system: its address, and what a test can do to it."""

    #: As the columns of the guide call it.
    name: str
    kind: Kind
    #: With ``{}`` for ``host:port``, several of them separated by commas.
    address: str
    #: Takes the lock on this name away, at the server and behind the back of the library.
    take_away: Callable[[System, str], None] = field(repr=False)
    servers: int = 1
    has_tokens: bool = True
    shares: bool = True
    has_own_ttl: bool = True
    #: Whether a holder knows how long its lock is certainly held, as docs/backends.md says.
    knows_deadline: bool = True

    @property
    def ports(self) -> list[int]:
        return [server_port(self.kind, number) for number in range(self.servers)]

    @property
    def terms(self) -> dict[str, Any]:
        """The terms of the best lock that it promises."""
        return {} if self.has_tokens else {"tier": EFFICIENCY}

    def at(self, ports: list[int]) -> str:
        return self.address.format(",".join(f"127.0.0.1:{port}" for port in ports))


def delete_keys(system: System, name: str) -> None:
    import redis

    for port in system.ports:
        with redis.Redis(port=port) as connection:
            connection.delete(f"fencepost:lock:{name}")


def delete_in_etcd(system: System, name: str) -> None:
    """Deletes the keys of the contenders, over the gateway of etcd for JSON."""
    prefix = f"fencepost/lock/{name}"
    key, end = (base64.b64encode(text.encode()).decode() for text in (prefix, prefix + "\x7f"))
    body = json.dumps({"key": key, "range_end": end}).encode()
    urllib.request.urlopen(f"http://127.0.0.1:{system.ports[0]}/v3/kv/deleterange", body, timeout=60).close()


def delete_in_zookeeper(system: System, name: str) -> None:
    from kazoo.client import KazooClient

    zookeeper = KazooClient(f"127.0.0.1:{system.ports[0]}")
    zookeeper.start(timeout=60)
    try:
        zookeeper.delete(f"/app/fencepost-locks/{name}", recursive=True)
    finally:
        zookeeper.stop()
        zookeeper.close()


def in_postgres(system: System, statement: str, *values: Any) -> None:
    import psycopg

    with psycopg.connect(f"postgresql://postgres@127.0.0.1:{system.ports[0]}/postgres", autocommit=True) as connection:
        connection.execute(statement, values)


def clear_row(system: System, name: str) -> None:
    in_postgres(system, "UPDATE fencepost_lock.locks SET expires_at = '-infinity', holder = NULL WHERE name = %s", name)


def end_connections(system: System, name: str) -> None:
    """Ends the connections of the library, which hold its locks. No other test runs at the same time."""
    in_postgres(system, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencepost'")


SYSTEMS = [
    System("redis", REDIS, "redis://{}/", delete_keys, has_tokens=False, shares=False),
    System("redlock", REDIS, "redlock://{}", delete_keys, servers=3, has_tokens=False, shares=False),
    System("etcd", ETCD, "etcd://{}", delete_in_etcd),
    System("zookeeper", ZOOKEEPER, "zookeeper://{}/app", delete_in_zookeeper, has_own_ttl=False),
    System("postgres+table", POSTGRES, "postgres+table://postgres@{}/postgres", clear_row, shares=False),
    System(
        "postgres+advisory", POSTGRES, "postgres+advisory://postgres@{}/postgres", end_connections, knows_deadline=False
    ),
    System("postgres+row", POSTGRES, "postgres+row://postgres@{}/postgres", end_connections, knows_deadline=False),
]
MODULES = {REDIS.programs: "redis", ZOOKEEPER.programs: "kazoo.client", POSTGRES.programs: "psycopg"}


@pytest.fixture(params=SYSTEMS, ids=lambda system: system.name)
def system(request: pytest.FixtureRequest) -> System:
    chosen: System = request.param
    if reason := missing(chosen.kind):
        skip(request, reason)
    if module := MODULES.get(chosen.kind.programs):
        driver(request, module, module.partition(".")[0])
    return chosen


@pytest.fixture
def clients(system: System) -> Iterator[Callable[..., Client]]:
    """Makes clients of the system. They are closed at the end."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(fencepost.connect(system.at(system.ports), **settings))


@pytest.fixture
def client(clients: Callable[..., Client]) -> Client:
    return clients()


@pytest.fixture
def other(clients: Callable[..., Client]) -> Client:
    return clients()


@pytest.fixture
def name(name: str) -> str:
    """A name without a character that a system would escape."""
    return f"wallet:{name.replace('/', '-')}"


def nothing_left(client: Client, system: System, name: str) -> None:
    """The lock is free, at once or soon: a request that was given up is undone in the background."""

    def taken() -> bool:
        lock = client.lock(name, **system.terms).try_acquire()
        if lock is not None:
            lock.release()
        return lock is not None

    eventually(f"{name} is free", taken)


# ---- What every system does


def test_a_block_excludes_other_clients_and_gives_the_lock_back(
    system: System, client: Client, other: Client, name: str
) -> None:
    with client.lock(name, wait=5, **system.terms) as lock:
        assert lock.is_held and not lock.lost and lock.remaining > 0
        assert (lock.name, lock.names, lock.session, lock.grant) == (name, (name,), None, None)
        lock.check()
        assert other.lock(name, **system.terms).try_acquire() is None
        assert client.lock(name, **system.terms).try_acquire() is None
        with other.lock(f"{name}-b", wait=0, **system.terms):
            pass
    assert not lock.is_held and not lock.lost
    with pytest.raises(fencepost.AlreadyReleased):
        lock.release()
    with other.lock(name, wait=0, **system.terms):
        pass


def test_a_busy_lock_and_a_wait_that_is_over(system: System, client: Client, other: Client, name: str) -> None:
    with client.lock(name, **system.terms):
        with pytest.raises(fencepost.LockBusy, match="is busy") as busy:
            other.lock(name, wait=0, **system.terms).acquire()
        assert busy.value.names == [name]
        with pytest.raises(fencepost.LockTimeout) as over:
            other.lock(name, wait=0.1, **system.terms).acquire()
        assert over.value.names == [name] and isinstance(over.value, TimeoutError)
    nothing_left(client, system, name)


def test_waiters_get_the_lock_one_at_a_time(system: System, client: Client, other: Client, name: str) -> None:
    inside, worst, done = [0], [0], []

    def work(client: Client) -> None:
        for _ in range(3):
            with client.lock(name, wait=PATIENCE_S, **system.terms):
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                time.sleep(0)
                inside[0] -= 1
        done.append(client)

    threads = [threading.Thread(target=work, args=[each]) for each in (client, other, client, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), worst) == (4, [1])


def test_a_client_that_is_closed_gives_its_locks_back(system: System, client: Client, other: Client, name: str) -> None:
    lock = client.lock(name, **system.terms).acquire()
    client.close()
    assert not lock.is_held
    with other.lock(name, wait=0, **system.terms):
        pass
    with pytest.raises(fencepost.Failed, match="the client is closed"):
        client.lock(name, **system.terms).acquire()


def test_decorated_functions_skip(system: System, client: Client, other: Client, name: str) -> None:
    @client.locked(name + "-{id}", on_busy="skip", **system.terms)
    def report(id: int) -> str:
        return f"report {id}"

    assert report(7) == "report 7"
    with other.lock(f"{name}-7", **system.terms):
        assert report(7) is fencepost.SKIPPED


def test_tasks_hold_and_wait(system: System, client: Client, other: Client, name: str) -> None:
    async def main() -> None:
        async with client.lock(name, **system.terms) as lock:
            assert lock.is_held
            assert await other.lock(name, **system.terms).try_acquire_async() is None
            with pytest.raises(fencepost.LockTimeout):
                await other.lock(name, wait=0.05, **system.terms)
            waiter = asyncio.create_task(other.lock(name, wait=None, **system.terms).acquire_async())
            cancelled = asyncio.create_task(other.lock(name, wait=None, **system.terms).acquire_async())
            # Both have asked, as far as this program can tell.
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        granted = await waiter
        assert granted.is_held and not lock.is_held
        await granted.release_async()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    nothing_left(client, system, name)


# ---- The loss of a lock


def test_a_lock_that_its_system_takes_away_is_lost(
    system: System, clients: Callable[..., Client], name: str
) -> None:
    heard: list[fencepost.LockLost] = []
    client = clients(ttl=SHORT_S)
    with pytest.raises(fencepost.LockLost), client.lock(name, on_lost=heard.append, **system.terms) as lock:
        system.take_away(system, name)
        assert lock.lost.wait(PATIENCE_S) and lock.lost and lock.lost.reason
        asks: list[Callable[[], Any]] = [lock.check, lambda: lock.remaining]
        if system.has_tokens:
            asks.append(lambda: lock.fence_token)
        for ask in asks:
            with pytest.raises(fencepost.LockLost):
                ask()
        eventually("the function is called", lambda: heard)
    assert not lock.is_held
    assert heard[0].names == (name,)


def test_a_loss_cancels_the_block_of_a_task(system: System, clients: Callable[..., Client], name: str) -> None:
    client = clients(ttl=SHORT_S)
    was_cancelled = False

    async def main() -> None:
        nonlocal was_cancelled
        async with client.lock(name, **system.terms):
            try:
                await asyncio.to_thread(system.take_away, system, name)
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                was_cancelled = True
                raise

    with pytest.raises(fencepost.LockLost):
        asyncio.run(main())
    assert was_cancelled


def test_a_holder_that_is_cut_off_knows_of_the_loss_before_the_next_holder(
    system: System, other: Client, name: str
) -> None:
    proxies = [Proxy(port) for port in system.ports]
    with fencepost.connect(system.at([proxy.port for proxy in proxies]), ttl=SHORT_S) as client:
        lock = client.lock(name, **system.terms).acquire()
        for proxy in proxies:
            proxy.cut()
        with other.lock(name, wait=PATIENCE_S, **system.terms):
            # Postgres frees these two at once when their connection ends, and the holder hears of it a moment later.
            assert not lock.is_held or not system.knows_deadline
        assert lock.lost.wait(PATIENCE_S)
        with pytest.raises(fencepost.LockLost):
            lock.release()


def test_a_deadlock_between_owners_is_not_seen(system: System, client: Client, other: Client, name: str) -> None:
    first, second = f"{name}-a", f"{name}-b"
    answers: list[type[fencepost.Error]] = []

    def ask(client: Client, name: str, owner: str, wait: float) -> None:
        try:
            client.lock(name, owner=owner, wait=wait, **system.terms).acquire().release()
        except fencepost.Error as error:
            answers.append(type(error))

    with client.lock(first, owner="a", **system.terms), other.lock(second, owner="b", **system.terms):
        threads = [
            threading.Thread(target=ask, args=[client, second, "a", 0.3]),
            threading.Thread(target=ask, args=[other, first, "b", 0.3]),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [fencepost.LockTimeout] * 2


# ---- What a system does not promise

#: What only Fencepost has, as docs/guides/python.md lists it.
NATIVE: dict[str, Callable[[Client, str], object]] = {
    "semaphore": lambda client, name: client.semaphore(name, limit=2).acquire(),
    "campaign": lambda client, name: client.election(name).campaign().acquire(),
    "leader": lambda client, name: client.election(name).leader(),
    "observe": lambda client, name: next(client.election(name).observe()),
    "job": lambda client, name: client.job(name, key="k").run(lambda job: None),
    "once": lambda client, name: client.once(name, key="k")(lambda: None)(),
    "watch": lambda client, name: next(client.watch(name)),
    "explain": lambda client, name: client.explain(name),
}
#: Terms of a lock that only Fencepost has. The tier is the best one of the system.
NATIVE_TERMS: dict[str, Callable[[str], tuple[list[str], dict[str, Any]]]] = {
    "UPDATE": lambda name: ([name], {"mode": UPDATE}),
    "max_hold": lambda name: ([name], {"max_hold": 60}),
    "path": lambda name: ([f"/{name}"], {}),
    "several, SHARED": lambda name: ([name, f"{name}-b"], {"mode": SHARED}),
    "several, UPDATE": lambda name: ([name, f"{name}-b"], {"mode": UPDATE}),
    "several, ttl": lambda name: ([name, f"{name}-b"], {"ttl": 10}),
    "several, owner": lambda name: ([name, f"{name}-b"], {"owner": "a"}),
    "several, max_hold": lambda name: ([name, f"{name}-b"], {"max_hold": 60}),
    "several, paths": lambda name: ([f"/{name}", f"/{name}-b"], {}),
}


def test_what_is_not_promised_is_refused_and_not_sent(system: System, name: str) -> None:
    """The client has lost its servers, so a request that it sends fails in another way."""
    proxies = [Proxy(port) for port in system.ports]
    with fencepost.connect(system.at([proxy.port for proxy in proxies])) as client:
        with client.lock(name, **system.terms):
            pass
        for proxy in proxies:
            proxy.cut()

        def refused(ask: Callable[[], object]) -> str:
            with pytest.raises(fencepost.Unsupported) as no:
                ask()
            return str(no.value)

        for native in NATIVE.values():
            assert "fencepost" in refused(lambda native=native: native(client, name)).lower()  # type: ignore[misc]
        for terms in NATIVE_TERMS.values():
            names, others = terms(name)
            request = client.lock(*names, **{**system.terms, **others})
            for ask in (request.acquire, request.try_acquire, request.__enter__):
                assert "fencepost" in refused(ask).lower()
        for promises, terms_of_one in (
            (system.has_tokens, {"tier": fencepost.CORRECTNESS}),
            (system.shares, {"mode": SHARED}),
            (system.has_own_ttl, {"ttl": 10}),
        ):
            if not promises:
                assert "fencepost" in refused(client.lock(name, **{**system.terms, **terms_of_one}).acquire)
        # What it does promise is sent, and does not get through.
        with pytest.raises((fencepost.Failed, fencepost.OutcomeUnknown)):
            client.lock(name, wait=0, **system.terms).acquire()


def test_a_held_lock_is_neither_extended_nor_upgraded(system: System, client: Client, name: str) -> None:
    with client.lock(name, **system.terms) as lock:
        with pytest.raises(fencepost.Unsupported, match="only Fencepost has `max_hold`"):
            lock.extend(10)
        assert lock.is_held
    if system.shares:
        with client.lock(name, mode=SHARED) as reader:
            with pytest.raises(fencepost.Unsupported, match="of Fencepost can be upgraded"):
                reader.upgrade(wait=1)
            assert reader.is_held
    nothing_left(client, system, name)


def test_settings_of_fencepost_are_refused_where_the_client_is_made(system: System) -> None:
    address = system.at([1] * system.servers)
    settings: dict[str, Any] = {"name": "x", "labels": {"a": "b"}, "connect_timeout": 1, "call_timeout": 1}
    for setting, value in settings.items():
        with pytest.raises(ValueError, match=f"`{setting}` is a setting of Fencepost alone"):
            fencepost.connect(address, **{setting: value})
    fencepost.connect(address, ttl=10)


def test_a_server_that_is_not_there_is_a_failure(system: System, name: str) -> None:
    gone = [Proxy(1) for _ in range(system.servers)]
    for proxy in gone:
        proxy.cut()
    with fencepost.connect(system.at([proxy.port for proxy in gone])) as client, pytest.raises(fencepost.Failed):
        client.lock(name, **system.terms).acquire()


# ---- The table of the guide


def table() -> dict[str, dict[str, str]]:
    """The table "Other lock systems" of docs/guides/python.md: the cells of each system, by row."""
    _, _, text = text_of("python.md").partition("\n## Other lock systems\n")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    said: dict[str, dict[str, str]] = {}
    for row, *cells in rows:
        for systems, cell in zip(head[1:], cells, strict=True):
            for system in systems.split(", "):
                said.setdefault(system, {})[row] = cell
    return said


def tokens_rise(client: Client, other: Client, name: str) -> str:
    try:
        tokens = []
        for each in (client, other, client):
            with each.lock(name) as lock:
                tokens.append(lock.fence_token)
    except fencepost.Unsupported:
        return "no"
    assert tokens == sorted(set(tokens)) and all(type(token) is fencepost.FenceToken for token in tokens)
    return "yes"


def efficiency(client: Client, other: Client, name: str) -> str:
    with client.lock(name, tier=EFFICIENCY) as lock:
        assert type(lock) is fencepost.EfficiencyLock and not hasattr(lock, "fence_token")
        assert other.lock(name, tier=EFFICIENCY).try_acquire() is None
    return "yes"


def readers_share(client: Client, other: Client, name: str) -> str:
    for tier in (fencepost.CORRECTNESS, EFFICIENCY):
        try:
            with client.lock(name, mode=SHARED, tier=tier) as reader, other.lock(name, mode=SHARED, tier=tier, wait=5):
                assert other.lock(name, tier=tier).try_acquire() is None
                if not isinstance(reader, fencepost.EfficiencyLock):
                    assert type(reader.fence_token) is fencepost.ReadToken
        except fencepost.Unsupported:
            continue
        if tier is EFFICIENCY:
            return "yes"
    return "no"


def own_ttl(client: Client, other: Client, name: str) -> str:
    try:
        with client.lock(name, ttl=20, tier=EFFICIENCY) as lock:
            assert lock.is_held
    except fencepost.Unsupported:
        return "no: give it to `connect`"
    return "yes"


def owner_enters_again(client: Client, other: Client, name: str) -> str:
    terms: dict[str, Any] = {"owner": "the nightly run", "tier": EFFICIENCY}
    with client.lock(name, **terms):
        assert other.lock(name, **terms).try_acquire() is None
        with client.lock(name, wait=0, **terms):
            pass
        # The second block has left, the first one has not.
        assert other.lock(name, **terms).try_acquire() is None
    with other.lock(name, wait=0, **terms):
        return "in one client"


def several(client: Client, other: Client, name: str) -> str:
    """The first one is held while the second one is waited for, whatever their order in the request."""
    first, second = f"{name}-a", f"{name}-b"
    held: list[tuple[str, ...]] = []

    def ask() -> None:
        with client.lock(second, first, wait=PATIENCE_S, tier=EFFICIENCY) as both:
            held.append(both.names)

    with other.lock(second, tier=EFFICIENCY):
        thread = threading.Thread(target=ask)
        thread.start()

        def is_taken() -> bool:
            lock = other.lock(first, tier=EFFICIENCY).try_acquire()
            if lock is not None:
                lock.release()
            return lock is None

        eventually("the first one is taken", is_taken)
        assert held == []
    thread.join()
    assert held == [(first, second)]
    return "one by one"


ROWS: dict[str, Callable[[Client, Client, str], str]] = {
    "tokens, `CORRECTNESS`": tokens_rise,
    "`EFFICIENCY`": efficiency,
    "`SHARED`": readers_share,
    "`ttl` of one lock": own_ttl,
    "`owner`": owner_enters_again,
    "several names": several,
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_the_guide_is_true(system: System, client: Client, other: Client, name: str, row: str) -> None:
    assert ROWS[row](client, other, name) == table()[system.name][row]


def test_the_table_of_the_guide_is_complete() -> None:
    assert {name: set(rows) for name, rows in table().items()} == {system.name: set(ROWS) for system in SYSTEMS}


def test_several_locks_have_a_token_each(system: System, client: Client, name: str) -> None:
    if not system.has_tokens:
        with client.lock(f"{name}-b", f"{name}-a", tier=EFFICIENCY) as plain:
            assert type(plain) is fencepost.EfficiencyLock and plain.names == (f"{name}-a", f"{name}-b")
        return
    with client.lock(f"{name}-a") as before:
        older = before.fence_token
    with client.lock(f"{name}-b", f"{name}-a") as both:
        assert both.token(f"{name}-a") > older and both.token(f"{name}-b") > 0
        assert type(both.token(f"{name}-a")) is fencepost.FenceToken
        with pytest.raises(KeyError, match="does not hold"):
            both.token(name)
    nothing_left(client, system, f"{name}-b")
