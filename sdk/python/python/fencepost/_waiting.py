"""Waiting for a request: on a thread, or in a task.

Both ways keep one promise: either the caller gets the result, or the request is given up, and a lock that it was granted is given back. So
the result stays in the request until the last step, and every way out before that gives it up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

    from ._core import Op

__all__ = ["finish", "finish_async", "refuse_running_loop"]

R = TypeVar("R")


def refuse_running_loop(instead: str) -> None:
    """Raises ``RuntimeError`` if an event loop runs on this thread: a wait would stop it."""
    events = sys.modules.get("asyncio.events")
    if events is not None and events._get_running_loop() is not None:
        raise RuntimeError(f"this call would block the event loop of this thread: use {instead}")


def finish(op: Op, use: Callable[[Any], R]) -> R:
    """Waits on this thread, and uses the result. A signal interrupts the wait, on the main thread only."""
    try:
        op.wait()
        return use(op.take())
    except BaseException:
        op.abandon()
        raise


async def finish_async(op: Op, use: Callable[[Any], R]) -> R:
    """Waits in this task, and uses the result.

    A task can be cancelled after its future is done and before it runs on. So the future only wakes the task; the result is still in the
    request, which is given up.
    """
    try:
        await _done(op)
        return use(op.take())
    except BaseException:
        op.abandon()
        raise


async def _done(op: Op) -> None:
    """Returns when the request is done."""
    import asyncio

    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake_or_give_up() -> None:
        # A program may close a loop whose tasks still wait. They never run again.
        if not wake(loop, _resolve, woken):
            op.abandon()

    if op.listen(wake_or_give_up):
        await woken


def wake(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> bool:
    """Calls a function on the thread of an event loop. False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
