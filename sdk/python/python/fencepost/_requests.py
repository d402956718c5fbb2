"""Requests for locks, permits and leaderships: their settings, and the wait for a grant. Nothing is sent before ``acquire`` or a block."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _core
from ._errors import Error, LockBusy
from ._locks import Held, Leadership, OnLost, Permits, to_bytes
from ._observe import Leader, LeaderWatch
from ._waiting import finish, finish_async, refuse_running_loop
from ._words import Duration, optional_seconds, refuse_other_words

__all__ = ["Election", "Request"]

L = TypeVar("L", bound=Held)


class Request(_core.Block, Generic[L]):
    """A request for a lock. Use it as a block, ``with`` or ``async with``, or call one of its ``acquire`` methods.

    A request can be used again, but its blocks do not overlap: ask ``client.lock()`` for a request of its own for each.
    """

    __slots__ = ("_core", "_held", "_kind", "_on_lost", "_start", "_start_now")

    def __init__(
        self,
        start: Callable[[], _core.Op],
        start_now: Callable[[], _core.Op],
        kind: type[L],
        on_lost: OnLost | None,
    ) -> None:
        super().__init__()
        self._start = start
        self._start_now = start_now
        self._kind = kind
        self._on_lost = on_lost
        #: The lock of the block that this is used for, and its core. The core is there while the block runs.
        self._held: L | _Entering | None = None
        self._core: _core.Held | None = None

    def acquire(self, **other_words: Any) -> L:
        """Waits for the lock, on this thread, and returns it held.

        Raises :class:`LockTimeout` if it was not granted within ``wait``, :class:`LockBusy` if it is not free and ``wait`` is zero,
        :class:`Deadlock` if waiting would close a cycle of owners, :class:`Failed` if nothing was done, :class:`OutcomeUnknown` if no answer
        came. An interrupted wait is cancelled, and a lock that was granted meanwhile is given back.
        """
        refuse_other_words("acquire()", other_words)
        refuse_running_loop("`async with`, or `await request.acquire_async()`")
        return finish(self._start(), self._adopt)

    async def acquire_async(self, **other_words: Any) -> L:
        """As :meth:`acquire`, in a task. A task that is cancelled at any step does not keep the lock."""
        refuse_other_words("acquire_async()", other_words)
        return await finish_async(self._start(), self._adopt)

    def try_acquire(self) -> L | None:
        """Returns the lock if it is free, and ``None`` if it is not. It does not wait."""
        refuse_running_loop("`await request.try_acquire_async()`")
        try:
            return finish(self._start_now(), self._adopt)
        except LockBusy:
            return None

    async def try_acquire_async(self) -> L | None:
        """As :meth:`try_acquire`, in a task."""
        try:
            return await finish_async(self._start_now(), self._adopt)
        except LockBusy:
            return None

    def __await__(self) -> Generator[Any, None, L]:
        return self.acquire_async().__await__()

    def __enter__(self) -> L:
        refuse_running_loop("`async with`")
        self._begin_block()
        op: _core.Op | None = None
        try:
            op = self._start()
            return finish(op, self._enter)
        except BaseException:
            # A signal can also come after the last line of `_enter`.
            if op is not None:
                op.abandon()
            self._end_block()
            raise

    async def __aenter__(self) -> L:
        self._begin_block()
        op: _core.Op | None = None
        try:
            op = self._start()
            held = await finish_async(op, self._enter)
            return await held.__aenter__()
        except BaseException:
            if op is not None:
                op.abandon()
            self._end_block()
            raise

    def _left(self, op: _core.Op | None, refused: Error | None, error: BaseException | None) -> None:
        held = self._end_block()
        held._left(op, refused, error)

    async def _left_async(self, op: _core.Op | None, refused: Error | None, error: BaseException | None) -> None:
        held = self._end_block()
        await held._left_async(op, refused, error)

    def _adopt(self, core: Any) -> L:
        return self._kind(core, self._on_lost)

    def _enter(self, core: Any) -> L:
        held = self._adopt(core)
        self._held, self._core = held, held._core
        return held

    def _begin_block(self) -> None:
        if self._held is not None:
            raise RuntimeError("this request is in a block already: ask for another one, with client.lock(), for each block")
        self._held = _ENTERING

    def _end_block(self) -> L:
        held, self._held, self._core = self._held, None, None
        return held  # type: ignore[return-value]  # In a block it is the lock of the block.


class _Entering:
    """A block whose lock is not granted yet."""


_ENTERING = _Entering()


class Election:
    """An election. See :meth:`Client.election`."""

    __slots__ = ("_client", "_name", "_on_lost", "_ttl", "_wait")

    def __init__(
        self,
        client: Callable[[], _core.Client],
        name: str,
        wait: Duration | None,
        ttl: Duration | None,
        on_lost: OnLost | None,
    ) -> None:
        self._client = client
        self._name = name
        self._wait = optional_seconds(wait, "wait")
        self._ttl = optional_seconds(ttl, "ttl")
        self._on_lost = on_lost

    def campaign(self, value: str | bytes = b"") -> Request[Leadership]:
        """A request for the leadership: ``with client.election("scheduler").campaign("10.0.0.7:9000") as leadership:``

        Observers see the value as soon as it leads.
        """
        name, shown, wait, ttl = self._name, to_bytes(value), self._wait, self._ttl
        return Request(
            lambda: self._client().campaign(name, shown, wait, ttl),
            lambda: self._client().campaign(name, shown, 0.0, ttl),
            Leadership,
            self._on_lost,
        )

    def leader(self) -> Leader | None:
        """Who leads now."""
        refuse_running_loop("`await election.leader_async()`")
        return finish(self._client().leader(self._name), Leader._of)

    async def leader_async(self) -> Leader | None:
        """As :meth:`leader`, in a task."""
        return await finish_async(self._client().leader(self._name), Leader._of)

    def observe(self) -> LeaderWatch:
        """Iterates over changes of the leader and its value, with ``for`` or ``async for``. The first item is who leads now."""
        return LeaderWatch(lambda: self._client().observe(self._name))


def permits_request(
    client: Callable[[], _core.Client],
    name: str,
    permits: int,
    limit: int | None,
    terms: tuple[float | None, float | None, float | None],
    on_lost: OnLost | None,
) -> Request[Permits]:
    """A request for permits. ``terms`` are the wait, the TTL and the longest hold."""
    wait, ttl, max_hold = terms
    return Request(
        lambda: client().semaphore(name, permits, limit, wait, ttl, max_hold),
        lambda: client().semaphore(name, permits, limit, 0.0, ttl, max_hold),
        Permits,
        on_lost,
    )
