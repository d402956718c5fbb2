"""The programs that ``test_soak.py`` runs in processes of their own.

- ``Interrupted`` is a program whose main thread gets signals while it takes and gives back locks.
- ``Paused`` is a holder that is stopped past its lease, and uses its lock when it wakes up.
- ``Flat`` is a program that takes many locks, and reads its own memory.

A worker reads orders from its standard input, one JSON object a line: the name of a method and its arguments. It answers each with one line.
It ends with the process that started it, also while it is stopped. This file also has the attempts and the diary that tasks and threads of
the test itself use.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Any, NamedTuple

import fencepost
from fencepost import fence

#: What a pause is longer than. It is the shortest TTL.
TTL_S = 1.0
#: How often a holder that has woken up asks again after it has heard of the loss.
ASKS_AFTER_LOSS = 1_000


class Moment(NamedTuple):
    """A moment at which a block certainly ran, in the nanoseconds of the clock that all processes of a machine share."""

    time_ns: int
    name: str
    #: Tells the blocks apart.
    block: str
    #: ``None`` for the efficiency tier, which has no tokens.
    token: int | None
    is_alone: bool


class Diary:
    """The moments of one thread or loop."""

    def __init__(self, who: str) -> None:
        self.moments: list[Moment] = []
        self._who = who
        self._blocks = 0

    def block(self, lock: fencepost.Held, *, is_alone: bool = True) -> Callable[[], None]:
        """Begins the entries of a block. What it returns is to be called in the block, and notes that the block still runs."""
        self._blocks += 1
        block = f"{self._who} {self._blocks}"
        if isinstance(lock, fencepost.MultiLock):
            tokens: dict[str, int | None] = {name: lock.token(name) for name in lock.names}
        else:
            tokens = {lock.name: getattr(lock, "fence_token", None)}

        def note() -> None:
            now = time.monotonic_ns()
            self.moments += [Moment(now, name, block, token, is_alone) for name, token in tokens.items()]

        note()
        return note


class Names(NamedTuple):
    """The names that all compete for. A semaphore and a lock have names of their own, as the server refuses to mix them."""

    locks: list[str]
    semaphore: str
    efficiency: str
    job: str

    @staticmethod
    def below(name: str) -> Names:
        return Names([f"{name}/{number}" for number in range(4)], f"{name}/permits", f"{name}/fast", f"{name}/job")


#: No answer, and no other surprise, may come of a healthy server.
EXPECTED = (fencepost.LockTimeout, fencepost.LockBusy)
#: Long enough that nothing times out in a healthy run, so that only short waits do.
LONG_S = 120.0


# ---- Interrupted by signals


class Injected(KeyboardInterrupt):
    """What the signal handler raises."""


class Interrupter:
    """Raises an exception at a random moment of a function, from a real timer and a signal handler.

    It raises only while the function runs, never in the code around it: the handler looks for the frame of ``_inside``.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left = 0
        self._typical_s = 0.002
        #: Set by code that must not be interrupted: an assignment is one step, so no signal comes between.
        self.is_shielded = False
        #: What the package was asked to do when it was raised.
        self.places: Counter[str] = Counter()
        #: Raised where Python cannot pass it on, for example in `__del__`.
        self.swallowed = 0
        signal.signal(signal.SIGALRM, self._handle)
        sys.unraisablehook = self._unraisable

    def interrupt(self, work: Callable[[], None]) -> bool:
        """Runs the function, and tells whether it was interrupted. Other exceptions pass."""
        rng = self._rng
        # Around the usual length of the work, right at its beginning, or much later: then it waits for another holder.
        upper = rng.choice((2 * self._typical_s, 0.000_2, 0.02))
        # A person who is in a hurry presses Ctrl-C twice.
        before = self._left = rng.choice((1, 1, 1, 2, 3))
        self.is_shielded = False
        began = time.monotonic()
        try:
            self._signal_within(upper)
            self._inside(work)
            self._typical_s += 0.05 * (min(time.monotonic() - began, 0.02) - self._typical_s)
        except Injected:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._left < before

    def _inside(self, work: Callable[[], None]) -> None:
        work()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._left == 0 or self.is_shielded:
            return
        called, caller = None, frame
        #: Whether the frames so far belong to one call of the package, or to a function of Python below it.
        is_inside = True
        while caller is not None:
            module = caller.f_globals.get("__name__", "")
            if is_inside and module.startswith("fencepost"):
                called = caller
            elif called is not None or module == __name__:
                is_inside = False
            if caller.f_code is Interrupter._unraisable.__code__:
                return
            if caller.f_code is Interrupter.soon.__code__:
                # Later: a program that is interrupted between two lines has to give back itself what it has taken in the first.
                self._signal_within(0.000_1)
                return
            if caller.f_code is Interrupter._inside.__code__:
                self._left -= 1
                # Not a repeating timer, which could interrupt this handler again and again.
                self._signal_within(0.000_5)
                self.places["the program's own code" if called is None else called.f_code.co_qualname] += 1
                raise Injected
            caller = caller.f_back

    def soon(self) -> None:
        """Sets the timer again now and then, so that what comes next is interrupted more often than its length would make it.

        This itself is never interrupted.
        """
        if self._left > 0 and self._rng.random() < 0.3:
            self._signal_within(0.000_3)

    def _signal_within(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(self._rng.uniform(0, seconds), 1e-6))

    def _unraisable(self, what: Any) -> None:
        if isinstance(what.exc_value, Injected):
            self.swallowed += 1
        else:
            sys.__unraisablehook__(what)


