"""What a fork does to a program that holds locks: the child holds none of them, can do nothing to them, and connects by itself."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import inspect
import json
import os
import random
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import IS_SOAK, PATIENCE_S, eventually
from programs import Program, held_on, nothing_is_left, sessions_on
from stores import driver, skip

import fencepost
from fencepost import Client, LockForked
from fencepost.testing import Server

#: About how many forks the long tests make together.
FORKS = 500 if IS_SOAK else 50
#: How many children run at a time.
AT_A_TIME = 4


@dataclass
class Child:
    """A forked child of the tests. It has returned from its work when :meth:`result` returns."""

    pid: int
    reader: int

    def result(self) -> Any:
        """What its work has returned. The work must not raise."""
        with os.fdopen(self.reader, "rb") as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert code == 0, f"the child ended with code {code}: see standard error"
        answer = json.loads(said)
        assert "raised" not in answer, answer["raised"]
        return answer["returned"]


def fork(work: Callable[[], object]) -> Child:
    """Does the work in a child of this process. A child that hangs shows its threads in standard error."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(writer)
        return Child(pid, reader)
    # No exception may leave this branch: pytest would run twice.
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=2, chain=True)
        signal.alarm(int(PATIENCE_S))
        os.close(reader)
        try:
            answer = {"returned": work()}
        except BaseException:
            answer = {"raised": traceback.format_exc()}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        os._exit(0)
    finally:
        os._exit(1)


def in_child(work: Callable[[], object]) -> Any:
    """As :func:`fork`, and waits for the child."""
    return fork(work).result()


def raises_forked(ask: Callable[[], object]) -> bool:
    try:
        said = ask()
        if inspect.iscoroutine(said):
            asyncio.run(said)
    except LockForked:
        return True
    return False


def sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {each for each in found if each.startswith("socket:")}


