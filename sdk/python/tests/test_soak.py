"""Long runs in which everything is interrupted, stopped or repeated. ``./test`` runs a small number, ``./test long python`` a large one.

- Tasks are cancelled, waits time out, and signals interrupt a main thread, all at random moments. No lock has two holders, and no lock is left.
- Holders are stopped (SIGSTOP) past their lease. None of them finds its lock held after its successor has it, and the store refuses them.
- Memory, threads, open files and sessions stay the same, however many locks a program takes.

Each test prints its figures, for ``docs/track-record.md``. ``FENCEPOST_SEED=N`` repeats the random choices of a run, though not its timing.
The programs that run in processes of their own are in ``soak_workers.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import soak_workers
from conftest import IS_SOAK, PATIENCE_S, eventually
from soak_workers import EXPECTED, LONG_S, Call, Diary, Moment, Names

import fencepost
from fencepost import Client, fence
from fencepost.testing import Server

INTERRUPTIONS = 10_000 if IS_SOAK else 1_000
PAUSES = 200 if IS_SOAK else 20
ACQUIRES = 100_000 if IS_SOAK else 10_000

Figures = Callable[[str], None]


@pytest.fixture
def seed() -> int:
    """The seed of the random choices. pytest shows this line if the test fails."""
    seed = int(os.environ.get("FENCEPOST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"to repeat the random choices: FENCEPOST_SEED={seed}")
    return seed


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, seed: int) -> Figures:
    """Prints figures although pytest captures the output of tests."""
    began = time.monotonic()

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}; {time.monotonic() - began:.1f} s, FENCEPOST_SEED={seed}")

    return show


class Worker:
    """A program of ``soak_workers.py``. Leaving its block kills it."""

    def __init__(self, kind: str, **arguments: object) -> None:
        self._command = [str(Path(soak_workers.__file__)), kind, json.dumps(arguments)]

    async def __aenter__(self) -> Worker:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, *self._command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**28
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def do(self, order: str, **arguments: object) -> dict[str, Any]:
        """Gives an order, and waits for the answer."""
        self.tell(order, **arguments)
        return await self.answer()

    def tell(self, order: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": order, **arguments}).encode() + b"\n")

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self._process.stdout.readline()
        assert line, "the worker has ended: what it printed is in the captured output"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> None:
        """Closes its client, and waits until it has ended by itself."""
        await self.do("close")
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await self._process.wait() == 0


async def until_equal(expected: object, ask: Callable[[], Awaitable[object]]) -> None:
    """Waits until the answer is the expected one."""
    until = time.monotonic() + PATIENCE_S
    while (answer := await ask()) != expected:
        assert time.monotonic() < until, f"after {PATIENCE_S:.0f} s it is still {answer!r}, not {expected!r}"
        await asyncio.sleep(0.01)


async def listed(server: Server, what: str) -> Any:
    """What ``fencepost locks`` or ``fencepost sessions`` shows."""
    return json.loads(await asyncio.to_thread(server.run, what, "-o", "json"))


# ---- Cancellations, time-outs and signals

TASKS, THREADS, PROCESSES = 12, 3, 3
#: What must be interrupted by signals. More attempts are made until it was.
INTERRUPTED = {
    *("Request.__enter__", "Request._left", "Request.acquire", "Held.release", "ReadLock.upgrade", "JobRequest.run"),
    "the program's own code",
}
#: How many interruptions a process makes for one order.
PORTION = 20
#: How long all of it may take.
RUN_S = PATIENCE_S * max(1.0, INTERRUPTIONS / 1_000)


def violations(moments: Sequence[Moment]) -> list[str]:
    """What cannot be if a lock has one holder at a time: blocks that ran at the same time, and tokens that do not rise."""
    blocks: dict[tuple[str, str], list[Moment]] = {}
    for moment in sorted(moments, key=lambda moment: moment.time_ns):
        blocks.setdefault((moment.name, moment.block), []).append(moment)
    wrong = []
    #: The ends of the blocks so far, by name, and the newest token.
    end: dict[str, int] = {}
    end_alone: dict[str, int] = {}
    newest: dict[str, int] = {}
    # In the order in which they began. Several readers may hold a lock together.
    for (name, block), (first, *rest) in blocks.items():
        last = rest[-1] if rest else first
        if first.time_ns <= (end if first.is_alone else end_alone).get(name, -1):
            wrong.append(f"{block} began while another block held {name}")
        if first.is_alone and first.token is not None:
            if first.token <= newest.get(name, 0):
                wrong.append(f"{block} has token {first.token} of {name}, after token {newest[name]}")
            newest[name] = max(first.token, newest.get(name, 0))
        end[name] = max(last.time_ns, end.get(name, -1))
        if first.is_alone:
            end_alone[name] = max(last.time_ns, end_alone.get(name, -1))
    return wrong


@pytest.mark.parametrize(
    ("history", "count"),
    [
        # Each row is one block: its name, its first and its last moment, its token, and whether it is alone.
        ([], 0),
        ([("a", 1, 2, 1, True), ("a", 3, 4, 2, True), ("b", 1, 9, 1, True)], 0),
        ([("a", 1, 5, 1, False), ("a", 2, 3, 2, False), ("a", 6, 7, 3, True)], 0),
        ([("a", 1, 2, None, True), ("a", 3, 4, None, True)], 0),
        ([("a", 1, 3, 1, True), ("a", 2, 4, 2, True)], 1),
        ([("a", 1, 9, 1, True), ("a", 2, 3, 2, True), ("a", 4, 5, 3, True)], 2),
        ([("a", 1, 3, 1, True), ("a", 2, 4, 2, False)], 1),
        ([("a", 1, 9, 1, False), ("a", 2, 3, 2, False), ("a", 4, 5, 3, True)], 1),
        ([("a", 1, 3, None, True), ("a", 2, 4, None, True)], 1),
        ([("a", 1, 2, 2, True), ("a", 3, 4, 1, True)], 1),
        ([("a", 1, 2, 2, True), ("a", 3, 4, 2, True)], 1),
    ],
)
def test_two_holders_would_be_seen(history: list[tuple[str, int, int, int | None, bool]], count: int) -> None:
    moments = [
        Moment(time, name, str(block), token, is_alone)
        for block, (name, first, last, token, is_alone) in enumerate(history)
        for time in (last, first)
    ]
    assert len(violations(moments)) == count


def in_block(client: Client, name: str) -> Callable[[], object]:
    def work() -> None:
        with client.lock(name):
            pass

    return work


def in_block_of_a_held_lock(client: Client, name: str) -> Callable[[], object]:
    lock = client.lock(name).try_acquire()
    assert lock is not None

    def work() -> None:
        with lock:
            pass

    return work


def in_upgrade(client: Client, name: str) -> Callable[[], object]:
    def work() -> None:
        with client.lock(name, mode=fencepost.UPDATE) as lock:
            lock.upgrade()

    return work


def in_permit(client: Client, name: str) -> Callable[[], object]:
    def work() -> None:
        with client.semaphore(name, limit=1):
            pass

    return work


def in_job(client: Client, name: str) -> Callable[[], object]:
    key = str(time.monotonic_ns())
    return lambda: client.job(name, key=key).run(lambda job: None)


def in_decorated(client: Client, name: str) -> Callable[[], object]:
    return client.locked(name)(lambda: None)


@pytest.mark.parametrize(
    "prepare", [in_block, in_block_of_a_held_lock, in_upgrade, in_permit, in_job, in_decorated], ids=lambda prepare: prepare.__name__
)
def test_nothing_is_left_after_an_interruption_at_the_first_line_of_any_function(
    client: Client, other: Client, name: str, prepare: Callable[[Client, str], Callable[[], object]]
) -> None:
    """Python handles a signal before the first line of a function, among other places. Here that is done to one function after the other."""

    class Interrupted(KeyboardInterrupt):
        pass

    for number in itertools.count():
        work = prepare(client, name)
        called: list[str] = []

        def trace(frame: FrameType, event: str, _: object, called: list[str] = called, number: int = number) -> None:
            # What is raised in a `__del__` is not passed on.
            if frame.f_globals.get("__name__", "").startswith("fencepost.") and frame.f_code.co_name != "__del__":
                called.append(frame.f_code.co_qualname)
                if len(called) == number + 1:
                    raise Interrupted

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except Interrupted:
            pass
        else:
            assert len(called) <= number
            break
        finally:
            sys.settrace(before)
        eventually(f"nothing is left after an interruption in {called[-1]}", lambda: other.explain(name).is_free)
    assert number > 0


def test_nothing_is_left_after_interruptions_at_random_moments(name: str, seed: int, figures: Figures) -> None:
    with Server() as server:
        asyncio.run(interrupt_everything(server, name, seed, figures))


async def interrupt_everything(server: Server, name: str, seed: int, figures: Figures) -> None:
    names = Names.below(name)
    rng = random.Random(seed)
    shares = {"task": INTERRUPTIONS * 5 // 10, "thread": INTERRUPTIONS * 2 // 10, "process": INTERRUPTIONS * 3 // 10}
    async with AsyncExitStack() as stack:
        seeds = [rng.randrange(2**32) for _ in range(PROCESSES)]
        workers = [
            await stack.enter_async_context(Worker("interrupted", address=server.address, name=name, seed=seed)) for seed in seeds
        ]
        clients = [server.client(), server.client()]
        for client in clients:
            stack.push_async_callback(client.close_async)
        diaries = [Diary(f"task or thread {number}") for number in range(TASKS + THREADS)]
        tasks = Tasks(clients, names, rng, shares["task"])

        async def process(worker: Worker) -> dict[str, Any]:
            attempts = 0
            for _ in range(shares["process"] // PROCESSES // PORTION):
                attempts = (await worker.do("run", count=PORTION))["attempts"]
            while not INTERRUPTED <= set((report := await worker.do("report"))["places"]):
                attempts = (await worker.do("run", count=PORTION))["attempts"]
            return {"attempts": attempts, **report}

        time_outs = TimeOuts(clients[1], names, shares["thread"])
        done = await asyncio.gather(
            *(tasks.run(diary) for diary in diaries[:TASKS]),
            *(asyncio.to_thread(time_outs.run, diary, random.Random(rng.randrange(2**32))) for diary in diaries[TASKS:]),
            *(process(worker) for worker in workers),
        )
        reports = [report for report in done if isinstance(report, dict)]
        print("signals came in:", *(report["places"] for report in reports), sep="\n    ")
        moments = [moment for diary in diaries for moment in diary.moments]
        moments += [Moment(*moment) for report in reports for moment in report["diary"]]
        assert violations(moments) == []

        # While the clients still have their sessions: what was given up is given back, and does not wait for the end of its program.
        nothing: dict[str, list[object]] = {"held": [], "waiting": []}
        await until_equal(nothing, lambda: listed(server, "locks"))
        fast = await clients[0].lock(names.efficiency, tier=fencepost.EFFICIENCY, wait=PATIENCE_S)
        await fast.release_async()
        assert len(await listed(server, "sessions")) == len(clients) + len(workers)
        for worker in workers:
            await worker.end()
        for client in clients:
            await client.close_async()
        assert await listed(server, "sessions") == [] and await listed(server, "locks") == nothing

    places: dict[str, int] = {}
    for report in reports:
        for place, count in report["places"].items():
            places[place] = places.get(place, 0) + count
    # The tasks were cancelled in every way, in and out of blocks.
    assert min(tasks.interrupted.values()) > 0 and len(tasks.interrupted) == len(tasks.ways), tasks.interrupted
    most = ", ".join(f"{place} {count}" for place, count in sorted(places.items(), key=lambda item: -item[1])[:12])
    figures(
        f"{sum(tasks.interrupted.values())} of {tasks.attempts} tasks were interrupted ({tasks.interrupted}), {shares['thread']} waits of "
        f"threads timed out, {sum(report['attempts'] for report in reports)} attempts had {sum(places.values())} signals (in {most}; "
        f"{sum(report['swallowed'] for report in reports)} in places that cannot raise); {len(moments)} moments of blocks compared, nothing left"
    )


class Tasks:
    """Tasks that are cancelled, or that time out, until that has happened often enough."""

    def __init__(self, clients: list[Client], names: Names, rng: random.Random, count: int) -> None:
        self.attempts = 0
        self.interrupted: dict[str, int] = {}
        self.ways = (self._after_steps, self._after_a_while, self._twice, self._timeout, self._wait_for, self._short_wait)
        self._clients = clients
        self._names = names
        self._rng = rng
        self._count = count

    async def run(self, diary: Diary) -> None:
        until = time.monotonic() + RUN_S
        while sum(self.interrupted.values()) < self._count:
            assert time.monotonic() < until, f"only {self.interrupted} of {self._count} tasks were interrupted"
            self.attempts += 1
            way = self._rng.choice(self.ways)
            work = self._rng.choice(self._works)
            try:
                await way(lambda wait, work=work: work(self, diary, wait))  # type: ignore[misc]
            except (TimeoutError, asyncio.CancelledError):
                # The task of this loop is never cancelled itself.
                place = way.__name__.strip("_").replace("_", " ")
                self.interrupted[place] = self.interrupted.get(place, 0) + 1
            except EXPECTED:
                pass

    async def _after_steps(self, work: Callable[[float], Any]) -> None:
        task = asyncio.create_task(work(LONG_S))
        for _ in range(self._rng.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        await task

    async def _after_a_while(self, work: Callable[[float], Any]) -> None:
        task = asyncio.create_task(work(LONG_S))
        asyncio.get_running_loop().call_later(self._moment(), task.cancel)
        await task

    async def _twice(self, work: Callable[[float], Any]) -> None:
        task = asyncio.create_task(work(LONG_S))
        await asyncio.sleep(self._moment())
        task.cancel()
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)
        task.cancel()
        await task

    async def _timeout(self, work: Callable[[float], Any]) -> None:
        async with asyncio.timeout(self._moment()):
            await work(LONG_S)

    async def _wait_for(self, work: Callable[[float], Any]) -> None:
        await asyncio.wait_for(work(LONG_S), self._moment())

    async def _short_wait(self, work: Callable[[float], Any]) -> None:
        await work(self._moment())

    def _moment(self) -> float:
        """Soon, or while it waits for other holders."""
        return self._rng.uniform(0, self._rng.choice((0.001, 0.02, 0.1)))

    def _lock(self, wait: float, **terms: Any) -> Any:
        return self._rng.choice(self._clients).lock(self._rng.choice(self._names.locks), wait=wait, **terms)

    async def _work(self, diary: Diary, lock: fencepost.Held, **words: bool) -> None:
        note = diary.block(lock, **words)
        try:
            for _ in range(self._rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            note()

    async def _block(self, diary: Diary, wait: float) -> None:
        async with self._lock(wait) as lock:
            await self._work(diary, lock)

    async def _without_a_block(self, diary: Diary, wait: float) -> None:
        lock = await self._lock(wait)
        try:
            await self._work(diary, lock)
        finally:
            await lock.release_async()

    async def _if_free(self, diary: Diary, wait: float) -> None:
        lock = await self._lock(wait).try_acquire_async()
        if lock is not None:
            async with lock:
                await self._work(diary, lock)

    async def _upgrade(self, diary: Diary, wait: float) -> None:
        async with self._lock(wait, mode=fencepost.UPDATE) as lock:
            await self._work(diary, await lock.upgrade_async(wait))

    async def _read(self, diary: Diary, wait: float) -> None:
        async with self._lock(wait, mode=fencepost.SHARED) as lock:
            await self._work(diary, lock, is_alone=False)

    async def _several(self, diary: Diary, wait: float) -> None:
        async with self._clients[0].lock(*self._rng.sample(self._names.locks, 2), wait=wait) as lock:
            await self._work(diary, lock)

    async def _permit(self, diary: Diary, wait: float) -> None:
        async with self._clients[0].semaphore(self._names.semaphore, limit=2, wait=wait):
            await asyncio.sleep(0)

    async def _fast(self, diary: Diary, wait: float) -> None:
        async with self._clients[0].lock(self._names.efficiency, tier=fencepost.EFFICIENCY, wait=wait) as lock:
            await self._work(diary, lock)

    async def _job(self, diary: Diary, wait: float) -> None:
        await self._clients[1].job(self._names.job, key=f"task {self.attempts}", wait=wait).run_async(
            lambda job: self._work(diary, job)
        )

    _works = (_block, _block, _block, _without_a_block, _if_free, _upgrade, _read, _several, _permit, _fast, _job)


class TimeOuts:
    """Waits on threads that are not the main thread, until so many waits have timed out."""

    def __init__(self, client: Client, names: Names, count: int) -> None:
        self.left = count
        self._client = client
        self._names = names.locks[:2]

    def run(self, diary: Diary, rng: random.Random) -> None:
        until = time.monotonic() + RUN_S
        # Together, because a thread that is left alone waits for no other.
        while self.left > 0:
            assert time.monotonic() < until, f"{self.left} waits are left that should time out"
            try:
                with self._client.lock(rng.choice(self._names), wait=rng.uniform(0, 0.01)) as lock:
                    note = diary.block(lock)
                    # Others of these threads time out meanwhile, also when all processes and tasks are done.
                    time.sleep(rng.choice((0, 0.01)))
                    note()
            except EXPECTED:
                self.left -= 1


# ---- Pauses

LANES = 10 if IS_SOAK else 5


def older_after_newer(rows: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The writes that a store should have refused. The rows are names and tokens, in the order in which the store took them."""
    newest: dict[str, int] = {}
    wrong = []
    for name, token in rows:
        if token < newest.get(name, 0):
            wrong.append((name, token))
        newest[name] = max(token, newest.get(name, 0))
    return wrong


