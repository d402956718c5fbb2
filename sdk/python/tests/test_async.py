"""Locks of tasks: cancellation at each step, the loss of the lock of a block, and event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from conftest import PATIENCE_S, eventually

import fencepost
from fencepost import Client
from fencepost._locks import _LossScope
from fencepost._waiting import finish_async

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await main

    return asyncio.run(bounded())


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)


class SteppedLoop:
    """An event loop that a test drives by hand, one iteration at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def step(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def step_when_ready(self, task: asyncio.Task[Any]) -> None:
        """Waits until the loop has work from another thread, then does one iteration."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.loop._ready and not task.done():  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, "the loop gets no work"
            time.sleep(0.0005)
        self.step()

    def finish(self, task: asyncio.Task[Any]) -> None:
        while not task.done():
            self.step_when_ready(task)


def test_a_block_holds_the_lock_and_gives_it_back(client: Client, other: Client, name: str) -> None:
    async def main() -> None:
        async with client.lock(name, ttl=30, wait=5) as lock:
            assert lock.is_held and isinstance(lock.fence_token, fencepost.FenceToken)
            assert await other.lock(name).try_acquire_async() is None
        assert not lock.is_held and (await other.explain_async(name)).is_free
        lock = await client.lock(name)
        async with lock as same:
            assert same is lock
        with pytest.raises(fencepost.AlreadyReleased):
            await lock.release_async()
        await client.close_async()

    run(main())


def test_one_client_serves_several_event_loops(client: Client, name: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> int:
        async with client.lock(name) as lock:
            return lock.fence_token

    tokens = [run(main()), run(main()), asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())]
    assert tokens == sorted(set(tokens))
    with client.lock(name) as lock:
        assert lock.fence_token > tokens[-1]


def test_a_wait_that_would_block_the_event_loop_is_refused(client: Client, name: str) -> None:
    async def main() -> None:
        lock = await client.lock(name, max_hold=60)
        calls: list[Callable[[], Any]] = [
            client.lock(name).acquire,
            client.lock(name).try_acquire,
            client.lock(name).__enter__,
            lock.release,
            lambda: lock.extend(1),
            lock.lost.wait,
            client.close,
            lambda: client.explain(name),
            lambda: client.job(name, key="k").acquire(),
            lambda: next(iter(client.watch(name))),
            client.election(name).leader,
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="would block the event loop of this thread: use `"):
                call()
        assert lock.is_held
        # A thread without an event loop may wait.
        await asyncio.to_thread(lock.release)

    run(main())


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_queue(client: Client, other: Client, name: str) -> None:
    async def main() -> None:
        async with other.lock(name):
            waiting = asyncio.create_task(client.lock(name).acquire_async())
            await until("it waits", lambda: is_waiting(other, name, 1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until("it waits no more", lambda: is_waiting(other, name, 0))
        async with other.lock(name, wait=0):
            pass

    run(main())


async def is_waiting(client: Client, name: str, count: int) -> bool:
    return (await client.explain_async(name)).waiting == count


@pytest.mark.parametrize("is_held", [False, True], ids=["a free lock", "a lock that another client holds"])
def test_a_task_that_is_cancelled_at_any_step_leaves_nothing(
    client: Client, other: Client, name: str, is_held: bool
) -> None:
    """Cancels a task before its first step, after its first step, and so on, until it needs no more steps."""
    stepped = SteppedLoop()
    states: list[str] = []

    async def block() -> None:
        states.append("asks")
        async with client.lock(name, wait=30):
            states.append("in the block")
            await asyncio.sleep(0)
            states.append("leaves")
        states.append("left")

    def cancel_at(step: int) -> bool:
        """False if the task needs fewer steps."""
        blocker = other.lock(name, wait=30).acquire() if is_held else None
        states.clear()
        task = stepped.loop.create_task(block())
        for number in range(step):
            if blocker is not None and number == 1:
                eventually("the task waits", lambda: other.explain(name).waiting == 1)
                blocker.release()
                blocker = None
            stepped.step_when_ready(task)
        task.cancel()
        stepped.finish(task)
        seen.add(states[-1] if states else "not begun")
        if blocker is not None:
            blocker.release()
        eventually(f"nothing is left after step {step}", lambda: other.explain(name).is_free)
        assert task.cancelled() or task.exception() is None
        return task.cancelled()

    def cancel_at_each_step() -> bool:
        # An answer that comes early saves a step. So one round may not meet every state.
        assert not all(cancel_at(step) for step in range(60)), "the task needs more than 60 steps"
        return {"not begun", "asks", "in the block", "leaves"} <= seen

    seen: set[str] = set()
    eventually("it was cancelled in each state", cancel_at_each_step)


class FakeRequest:
    """A request whose result comes when the test says so."""

    def __init__(self) -> None:
        self.done: Callable[[], None] = lambda: None
        self.calls: list[str] = []

    def listen(self, function: Callable[[], None]) -> bool:
        self.done = function
        return True

    def take(self) -> str:
        self.calls.append("take")
        return "the grant"

    def abandon(self) -> None:
        self.calls.append("abandon")


@pytest.mark.parametrize("moment", ["before the result", "when the future is done", "after the result"])
def test_a_result_is_taken_or_given_up(moment: str) -> None:
    stepped, request = SteppedLoop(), FakeRequest()
    task = stepped.loop.create_task(finish_async(request, lambda grant: grant))  # type: ignore[arg-type]
    stepped.step()
    if moment == "before the result":
        task.cancel()
    else:
        request.done()
        # The first step resolves the future; the task runs in the second.
        stepped.step()
        if moment == "after the result":
            stepped.step()
        task.cancel()
    stepped.finish(task)
    if moment == "after the result":
        assert task.result() == "the grant" and request.calls == ["take"]
    else:
        assert task.cancelled() and request.calls == ["abandon"]


def test_a_result_that_cannot_be_used_is_given_up() -> None:
    request = FakeRequest()

    def interrupted(grant: str) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        waiting = asyncio.ensure_future(finish_async(request, interrupted))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        request.done()
        await waiting

    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert request.calls == ["take", "abandon"]


def test_a_task_that_is_cancelled_while_it_leaves_still_releases(client: Client, other: Client, name: str) -> None:
    async def block(entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with client.lock(name):
            entered.set()
            await leave.wait()

    async def is_cancelled_while_it_leaves() -> bool:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(block(entered, leave))
        await entered.wait()
        leave.set()
        # The task runs into `__aexit__` and awaits the release, unless the answer is there already.
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with other.lock(name, wait=30):
            pass
        return task.cancelled()

    run(until("a task is cancelled while it leaves", is_cancelled_while_it_leaves))


def test_the_loss_of_its_lock_cancels_a_block_and_raises_lock_lost(
    client: Client, broken: Callable[[str], Any], name: str
) -> None:
    async def main() -> None:
        stopped: list[str] = []
        with pytest.raises(fencepost.LockLost, match="the test says so") as raised:
            async with client.lock(name) as lock:
                breaking = asyncio.create_task(asyncio.to_thread(broken, name))
                try:
                    await asyncio.sleep(PATIENCE_S)
                except asyncio.CancelledError as cancelled:
                    stopped.append(str(cancelled))
                    raise
        assert stopped == ["fencepost: the lock of this block is lost"] and not lock.is_held
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await breaking

    run(main())


def test_leaving_a_block_after_a_loss_raises_even_if_the_cancellation_was_swallowed(
    client: Client, broken: Callable[[str], Any], name: str
) -> None:
    async def main() -> None:
        with pytest.raises(fencepost.LockLost):
            async with client.lock(name):
                breaking = asyncio.create_task(asyncio.to_thread(broken, name))
                try:
                    await asyncio.sleep(PATIENCE_S)
                except asyncio.CancelledError:
                    pass
        await breaking

    run(main())


def test_a_body_that_raises_its_own_exception_after_a_loss_keeps_it(
    client: Client, broken: Callable[[str], Any], name: str
) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError) as raised:
            async with client.lock(name):
                breaking = asyncio.create_task(asyncio.to_thread(broken, name))
                try:
                    await asyncio.sleep(PATIENCE_S)
                finally:
                    1 / 0  # noqa: B018
        assert "the lock is lost" in raised.value.__notes__[0]
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await breaking

    run(main())


def test_a_cancellation_from_outside_is_not_turned_into_a_loss(
    client: Client, broken: Callable[[str], Any], name: str
) -> None:
    async def main() -> None:
        async def block() -> None:
            async with client.lock(name):
                entered.set()
                await asyncio.sleep(PATIENCE_S)

        entered = asyncio.Event()
        task = asyncio.create_task(block())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        # Both at the same time: the cancellation from outside counts.
        async def lost_and_cancelled() -> None:
            async with client.lock(name):
                entered.set()
                try:
                    await asyncio.sleep(PATIENCE_S)
                except asyncio.CancelledError:
                    me = asyncio.current_task()
                    assert me is not None
                    me.cancel()
                    raise

        entered.clear()
        task = asyncio.create_task(lost_and_cancelled())
        await entered.wait()
        await asyncio.to_thread(broken, name)
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_timeout_around_or_within_a_block_stays_a_timeout(client: Client, other: Client, name: str) -> None:
    async def main() -> None:
        async with client.lock(name):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    async with other.lock(name, wait=None):
                        raise AssertionError("two holders")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                async with client.lock(name):
                    await asyncio.sleep(PATIENCE_S)
        async with other.lock(name, wait=30):
            pass

    run(main())


def test_a_loss_after_the_block_cancels_nothing(client: Client, name: str) -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with client.lock(name) as lock:
            scope = lock._scope
            assert isinstance(scope, _LossScope)
        # The bridge may have scheduled it before the block was left.
        scope._fire()
        await asyncio.sleep(0)
        assert task.cancelling() == 0

    run(main())


def test_a_waiter_of_the_loss_signal_wakes_at_a_loss_and_at_a_release(
    client: Client, broken: Callable[[str], Any], name: str
) -> None:
    async def main() -> None:
        first, second = await client.lock(f"{name}/a"), await client.lock(f"{name}/b")
        waiters = [asyncio.create_task(lock.lost.wait_async()) for lock in (first, second)]
        await asyncio.sleep(0)
        await asyncio.to_thread(broken, f"{name}/a")
        await second.release_async()
        assert await asyncio.gather(*waiters) == [True, False]

    run(main())


def test_child_tasks_do_not_enter_the_lock_of_their_parent(client: Client, name: str) -> None:
    async def main() -> None:
        async with client.lock(name):
            child = asyncio.create_task(client.lock(name).try_acquire_async())
            assert await child is None

    run(main())


def test_watches_elections_and_jobs_of_tasks(client: Client, other: Client, name: str) -> None:
    async def main() -> None:
        # A watch shows that a session begins, whatever it holds.
        await (await client.lock(f"{name}/before")).release_async()
        watch = await other.watch(name).start_async()
        # A step that is given up misses nothing.
        missed = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        missed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await missed
        async with client.lock(name) as lock:
            token = lock.fence_token
        first = await anext(watch)
        assert (first.kind, first.token) == ("granted", token)
        async for event in watch:
            assert event.kind == "released"
            break

        election = f"{name}/election"
        async with client.election(election).campaign("me") as leadership:
            leader = await other.election(election).leader_async()
            assert leader is not None and leader.epoch == leadership.epoch
            await leadership.set_value_async("you")
            async for change in other.election(election).observe():
                assert change is not None and change.value == b"you"
                break
            await leadership.resign_async()

        async def work(job: fencepost.Job) -> str:
            await job.checkpoint_async("half")
            last = await job.last_checkpoint_async()
            assert last is not None and last.bytes == b"half"
            return "done"

        done = await client.job(name, key="k").run_async(work)
        assert done.ran and done.result == b"done"

        @client.once(name, key="{month}")
        async def bill(month: str) -> None:
            await asyncio.sleep(0)

        assert [(await bill("may")).ran for _ in range(2)] == [True, False]

        @client.locked(name, on_busy="skip")
        async def report() -> str:
            return "a report"

        assert await report() == "a report"
        async with other.lock(name):
            assert await report() is fencepost.SKIPPED

    run(main())


def test_a_loop_that_closes_during_a_wait_leaves_no_lock(client: Client, other: Client, name: str) -> None:
    stepped = SteppedLoop()
    with other.lock(name):
        task = stepped.loop.create_task(client.lock(name, wait=None).acquire_async())
        stepped.step()
        eventually("the task waits", lambda: other.explain(name).waiting == 1)
        stepped.loop.close()
    # The task is still there, and can never run again.
    eventually("the lock that it was granted is given back", lambda: other.explain(name).is_free)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