@pytest.fixture
def proc(request: pytest.FixtureRequest) -> None:
    if not Path("/proc/self/task").is_dir():
        skip(request, "the system does not show threads and sockets in /proc")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that no other test uses."""
    with Server() as server:
        yield server


# ---- Threads


def test_connect_starts_no_thread_and_the_first_use_does(proc: None, server: Server) -> None:
    threads = """
        def threads():
            return len(os.listdir("/proc/self/task"))

        def use():
            before = threads()
            second = fencepost.connect()
            requests = [second.lock("a"), second.semaphore("b", limit=1), second.election("c").campaign(), second.job("d", key="e")]
            second.watch("f")
            second.close()
            unused = threads()
            client.explain("a")
            return [before, unused, threads()]

        tell("parent", json.dumps(use()))
        child = os.fork()
        if child == 0:
            tell("child", json.dumps(use()))
            sys.exit()
        os.waitpid(child, 0)
        tell("after", threads())
    """
    with Program(server, threads) as program:
        assert program.hear_json("parent") == [1, 1, 3]
        assert program.hear_json("child") == [1, 1, 3]
        assert program.hear_json("after") == 3
        program.ends()
    nothing_is_left(server)


# ---- The lock of the parent, in the child

KINDS: dict[str, Callable[[Client, str], Any]] = {
    "Lock": lambda client, name: client.lock(name, max_hold=600).acquire(),
    "ReadLock": lambda client, name: client.lock(name, mode=fencepost.SHARED).acquire(),
    "UpdateLock": lambda client, name: client.lock(name, mode=fencepost.UPDATE).acquire(),
    "_Lock": lambda client, name: client.lock(name, mode=fencepost.UPDATE).acquire().upgrade(),
    "MultiLock": lambda client, name: client.lock(name, f"{name}/b").acquire(),
    "MultiReadLock": lambda client, name: client.lock(name, f"{name}/b", mode=fencepost.SHARED).acquire(),
    "EfficiencyLock": lambda client, name: client.lock(name, tier=fencepost.EFFICIENCY).acquire(),
    "Permits": lambda client, name: client.semaphore(name, limit=1).acquire(),
    "Leadership": lambda client, name: client.election(name).campaign("a").acquire(),
    "Job": lambda client, name: client.job(name, key="a").acquire(),
}
#: What says nothing about whether the lock is held.
PLAIN = {"name", "names", "key", "lost"}
WITHOUT_TOKEN = {"MultiLock", "MultiReadLock", "EfficiencyLock", "Permits"}
ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "extend": lambda held: (1,),
    "extend_async": lambda held: (1,),
    "set_value": lambda held: ("b",),
    "set_value_async": lambda held: ("b",),
    "token": lambda held: held.names[:1],
    "checkpoint": lambda held: ("b",),
    "checkpoint_async": lambda held: ("b",),
    "fail": lambda held: ("b",),
    "fail_async": lambda held: ("b",),
}


def asks_of(held: Any) -> dict[str, Callable[[], object]]:
    """Every public attribute of the lock and of its loss signal, used; and its block."""

    def use(owner: Any, word: str) -> object:
        attribute = getattr(owner, word)
        return attribute(*ARGUMENTS.get(word, lambda _: ())(held)) if callable(attribute) else attribute

    words = {word for word in dir(type(held)) if not word.startswith("_")} - PLAIN
    if type(held).__name__ in WITHOUT_TOKEN:
        words.remove("fence_token")
    asks: dict[str, Callable[[], object]] = {word: partial(use, held, word) for word in words}
    for word in (word for word in dir(type(held.lost)) if not word.startswith("_")):
        asks[f"lost.{word}"] = partial(use, held.lost, word)
    asks["bool(lost)"] = lambda: bool(held.lost)
    asks["enter"] = held.__enter__
    asks["aenter"] = lambda: held.__aenter__()
    asks["exit"] = lambda: held.__exit__(None, None, None)
    asks["aexit"] = lambda: held.__aexit__(None, None, None)
    return asks


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_raises_in_the_child_and_does_nothing(client: Client, other: Client, name: str, kind: str) -> None:
    held = KINDS[kind](client, name)
    assert type(held).__name__ == kind
    asks = asks_of(held)
    assert {"check", "remaining", "is_held", "release", "release_async", "extend", "session", "lost.wait", "lost.reason"} <= set(asks)

    def ask_everything() -> list[str]:
        assert held.names[0] == held.name and "of another process" in repr(held)
        with pytest.raises(TypeError, match="cannot be pickled"):
            held.__reduce_ex__(2)
        return [word for word, ask in asks.items() if not raises_forked(ask)]

    session = held.session
    assert in_child(ask_everything) == []
    held.check()
    assert held.session == session and not held.lost and held.remaining > 0
    if kind == "EfficiencyLock":
        # `explain` is about the other tier.
        assert other.lock(name, tier=fencepost.EFFICIENCY).try_acquire() is None
    else:
        assert [holder.session for holder in other.explain(held.name).holders] == [session]
    held.release()
    assert other.explain(held.name).is_free


def test_the_exception_says_what_to_do(client: Client, name: str) -> None:
    with client.lock(name) as lock:

        def ask() -> list[str]:
            with pytest.raises(fencepost.LockLost) as forked:
                lock.check()
            return [type(forked.value).__name__, str(forked.value), forked.value.reason]

        kind, text, reason = in_child(ask)
        assert (kind, reason) == ("LockForked", "it belongs to the process that took it")
        assert "acquire a lock in the child" in text


@pytest.mark.parametrize("block", ["of the request", "of the lock"])
@pytest.mark.parametrize("error", [None, ZeroDivisionError("planned")])
def test_leaving_a_block_in_the_child_releases_nothing(
    client: Client, other: Client, name: str, block: str, error: Exception | None
) -> None:
    request = client.lock(name)
    held = request if block == "of the request" else request.acquire()

    def leave() -> list[str]:
        # As the end of a `with` block does.
        if raises_forked(lambda: held.__exit__(type(error) if error else None, error, None)):
            return ["raised"]
        if block == "of the request":
            # It is free for a block of this process.
            request._start = lambda: client.lock(f"{name}/b")._start()
            with request as again:
                again.check()
        return ["silent", *getattr(error, "__notes__", [])]

    with held as lock:
        said = in_child(leave)
        lock.check()
        assert not other.explain(name).is_free
    assert other.explain(name).is_free
    if error is None:
        assert said == ["raised"]
    else:
        assert said[0] == "silent" and "belongs to the process that took it" in said[1]


#: How a child ends in a block of its parent: the code, the exit code, and the last line in standard error.
ENDS = {
    "leaves the block": ("pass", 1, "fencepost._errors.LockForked: this lock belongs to the process that took it"),
    "os._exit": ("os._exit(4)", 4, ""),
    "sys.exit": ("sys.exit(5)", 5, ""),
    "an exception": ("raise ZeroDivisionError('planned')", 1, "fencepost: this lock belongs to the process that took it"),
    "a signal": ("signal.raise_signal(signal.SIGKILL)", -9, ""),
    "Ctrl-C": ("signal.raise_signal(signal.SIGINT)", -2, "fencepost: this lock belongs to the process that took it"),
}


@pytest.mark.parametrize("uses", ["uses the client", "does not use the client"])
@pytest.mark.parametrize("end", ENDS)
def test_the_lock_outlives_every_end_of_a_child(server: Server, end: str, uses: str) -> None:
    code, exit_code, complaint = ENDS[end]
    use = "client.lock('child').acquire()" if uses == "uses the client" else "None"
    program = f"""
        async def wait_in_the_background():
            async with client.lock("c"):
                await asyncio.sleep(3600)

        threading.Thread(target=lambda: asyncio.run(wait_in_the_background()), daemon=True).start()
        lost = []
        with client.lock("a", on_lost=lost.append) as lock, client.lock("b"):
            while client.explain("c").is_free:
                pass
            child = os.fork()
            if child == 0:
                mine = {use}
                {code}
            if child != 0:
                tell("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                lock.check()
                assert client.explain("a").holders[0].session == lock.session
                listen()
                lock.check()
                assert not lost
        assert client.explain("a").is_free
    """
    with Program(server, program) as running:
        assert running.hear("ended") == str(exit_code), running.description
        # A child that could end in order has given its own lock back.
        is_killed = end in ("os._exit", "a signal") and uses == "uses the client"
        held = ["a", "b", "c", *(["child"] if is_killed else [])]
        eventually("the child has given back", lambda: held_on(server) == held and len(sessions_on(server)) == 1 + is_killed)
        said = running.complaints
        assert complaint in said and (complaint or not said), said
        running.assert_no_crash()
        running.tell()
        assert running.wait() < PATIENCE_S and running.process.returncode == 0, running.description
        assert running.complaints == said


def test_objects_that_the_child_drops_do_nothing_to_the_parent(client: Client, other: Client, name: str) -> None:
    second = pickled_again(client)
    watch = second.watch(name).start()
    request = second.lock(f"{name}/b")
    objects: list[Any] = [second, watch, request, request.__enter__(), second.lock(f"{name}/c", on_lost=print).acquire()]
    in_flight = second.lock(f"{name}/c", wait=None)._start()
    objects.append(in_flight)
    session = objects[3].session
    del request, second, watch, in_flight
    gone = [weakref.ref(each) for each in objects if type(each).__weakrefoffset__]
    eventually("a request waits", lambda: other.explain(f"{name}/c").waiting == 1)

    def drop() -> list[Any]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            objects.clear()
            gc.collect()
        return [sum(each() is not None for each in gone), [str(each.message) for each in said]]

    assert in_child(drop) == [0, []] and len(gone) >= 3
    second, watch, request, lock, last, in_flight = objects
    lock.check()
    last.check()
    assert lock.session == last.session == session
    assert other.explain(f"{name}/c").waiting == 1
    last.release()
    in_flight.wait(PATIENCE_S)
    request.__exit__(None, None, None)
    assert [granted(watch) for _ in range(2)] == [f"{name}/b", f"{name}/c"]
    second.close()
    assert other.explain(f"{name}/b").is_free and other.explain(f"{name}/c").is_free


def granted(watch: fencepost.Watch) -> str:
    """The next name that is granted."""
    return next(event.names[0] for event in watch if event.kind == "granted")


def pickled_again(client: Client) -> Client:
    """A client with the same settings, and a connection of its own."""
    make, arguments = client.__reduce__()
    again: Client = make(*arguments)
    return again


# ---- The client, in the child


def test_the_client_works_in_the_child(proc: None, client: Client, other: Client, fencepost_server: Server, name: str) -> None:
    calls: list[str] = []
    with client.lock(name, on_lost=lambda loss: calls.append("parent")) as lock:
        parents = lock.session

        def work() -> list[Any]:
            inherited, lost = sockets(), threading.Event()
            assert client.lock(name).try_acquire() is None and client.explain(name).holders[0].session == parents
            with client.lock(f"{name}/b", wait=5) as mine:
                connected = sockets() - inherited
                of_client = next(row for row in sessions_of(fencepost_server) if row["session"] == mine.session)["client"]
                session = mine.session
                events = client.watch(f"{name}/b").start()
            assert next(event.names[0] for event in events if event.kind == "released") == f"{name}/b"
            assert client.lock(f"{name}/c", ttl=90).acquire().session not in (session, parents)
            broken = client.lock(f"{name}/d", on_lost=lambda loss: lost.set()).acquire()
            fencepost_server.run("break", broken.name, "--yes", "--reason", "a test")
            assert broken.lost.wait(PATIENCE_S) and lost.wait(PATIENCE_S)
            client.close()
            with pytest.raises(fencepost.Failed, match="the client is closed"):
                client.lock(name).acquire()
            return [session, of_client["pid"], os.getpid(), len(connected), calls]

        session, shown_pid, pid, connected, called = in_child(work)
        # The child's client is closed, and the parent's is not.
        lock.check()
        with client.lock(f"{name}/e") as last:
            assert last.session == parents != session
        assert pid == int(shown_pid) != os.getpid() and connected >= 1 and called == []
        assert session not in sessions_on(fencepost_server)
    assert calls == [] and other.explain(name).is_free


def sessions_of(server: Server) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(server.run("sessions", "-o", "json"))
    return rows


def test_a_closed_client_stays_closed_in_no_other_process(client: Client, fencepost_server: Server, name: str) -> None:
    """``close`` is about a connection, and each process has its own."""
    with fencepost_server.client() as second:
        with second.lock(name):
            pass
        child = fork(lambda: second.lock(f"{name}/b").acquire().release())
        second.close()
        child.result()
    assert client.explain(f"{name}/b").is_free


def test_a_loss_in_the_parent_is_told_in_the_parent_alone(client: Client, broken: Callable[[str], Any], name: str) -> None:
    heard: list[int] = []
    lock = client.lock(name, on_lost=lambda loss: heard.append(os.getpid())).acquire()
    reader, writer = os.pipe()

    def wait_for_the_parent() -> list[int]:
        os.close(writer)
        os.read(reader, 1)
        with client.lock(f"{name}/b"), pytest.raises(LockForked):
            lock.lost.wait(0)
        return heard

    child = fork(wait_for_the_parent)
    broken(name)
    eventually("the function is called", lambda: heard)
    os.close(writer)
    os.close(reader)
    assert child.result() == [] and heard == [os.getpid()]


def test_what_the_parent_has_under_way_is_refused_in_the_child(client: Client, other: Client, name: str) -> None:
    watch = client.watch(name).start()
    with other.lock(name), client.lock(f"{name}/b") as held:
        waits = client.lock(name, wait=None)._start()
        loss = held._core.lost()

        def ask() -> list[str]:
            said = []
            for what in (lambda: next(watch), waits.wait, waits.take, lambda: waits.listen(print), loss.wait):
                with pytest.raises(RuntimeError, match="in the parent of this process: start") as refused:
                    what()
                said.append(str(refused.value))
            waits.abandon()
            loss.abandon()
            return said

        assert len(in_child(ask)) == 5
        assert client.explain(name).waiting == 1
    assert waits.wait(PATIENCE_S)
    # The watch has missed nothing.
    assert [granted(watch) for _ in range(2)] == [name, f"{name}/b"]
    waits.abandon()
    eventually("what was given up is given back", lambda: other.explain(name).is_free)


def test_no_byte_is_written_to_the_sockets_of_the_parent(request: pytest.FixtureRequest, proc: None, server: Server) -> None:
    program = """
        def written():
            "The bytes that were written to each inherited socket, by any process."
            totals = {}
            for number in os.listdir("/proc/self/fd"):
                try:
                    name = os.readlink(f"/proc/self/fd/{number}")
                    copy = os.dup(int(number))
                except OSError:
                    continue
                if not name.startswith("socket:"):
                    os.close(copy)
                    continue
                with socket.socket(fileno=copy) as inherited:
                    if inherited.family in (socket.AF_INET, socket.AF_INET6):
                        info = inherited.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                        # In `struct tcp_info` of Linux: what was sent, how much of it again, and what is still to be sent.
                        (sent, again), (unsent,) = struct.unpack_from("QQ", info, 200), struct.unpack_from("I", info, 144)
                        totals[name] = sent - again + unsent
            return totals

        def is_stopped(pid):
            states = [open(f"/proc/{pid}/task/{thread}/stat").read().rpartition(")")[2].split()[0] for thread in os.listdir(f"/proc/{pid}/task")]
            return set(states) == {"T"}

        lock = client.lock("a").acquire()
        try:
            before = written()
        except struct.error:
            tell("counted null")
            sys.exit()
        client.explain("a")
        tell("counted", json.dumps([sum(before.values()), sum(written().values())]))
        inspector = os.fork()
        if inspector == 0:
            # The parent is stopped, so that it writes nothing.
            os.kill(os.getppid(), signal.SIGSTOP)
            while not is_stopped(os.getppid()):
                time.sleep(0.001)
            before = written()
            child = os.fork()
            if child == 0:
                for word in ("check", "release", "__enter__"):
                    try:
                        getattr(lock, word)()
                    except fencepost.LockForked:
                        pass
                with client.lock("b", wait=60), client.lock("c", ttl=900, wait=60):
                    del lock
                    gc.collect()
                client.close()
                client = None
                gc.collect()
                sys.exit()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            tell("compared", json.dumps([code, before, written()]))
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.waitpid(inspector, 0)
        lock.check()
        with client.lock("d") as second:
            assert second.session == lock.session
    """
    with Program(server, program) as running:
        counted = running.hear_json("counted")
        if counted is None:
            skip(request, "this Linux does not count the bytes that are written to a socket")
        assert counted[1] > counted[0] > 0
        code, before, after = running.hear_json("compared")
        assert code == 0 and len(before) >= 1 and before == after, running.description
        running.ends()
    nothing_is_left(server)


# ---- When and how often a program forks


def test_forks_before_the_first_use(fencepost_server: Server, client: Client, name: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    unused = fencepost_server.client()

    def count() -> str | None:
        with unused.lock(name, wait=None) as lock:
            # Without the lock, two processes would read the same number.
            counter.write_text(str(int(counter.read_text()) + 1))
            session = lock.session
        unused.close()
        return session

    children = [fork(count) for _ in range(AT_A_TIME)]
    sessions = {count(), *(child.result() for child in children)}
    assert counter.read_text() == str(AT_A_TIME + 1) and len(sessions) == AT_A_TIME + 1
    assert client.explain(name).is_free


@pytest.mark.parametrize("attempt", range(20 if IS_SOAK else 2))
def test_forks_at_the_moment_of_the_first_use(server: Server, attempt: int) -> None:
    program = f"""
        def use(number):
            with client.lock("a", wait=None) as lock:
                lock.check()

        user = threading.Thread(target=use, args=[0])
        user.start()
        children = []
        for number in range(5):
            for _ in range({attempt} * number * 100):
                pass
            child = os.fork()
            if child == 0:
                use(number)
                client.close()
                os._exit(0)
            children.append(child)
        user.join()
        tell("codes", json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
    """
    with Program(server, program) as running:
        assert running.hear_json("codes") == [0] * 5, running.description
        running.ends()
    nothing_is_left(server)


def test_grandchildren(client: Client, name: str) -> None:
    """Each generation holds a lock while the next one asks for all locks above it."""

    def generation(depth: int, above: list[Any]) -> list[Any]:
        assert all(raises_forked(lock.check) for lock in above)
        with client.lock(f"{name}/{depth}") as lock:
            assert all(client.lock(each.name).try_acquire() is None for each in above)
            below = in_child(lambda: generation(depth - 1, [*above, lock])) if depth else []
            lock.check()
            session = lock.session
        assert client.explain(f"{name}/{depth}").is_free
        client.close()
        return [session, *below]

    with client.lock(name) as lock:
        sessions = in_child(lambda: generation(4, [lock]))
        lock.check()
        assert len({lock.session, *sessions}) == 6


def test_many_forks_in_a_row(proc: None, client: Client, other: Client, name: str, tmp_path: Path) -> None:
    """Children wait for each other's locks, while the parent keeps its own. Nothing of a child stays in the parent."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    forks = FORKS // 2
    with client.lock(name) as lock:
        theirs: list[Child] = []
        tokens: list[int] = []

        def count() -> int:
            assert raises_forked(lock.check)
            with client.lock(f"{name}/b", wait=None) as mine:
                counter.write_text(str(int(counter.read_text()) + 1))
                token = int(mine.fence_token)
            # Half of the children leave a session behind, as a crash does.
            if token % 2:
                client.close()
            return token

        def threads_and_sockets() -> list[int]:
            return [len(os.listdir("/proc/self/task")), len(sockets())]

        before = threads_and_sockets()
        for _ in range(forks):
            theirs.append(fork(count))
            if len(theirs) == AT_A_TIME:
                tokens.append(theirs.pop(0).result())
            lock.check()
        tokens += [child.result() for child in theirs]
        assert counter.read_text() == str(forks) and len(set(tokens)) == forks
        # Less than before: what tests before this one have left may go meanwhile.
        assert all(now <= then for now, then in zip(threads_and_sockets(), before, strict=True))
        assert other.explain(name).holders[0].session == lock.session
    assert other.explain(name).is_free and other.explain(f"{name}/b").is_free


def test_forks_in_the_middle_of_everything(client: Client, other: Client, broken: Callable[[str], Any], name: str) -> None:
    """Threads and tasks of the parent lock, wait and watch, while it forks. They notice nothing of the children."""
    hot, end = f"{name}/hot", threading.Event()
    heard: list[fencepost.LockLost] = []
    errors: list[BaseException] = []
    tokens: list[int] = []
    seen: list[int] = []
    held = client.lock(f"{name}/held", on_lost=heard.append).acquire()
    blocked = other.lock(f"{name}/blocked").acquire()
    # Events of a client that does nothing else: its connection is idle while it waits.
    watch = other.watch(hot).start()

    def locks() -> None:
        while not end.is_set():
            with client.lock(hot, wait=None) as lock:
                tokens.append(lock.fence_token)
                lock.check()

    def times_out() -> None:
        while not end.is_set():
            with contextlib.suppress(fencepost.LockTimeout):
                client.lock(f"{name}/held", wait=0.001).acquire()

    async def awaits() -> None:
        while not end.is_set():
            async with client.lock(hot, wait=None) as lock:
                tokens.append(lock.fence_token)
                await asyncio.sleep(0)

    def waits() -> None:
        with client.lock(blocked.name, wait=None):
            pass

    def watches() -> None:
        for event in watch:
            if event.kind == "granted" and event.token is not None:
                seen.append(event.token)
            if event.kind == "granted" and event.names == (f"{hot}/end",):
                return

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    works: list[Callable[[], object]] = [locks, locks, times_out, lambda: asyncio.run(awaits()), waits, watches]
    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    eventually("a thread waits", lambda: other.explain(blocked.name).waiting == 1)

    def grandchild() -> None:
        assert raises_forked(held.check)
        with client.lock(f"{name}/grandchildren", wait=None):
            pass

    def child() -> int:
        assert raises_forked(held.check) and raises_forked(held.release)
        with client.lock(f"{name}/children", wait=None), client.lock(hot, wait=None) as lock:
            token = int(lock.fence_token)
        chance = random.Random(token)
        if chance.random() < 0.3:
            in_child(grandchild)
        if chance.random() < 0.5:
            client.close()
        gc.collect()
        return token

    children: list[Child] = []
    theirs: list[int] = []
    chance = random.Random(1)
    for _ in range(FORKS // 2):
        # The forks come at all moments of the work of the threads.
        for _ in range(chance.randrange(3)):
            more = len(tokens) + 1
            eventually("the threads go on", lambda: len(tokens) >= more or errors)
        children.append(fork(child))
        if len(children) == AT_A_TIME:
            theirs.append(children.pop(0).result())
        held.check()
    theirs += [each.result() for each in children]
    end.set()
    blocked.release()
    for thread in threads[:5]:
        thread.join()
    with other.lock(f"{hot}/end"):
        threads[5].join()
    assert errors == [] and heard == []
    # Every grant was seen, in order, and none twice.
    assert {*tokens, *theirs} <= set(seen) and seen == sorted(set(seen))
    broken(held.name)
    eventually("the parent hears of its loss", lambda: heard)
    assert heard[0].names == (held.name,)
    assert other.explain(hot).is_free and other.explain(blocked.name).is_free


def test_a_signal_handler_may_fork_in_the_middle_of_a_wait(server: Server) -> None:
    """The handler returns in the child, too, where no thread answers the request that the parent waits for."""
    program = """
        forked = []
        signal.signal(signal.SIGUSR1, lambda number, frame: forked.append(os.fork()))
        parent = os.getpid()
        tell("waits")
        try:
            lock = client.lock("a", wait=None).acquire()
            tell("granted", json.dumps(os.getpid() == parent))
        except (fencepost.Error, RuntimeError) as error:
            tell("refused", json.dumps(os.getpid() != parent))
            os._exit(0)
        os.waitpid(forked[0], 0)
    """
    with server.client() as client:
        with client.lock("a"), Program(server, program) as running:
            running.hear("waits")
            eventually("it waits", lambda: client.explain("a").waiting == 1)
            running.signal(signal.SIGUSR1)
            assert running.hear_json("refused")
            assert client.explain("a").waiting == 1
            client.close()
            assert running.hear_json("granted")
            running.ends()
    nothing_is_left(server)


# ---- multiprocessing

METHODS = ["fork", "forkserver", "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing(server: Server, method: str) -> None:
    program = """
        import multiprocessing, pickle
        from concurrent.futures import ProcessPoolExecutor
        from pathlib import Path

        counter = Path(__file__).with_name("counter")

        def count(theirs):
            with client.lock("a", wait=None) as lock, theirs.lock("b", wait=None) as second:
                counter.write_text(str(int(counter.read_text()) + 1))
                tell("session", lock.session)
                assert (lock.session == second.session) == (theirs is client)

        def ask(lock):
            try:
                lock.check()
            except fencepost.LockForked:
                tell("inherited")

        if __name__ == "__main__":
            context = multiprocessing.get_context(listen())
            counter.write_text("0")
            with client.lock("held") as lock, client.lock("also held"):
                processes = [context.Process(target=count, args=[client]) for _ in range(3)]
                for process in processes:
                    process.start()
                count(client)
                for process in processes:
                    process.join()
                tell("codes", json.dumps([process.exitcode for process in processes]))
                with ProcessPoolExecutor(2, mp_context=context) as pool:
                    list(pool.map(count, [client] * 4))
                try:
                    asked = context.Process(target=ask, args=[lock])
                    asked.start()
                    asked.join()
                except TypeError as refused:
                    tell("refused", refused)
                lock.check()
                tell("counted", counter.read_text())
                listen()
    """
    with Program(server, program) as running:
        running.tell(method)
        assert running.hear_json("codes") == [0, 0, 0], running.description
        assert running.hear_json("counted") == 8
        if method == "fork":
            # It was not sent, so it could not be refused before it was used.
            running.hear("inherited")
        else:
            assert "a held lock belongs to its process and cannot be pickled" in running.hear("refused")
        sessions = {line for line in running.said if line.startswith("session ")}
        assert 5 <= len(sessions) <= 6, "one of the parent, three of the processes, one or two of the pool"
        held = ["also held", "held"]
        eventually("the children have given back", lambda: held_on(server) == held and len(sessions_on(server)) == 1)
        running.tell()
        running.ends()
    nothing_is_left(server)


# ---- Event loops


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_event_loop_in_the_child(request: pytest.FixtureRequest, client: Client, name: str, loop: str) -> None:
    if loop == "uvloop":
        uvloop = driver(request, "uvloop", "uvloop")
    runner: Any = asyncio.run if loop == "asyncio" else lambda main: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main)

    async def hold() -> str | None:
        async with client.lock(f"{name}/b", wait=None) as lock, asyncio.timeout(PATIENCE_S):
            waiter = asyncio.create_task(client.lock(lock.name, wait=None).acquire_async())
            while (await client.explain_async(lock.name)).waiting == 0:
                await asyncio.sleep(0)
            waiter.cancel()
            return lock.session

    before = runner(hold())
    children = [fork(lambda: runner(hold())) for _ in range(AT_A_TIME)]
    again = runner(hold())
    theirs = [child.result() for child in children]
    assert before == again and len({before, *theirs}) == AT_A_TIME + 1


def test_a_fork_while_the_event_loop_runs(client: Client, other: Client, name: str) -> None:
    async def main() -> None:
        # A task of the parent waits meanwhile, and another one listens for a loss.
        waiter = asyncio.create_task(client.lock(f"{name}/blocked", wait=None).acquire_async())
        async with client.lock(name) as lock:
            loss = asyncio.create_task(lock.lost.wait_async())
            while (await client.explain_async(f"{name}/blocked")).waiting == 0:
                await asyncio.sleep(0)

            async def hold() -> str | None:
                assert raises_async(lock.lost.wait_async()) and raises_async(lock.__aexit__(None, None, None))
                async with client.lock(f"{name}/b", wait=None) as mine:
                    return mine.session

            def child() -> list[Any]:
                # The loop of the parent does not run here, so a call may block.
                with client.lock(f"{name}/c") as mine:
                    sessions = [mine.session]
                sessions.append(asyncio.run(hold()))
                return sessions

            mine, awaited = await asyncio.to_thread(fork(child).result)
            assert mine == awaited != lock.session
            lock.check()
            assert not loss.done() and not waiter.done()
            await blocked.release_async()
            (await waiter).check()
        assert await loss is False

    blocked = other.lock(f"{name}/blocked").acquire()
    asyncio.run(bounded(main()))


async def bounded(main: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await main


def raises_async(awaited: Any) -> bool:
    """Drives a coroutine by hand, up to its first exception."""
    try:
        awaited.send(None)
    except LockForked:
        return True
    return False
