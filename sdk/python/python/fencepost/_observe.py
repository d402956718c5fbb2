"""What observers see: events, the state of a name, and who leads.

None of it says whether a lock is held: an event describes the past. Only the holder's own object says that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._tokens import FenceToken
from ._waiting import finish, finish_async, refuse_running_loop

if TYPE_CHECKING:
    from . import _core

__all__ = ["Event", "Explanation", "Holder", "Leader", "LeaderWatch", "Waiter", "Watch"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in the cluster. The kinds are those that ``fencepost watch`` shows."""

    #: The position in the log. Give it to ``watch(after=...)`` to go on from here.
    position: str
    #: ``granted``, ``released``, ``queued``, ``session opened``, and so on.
    kind: str
    #: The leader's wall clock, for people.
    time: datetime | None
    names: tuple[str, ...]
    session: str | None
    owner: str | None
    grant: int | None
    token: int | None
    #: How a grant or a session ended; the reason of an administrator.
    how: str | None
    #: The key of a job.
    key: str | None

    @staticmethod
    def _of(fields: dict[str, Any]) -> Event:
        time = fields.pop("time")
        when = None if time is None else datetime.fromtimestamp(time, timezone.utc)
        return Event(**{**fields, "names": tuple(fields["names"]), "time": when})


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads."""

    #: The epoch of the leader. It rises with each leader.
    epoch: FenceToken
    session: str | None
    owner: str | None
    #: What the leader shows to observers.
    value: bytes

    @staticmethod
    def _of(fields: dict[str, Any] | None) -> Leader | None:
        return None if fields is None else Leader(**{**fields, "epoch": FenceToken(fields["epoch"])})


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of a name."""

    session: str | None
    owner: str | None
    grant: int
    token: int
    #: For how many seconds it has been held.
    held_for: float | None
    #: In how many seconds it ends, unless it is renewed.
    ends_in: float
    #: The path above that it holds, if it covers the name from there.
    covers_from: str | None


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits for a name."""

    session: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of a name: who holds it, who waits for it, and what else is in the way. ``fencepost why`` shows more."""

    name: str
    #: The oldest grant first.
    holders: tuple[Holder, ...]
    #: The first requests of the queue, at most 16.
    queue: tuple[Waiter, ...]
    #: How many requests wait.
    waiting: int
    #: Who has frozen the name.
    frozen_by: tuple[str, ...]
    #: How many grants rest after a loss, and keep the name busy.
    rests: int

    @property
    def is_free(self) -> bool:
        """Whether nothing is in the way of a request."""
        return not self.holders and not self.waiting and not self.frozen_by and not self.rests

    @staticmethod
    def _of(fields: dict[str, Any]) -> Explanation:
        return Explanation(
            name=fields["name"],
            holders=tuple(Holder(**holder) for holder in fields["holders"]),
            queue=tuple(Waiter(**waiter) for waiter in fields["queue"]),
            waiting=fields["waiting"],
            frozen_by=tuple(fields["frozen_by"]),
            rests=fields["rests"],
        )


class _Watch(Generic[T]):
    """Items one after the other, with ``for`` or ``async for``. The watch begins with the first step, or with ``start``."""

    __slots__ = ("_make", "_open", "_watch")

    def __init__(self, open: Callable[[], _core.Op], make: Callable[[Any], T]) -> None:
        self._open = open
        self._make = make
        self._watch: _core.Watch | None = None

    def _opened(self, watch: _core.Watch) -> _core.Watch:
        # Two threads may have begun it at the same time: one of the two watches serves both.
        first = self._watch or watch
        self._watch = first
        return first

    def _started(self) -> _core.Watch:
        return finish(self._open(), self._opened) if self._watch is None else self._watch

    async def _started_async(self) -> _core.Watch:
        return await finish_async(self._open(), self._opened) if self._watch is None else self._watch

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        refuse_running_loop("`async for`")
        watch = self._started()
        while True:
            finish(watch.next(), lambda _: None)
            for item in watch.take():
                return self._make(item)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        watch = await self._started_async()
        while True:
            await finish_async(watch.next(), lambda _: None)
            for item in watch.take():
                return self._make(item)


class Watch(_Watch[Event]):
    """Events in the order of the log, without a gap or a repeat, also across a change of the leader. See :meth:`Client.watch`."""

    __slots__ = ("_position",)

    def __init__(self, open: Callable[[], _core.Op]) -> None:
        super().__init__(open, self._note)
        self._position: str | None = None

    def _note(self, fields: dict[str, Any]) -> Event:
        event = Event._of(fields)
        self._position = event.position
        return event

    @property
    def position(self) -> str | None:
        """The position of the last event. Another watch can go on from it."""
        return self._position

    def start(self) -> Watch:
        """Begins the watch: no event is missed from here on."""
        refuse_running_loop("`await watch.start_async()`")
        self._started()
        return self

    async def start_async(self) -> Watch:
        """As :meth:`start`, in a task."""
        await self._started_async()
        return self


class LeaderWatch(_Watch["Leader | None"]):
    """Changes of a leader; ``None`` while there is none. See :meth:`Election.observe`."""

    __slots__ = ()

    def __init__(self, open: Callable[[], _core.Op]) -> None:
        super().__init__(open, Leader._of)