def false_claims(calls: Sequence[Call], granted_at: int) -> list[str]:
    """The answers of a lost lock that say that it is held, after its successor had it; and answers that say for how long, and were wrong."""
    wrong = []
    lost_at = None
    for began, what, answer in calls:
        if answer < 0:
            lost_at = began
        elif began > granted_at:
            wrong.append(f"{what} says that the lock is held, {(began - granted_at) / 1e6:.3f} ms after the successor had it")
        elif began + answer * 1e9 > granted_at:
            wrong.append(f"{what} promises the lock until {(began + answer * 1e9 - granted_at) / 1e6:.3f} ms after the successor had it")
        elif lost_at is not None:
            wrong.append(f"{what} says that the lock is held, {(began - lost_at) / 1e6:.3f} ms after another call said that it is lost")
    return wrong


def test_late_writes_and_false_claims_would_be_seen() -> None:
    assert older_after_newer([("a", 1), ("b", 1), ("a", 3), ("a", 3), ("b", 2)]) == []
    assert older_after_newer([("a", 1), ("a", 3), ("a", 2), ("b", 1), ("a", 1)]) == [("a", 2), ("a", 1)]
    second = 1_000_000_000
    held: list[Call] = [(1 * second, "check", 0.0), (2 * second, "remaining", 0.9), (3 * second - 1, "is_held", 0.0)]
    lost: list[Call] = [(3 * second + 1, "check", -1.0), (4 * second, "remaining", -1.0)]
    assert false_claims([*held, *lost], granted_at=3 * second) == []
    for late in ((3 * second + 1, "check", 0.0), (2 * second, "remaining", 1.1)):
        assert len(false_claims([*held, late, *lost], granted_at=3 * second)) == 1
    assert len(false_claims([*held, *lost, (4 * second, "lost", 0.0)], granted_at=5 * second)) == 1