class Interrupted:
    """A program whose main thread is interrupted at random moments."""

    def __init__(self, address: str, name: str, seed: int) -> None:
        self._rng = random.Random(seed)
        self._client = fencepost.connect(address, name=f"interrupted {seed}")
        self._names = Names.below(name)
        self._diary = Diary(f"process {seed}")
        self._interrupter = Interrupter(self._rng)
        self._jobs = 0
        self._attempts = 0

    def run(self, count: int) -> dict[str, Any]:
        """Takes locks until that many attempts were interrupted."""
        interrupted = 0
        while interrupted < count:
            self._attempts += 1
            work = self._rng.choice(self._ways)
            with contextlib.suppress(*EXPECTED):
                interrupted += self._interrupter.interrupt(lambda: work(self))
        return {"attempts": self._attempts}

    def report(self) -> dict[str, Any]:
        interrupter = self._interrupter
        return {"diary": self._diary.moments, "places": interrupter.places, "swallowed": interrupter.swallowed}

    def close(self) -> dict[str, Any]:
        self._client.close()
        return {}

    def _lock(self, **terms: Any) -> Any:
        wait = self._rng.choice((LONG_S, LONG_S, 0.002))
        return self._client.lock(self._rng.choice(self._names.locks), **{"wait": wait, **terms})

    def _work(self, lock: fencepost.Held, /, **words: Any) -> None:
        note = self._diary.block(lock, **words)
        for _ in range(self._rng.randrange(3)):
            time.sleep(0)
        note()
        self._interrupter.soon()

    def _block(self) -> None:
        with self._lock() as lock:
            self._work(lock)

    def _without_a_block(self) -> None:
        lock = self._lock().acquire()
        try:
            self._work(lock)
        finally:
            try:
                lock.release()
            except Injected:
                # It can come before the first line of `release`. A program without a block has to ask again.
                self._interrupter.is_shielded = True
                if lock.is_held:
                    lock.release()
                raise

    def _if_free(self) -> None:
        lock = self._lock().try_acquire()
        if lock is not None:
            self._interrupter.soon()
            with lock:
                self._work(lock)

    def _upgrade(self) -> None:
        with self._lock(mode=fencepost.UPDATE) as lock:
            self._interrupter.soon()
            writer = lock.upgrade(self._rng.choice((LONG_S, 0.002)))
            self._work(writer)

    def _read(self) -> None:
        with self._lock(mode=fencepost.SHARED) as lock:
            self._work(lock, is_alone=False)

    def _several(self) -> None:
        with self._client.lock(*self._rng.sample(self._names.locks, 2), wait=LONG_S) as lock:
            self._work(lock)

    def _wait_for_the_loss(self) -> None:
        with self._lock(max_hold=60) as lock:
            note = self._diary.block(lock)
            lock.extend(50)
            lock.lost.wait(0.001)
            note()

    def _permit(self) -> None:
        with self._client.semaphore(self._names.semaphore, limit=2, wait=LONG_S):
            pass

    def _fast(self) -> None:
        with self._client.lock(self._names.efficiency, tier=fencepost.EFFICIENCY, wait=LONG_S) as lock:
            self._work(lock)

    def _job(self) -> None:
        self._jobs += 1
        job = self._client.job(self._names.job, key=f"{os.getpid()}/{self._jobs}", wait=LONG_S)
        job.run(lambda job: self._work(job))

    def _decorated(self) -> None:
        self._client.locked(self._rng.choice(self._names.locks), pass_lock=True, wait=LONG_S)(self._work)()

    _ways = (
        _block,
        _block,
        _block,
        _without_a_block,
        _without_a_block,
        _if_free,
        _if_free,
        _upgrade,
        _upgrade,
        _read,
        _several,
        _wait_for_the_loss,
        _permit,
        _fast,
        _job,
        _decorated,
    )