def test_a_holder_that_was_stopped_past_its_lease_does_no_harm(tmp_path: Path, name: str, seed: int, figures: Figures) -> None:
    file = tmp_path / "store.db"
    with closing(sqlite3.connect(file)) as store:
        for table in ("guarded", "bare"):
            store.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, token INTEGER)")
        fence.install(store)
    with Server() as server:
        pauses = asyncio.run(pause_in_lanes(server, str(file), name, random.Random(seed)))
    with closing(sqlite3.connect(file)) as store:
        guarded, bare = (store.execute(f"SELECT name, token FROM {table} ORDER BY id").fetchall() for table in ("guarded", "bare"))
    assert pauses.count == PAUSES and pauses.wrong == []
    assert older_after_newer(guarded) == []
    # The same pauses do harm where there is no guard, and this test sees it.
    harm = len(older_after_newer(bare))
    assert harm == pauses.refused == PAUSES, (harm, pauses.refused)
    figures(
        f"{PAUSES} holders were stopped past a TTL of {soak_workers.TTL_S:.0f} s: none of {pauses.calls} calls after the successor's grant said "
        f"that the lock is held, and the last promise ended {min(pauses.spare_ms):.0f} ms or more before that grant; {pauses.refused} late "
        f"writes were refused, and {harm} came through without the guard; {pauses.lost_by_successor} successors lost their lock, too"
    )


class Pauses:
    """What the lanes have counted."""

    def __init__(self) -> None:
        self.left = PAUSES
        self.count = 0
        self.refused = 0
        #: Calls that began after the successor had the lock.
        self.calls = 0
        #: The milliseconds between the end of what a call of the stopped holder promised and the grant of its successor.
        self.spare_ms: list[float] = []
        self.lost_by_successor = 0
        self.wrong: list[str] = []


async def pause_in_lanes(server: Server, store: str, name: str, rng: random.Random) -> Pauses:
    """Lanes run at the same time, because most of a pause is waiting. Each has a lock, and two workers that hold it in turns."""
    pauses = Pauses()
    async with AsyncExitStack() as stack:
        pairs = [
            [await stack.enter_async_context(Worker("paused", address=server.address, store=store)) for _ in range(2)]
            for _ in range(LANES)
        ]

        async def lane(pair: list[Worker], name: str) -> None:
            while pauses.left > 0:
                pauses.left -= 1
                await pause(pauses, pair[0], pair[1], name, rng)
                pair.reverse()
            for worker in pair:
                await worker.end()

        await asyncio.gather(*(lane(pair, f"{name}/{number}") for number, pair in enumerate(pairs)))
    return pauses


async def pause(pauses: Pauses, holder: Worker, successor: Worker, name: str, rng: random.Random) -> None:
    """Stops a holder until its successor has the lock, and then lets it do what it would do if it had not been stopped."""
    waits_before = rng.random() < 0.5
    writes_before = rng.random() < 0.5
    old = await holder.do("acquire", name=name, asks=True)
    if waits_before:
        successor.tell("acquire", name=name, asks=False)
    holder.signal(signal.SIGSTOP)
    if not waits_before:
        successor.tell("acquire", name=name, asks=False)
    new = await successor.answer()
    assert new["token"] > old["token"]
    # The late write comes after the write of the successor, or between its claim and its write.
    written = await successor.do("write") if writes_before else None
    holder.signal(signal.SIGCONT)
    calls: list[Call] = [(began, what, answer) for began, what, answer in (await holder.answer())["calls"]]
    late = await holder.do("write")
    if written is None:
        written = await successor.do("write")
    # The guard has not refused everything.
    assert written["accepted"]
    assert (await holder.do("release"))["lost"]
    pauses.lost_by_successor += (await successor.do("release"))["lost"]

    assert calls[-1][2] < 0, "the stopped holder has heard of its loss"
    granted_at = new["granted_at"]
    pauses.wrong += false_claims(calls, granted_at)
    pauses.spare_ms += [(granted_at - began) / 1e6 - answer * 1e3 for began, _, answer in calls if answer >= 0]
    pauses.calls += sum(began > granted_at for began, _, _ in calls)
    pauses.refused += not late["accepted"]
    pauses.count += 1