# ---- Stopped past the lease


class Paused:
    """A holder that believes in its lock when it wakes up.

    It leaves a row in two tables of a SQLite file when it gets the lock, and with each write. Writes to ``guarded`` show their token to the
    guard, writes to ``bare`` do not.
    """

    def __init__(self, address: str, store: str) -> None:
        self._client = fencepost.connect(address, ttl=TTL_S)
        # The other workers write, too, and a machine can be slow.
        self._store = sqlite3.connect(store, timeout=60)
        self._store.execute("PRAGMA synchronous = OFF")
        self._lock: fencepost.Lock | None = None
        self._writer = ("", fencepost.FenceToken(1))

    def acquire(self, name: str, *, asks: bool) -> dict[str, Any]:
        """Waits for the lock. With ``asks`` it says so at once, and then asks whether it holds the lock until long after its loss."""
        while True:
            lock = self._client.lock(name, wait=LONG_S).acquire()
            granted_at = time.monotonic_ns()
            try:
                self._writer = (name, lock.fence_token)
                break
            except fencepost.LockLost:
                continue  # The machine is so slow that the lease is over.
        self._lock = lock
        with self._store:
            self._store.execute("INSERT INTO bare (name, token) VALUES (?, ?)", self._writer)
        with self._store:
            fence.claim(self._store, self._writer)
            self._store.execute("INSERT INTO guarded (name, token) VALUES (?, ?)", self._writer)
        grant = {"token": self._writer[1], "granted_at": granted_at}
        return {"calls": ask(lock, lambda: say(grant))} if asks else grant

    def write(self) -> dict[str, Any]:
        """Writes as a program does that does not look at its lock again."""
        with self._store:
            self._store.execute("INSERT INTO bare (name, token) VALUES (?, ?)", self._writer)
        try:
            with self._store:
                fence.write(self._store, self._writer)
                self._store.execute("INSERT INTO guarded (name, token) VALUES (?, ?)", self._writer)
        except fence.StaleToken:
            return {"accepted": False}
        return {"accepted": True}

    def release(self) -> dict[str, Any]:
        """Gives the lock back, and tells whether it was lost."""
        assert self._lock is not None
        lock, self._lock = self._lock, None
        try:
            lock.release()
        except fencepost.LockLost:
            return {"lost": True}
        return {"lost": False}

    def close(self) -> dict[str, Any]:
        self._store.close()
        self._client.close()
        return {}


#: An answer of a held lock: when the call began, what was asked, and for how many more seconds the lock is held according to the answer; -1
#: if the answer was that it is lost.
Call = tuple[int, str, float]


def ask(lock: fencepost.Lock, say_so: Callable[[], None]) -> list[Call]:
    """Asks as fast as it can, until some time after the loss. Returns the last answers before the loss, and all answers after it.

    Says so when everything has been asked once.
    """

    def check() -> float:
        lock.check()
        return 0.0

    # A function gives a number that is not negative if the lock is held according to it.
    asks: tuple[tuple[str, Callable[[], float]], ...] = (
        ("check", check),
        ("fence_token", lambda: 0.0 * lock.fence_token),
        ("remaining", lambda: lock.remaining),
        ("is_held", lambda: 0.0 if lock.is_held else -1.0),
        ("lost", lambda: -1.0 if lock.lost else 0.0),
    )
    before: deque[Call] = deque(maxlen=ASKS_AFTER_LOSS)
    after: list[Call] = []
    is_said = False
    while len(after) < ASKS_AFTER_LOSS:
        for what, function in asks:
            began = time.monotonic_ns()
            try:
                answer = function()
            except fencepost.LockLost:
                answer = -1.0
            if after or answer < 0:
                after.append((began, what, answer))
            else:
                before.append((began, what, answer))
        if not is_said:
            is_said = True
            say_so()
    return [*before, *after]


# ---- Many locks