# ---- Memory, threads and sessions

#: What a program may grow by: by chance, and for each lock that it asks for. If one way of sixteen forgets a small object each time, the long run
#: finds that.
BYTES_BY_CHANCE, BYTES_EACH = 256 * 1024, 4
#: The leak that the test makes to see whether it would find one.
BYTES_LEAKED = 100
#: Readings of the memory. The first and the last third are compared.
READINGS = 60 if IS_SOAK else 12


def growth(readings: Sequence[int]) -> int:
    """By how much memory grows from the first third of the readings to the last. A single reading that is high by chance does not count."""
    third = len(readings) // 3
    return min(readings[-third:]) - min(readings[:third])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc, which only Linux has")
def test_memory_threads_and_sessions_stay_the_same(name: str, seed: int, figures: Figures) -> None:
    with Server() as server:
        shown = asyncio.run(take_many(server, name))
    figures(shown)


async def take_many(server: Server, name: str) -> str:
    async with AsyncExitStack() as stack:
        workers = {
            way: await stack.enter_async_context(Worker("flat", address=server.address, name=f"{name}/{way}", way=way))
            for way in ("sync", "async")
        }
        portion = ACQUIRES // len(workers) // READINGS

        async def run(worker: Worker) -> list[dict[str, int]]:
            readings = [await worker.do("acquire", count=portion) for _ in range(READINGS)]
            readings.append(await worker.do("leak", count=portion * READINGS * 2 // 3, size=BYTES_LEAKED))
            return readings

        # The first locks fill tables and caches, which do not grow after that.
        await asyncio.gather(*(worker.do("acquire", count=2_000) for worker in workers.values()))
        sessions = len(await listed(server, "sessions"))
        every = await asyncio.gather(*(run(worker) for worker in workers.values()))
        assert len(await listed(server, "sessions")) == sessions
        for worker in workers.values():
            await worker.end()
        assert await listed(server, "sessions") == []
    shown = []
    for way, (*readings, leaking) in zip(workers, every, strict=True):
        count = portion * READINGS
        grows = growth([reading["memory"] for reading in readings])
        print(way, [reading["memory"] >> 10 for reading in readings], leaking["memory"] >> 10)
        bound = BYTES_BY_CHANCE + BYTES_EACH * count * 2 // 3
        assert grows <= bound, f"{way}: {count} locks take {grows >> 10} KiB more: {readings}"
        # The same reading finds a leak.
        assert leaking["memory"] - readings[-1]["memory"] > bound, (way, leaking, readings[-1])
        for what in ("threads", "files"):
            assert readings[0][what] == readings[-1][what], (way, what, readings)
        shown.append(
            f"{count} locks {way}: {readings[0]['memory'] / 2**20:.1f} MiB, then {grows / 1024:+.0f} KiB, "
            f"{readings[-1]['threads']} threads, {readings[-1]['files']} files"
        )
    return "; ".join(shown) + f"; {sessions} sessions before and after"