class Flat:
    """A program that takes many locks, in every way that it may."""

    def __init__(self, address: str, name: str, way: str) -> None:
        self._address = address
        self._name = name
        self._client = fencepost.connect(address)
        self._holder = fencepost.connect(address)
        self._is_async = way == "async"
        self._held = self._holder.lock(f"{name}/held").acquire()
        self._done = 0
        self._leak: list[bytearray] = []

    def acquire(self, count: int) -> dict[str, Any]:
        """Asks for that many locks, then reads what this process uses."""
        if self._is_async:
            asyncio.run(self._acquire_async(count))
        else:
            self._acquire(count)
        return used()

    def leak(self, count: int, size: int) -> dict[str, Any]:
        """Keeps memory, so that the test can see whether it would find a leak."""
        self._leak += [bytearray(size) for _ in range(count)]
        return used()

    def close(self) -> dict[str, Any]:
        self._held.release()
        self._holder.close()
        self._client.close()
        return {}

    def _acquire(self, count: int) -> None:
        client, held = self._client, self._held.name

        @client.locked(self._name + "/decorated:{id}", on_busy="skip")
        def decorated(id: int) -> None:
            pass

        for _ in range(count):
            self._done += 1
            done, name = self._done, f"{self._name}/{self._done}"
            match done % 16:
                case 0:
                    assert client.lock(held).try_acquire() is None
                # Less often: where nothing else happens, the cluster looks at its clock every 200 ms, and ends the wait then.
                case 1 if done % 128 == 1:
                    assert refused(client.lock(held, wait=0.000_5).acquire)
                case 2:
                    with client.lock(name, on_lost=print) as lock:
                        lock.check()
                        assert lock.fence_token and lock.remaining and not lock.lost
                case 3:
                    decorated(done)
                case 4:
                    client.job(self._name, key=str(done), keep=60).run(lambda job: "done")
                case 5:
                    with client.lock(name, mode=fencepost.UPDATE) as reader:
                        reader.upgrade()
                case 6:
                    with client.lock(name, f"{name}/b"):
                        pass
                case 7:
                    with client.lock(name, tier=fencepost.EFFICIENCY):
                        pass
                case 8:
                    with client.semaphore(f"{self._name}/permits", limit=3):
                        pass
                case 9:
                    free = client.lock(name).try_acquire()
                    assert free is not None
                    free.release()
                case 10:
                    client.lock(name, ttl=90).acquire().release()
                case 11 if done % 512 == 11:
                    lock = client.lock(name, max_hold=0.01, on_lost=lambda loss: None).acquire()
                    assert lock.lost.wait(60)
                case 12 if done % 512 == 12:
                    with fencepost.connect(self._address) as short, short.lock(name):
                        pass
                case _:
                    with client.lock(name) as lock:
                        assert lock.lost.wait(0) is False

    async def _acquire_async(self, count: int) -> None:
        tasks = [asyncio.create_task(self._task(count // 8)) for _ in range(8)]
        await asyncio.gather(*tasks)

    async def _task(self, count: int) -> None:
        client, held = self._client, self._held.name
        for _ in range(count):
            self._done += 1
            done, name = self._done, f"{self._name}/{self._done}"
            match done % 16:
                case 0:
                    assert await client.lock(held).try_acquire_async() is None
                case 1:
                    try:
                        await client.lock(held, wait=0.000_5)
                    except fencepost.LockTimeout:
                        pass
                case 2:
                    async with client.lock(name, on_lost=print) as lock:
                        lock.check()
                        assert lock.fence_token and lock.remaining and not lock.lost
                case 3:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.001), client.lock(held):
                            pass
                case 4:
                    waits = asyncio.create_task(client.lock(held).acquire_async())
                    await asyncio.sleep(0)
                    waits.cancel()
                    await asyncio.gather(waits, return_exceptions=True)
                case 5:
                    async with client.lock(name, mode=fencepost.UPDATE) as reader:
                        await reader.upgrade_async()
                case 6:
                    async with client.lock(name, tier=fencepost.EFFICIENCY):
                        pass
                case 7:
                    async with client.lock(f"{self._name}/shared by all tasks"):
                        await asyncio.sleep(0)
                case 8:
                    lock = await client.lock(name)
                    waits_for_loss = asyncio.create_task(lock.lost.wait_async())
                    await asyncio.sleep(0)
                    await lock.release_async()
                    assert await waits_for_loss is False
                case _:
                    async with client.lock(name):
                        pass


def refused(acquire: Callable[[], object]) -> bool:
    try:
        acquire()
    except fencepost.LockTimeout:
        return True
    return False


def used() -> dict[str, Any]:
    """The memory of this process in bytes, its threads, and its open files, after what is free was given back to the system."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # Not every C library has it.
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    # These threads stay for ten seconds, in case that another lock is lost.
    idle = sum(thread.name == "fencepost-on-lost" for thread in threading.enumerate())
    return {"memory": resident, "threads": len(os.listdir("/proc/self/task")) - idle, "files": len(os.listdir("/proc/self/fd"))}


# ---- The line to the test


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def die_with_parent() -> None:
    """The end of the pipe ends a worker, unless it is stopped. Linux kills a stopped one, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    die_with_parent()
    kind = {"interrupted": Interrupted, "paused": Paused, "flat": Flat}[sys.argv[1]]
    worker = kind(**json.loads(sys.argv[2]))
    for line in sys.stdin:
        order = json.loads(line)
        say(getattr(worker, order.pop("do"))(**order))


if __name__ == "__main__":
    main()
