"""What a holder gets: the token, the time for which the lock is certainly held, the loss signal, and the release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, final

from . import _background, _core
from ._errors import AlreadyReleased, Error, Failed, LockForked, LockLost, NotOwner, OutcomeUnknown
from ._tokens import FenceToken, ReadToken
from ._waiting import finish, finish_async, refuse_running_loop, wake
from ._words import Duration, seconds

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "EfficiencyLock",
    "Held",
    "Leadership",
    "Lock",
    "LostSignal",
    "MultiLock",
    "MultiReadLock",
    "Permits",
    "ReadLock",
    "UpdateLock",
]

Self = TypeVar("Self", bound="Held")

#: What ``on_lost`` is called with.
OnLost = Callable[[LockLost], object]

_PACKAGE = __name__.partition(".")[0]


@final
class LostSignal:
    """Tells whether a lock is lost, and waits for that. It is true when the lock is lost: ``while not lock.lost: ...``

    A lock that was released is not lost.
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Held) -> None:
        self._core = core

    def is_set(self) -> bool:
        """Whether the lock is lost."""
        return self._core.state()[0] == "lost"

    __bool__ = is_set

    @property
    def reason(self) -> str | None:
        """Why it is lost."""
        return self._core.state()[1]

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the lock is lost or released, on this thread. False if it was released, or the time is over first."""
        refuse_running_loop("`await lock.lost.wait_async()`")
        limit = None if timeout is None else seconds(timeout, "timeout")
        op = self._core.lost()
        try:
            op.wait(limit)
        finally:
            op.abandon()
        return self.is_set()

    async def wait_async(self) -> bool:
        """Waits until the lock is lost or released, in this task. False if it was released."""
        await finish_async(self._core.lost(), lambda _: None)
        return self.is_set()

    def __repr__(self) -> str:
        return f"<LostSignal {self._core.state()[0]}>"


class Held(_core.Block):
    """A held lock. Leaving its ``with`` block, or :meth:`release`, gives it back.

    The garbage collector does not: a program that drops this object without a release goes on as if it held the lock, so the lock stays
    held until the program ends. A ``ResourceWarning`` says where it was acquired.
    """

    __slots__ = ("__weakref__", "_core", "_lost", "_scope", "_where")

    def __init__(self, core: _core.Held, on_lost: OnLost | None = None) -> None:
        super().__init__()
        self._core = core
        self._scope: _LossScope | None = None
        self._lost: LostSignal | None = None
        self._where = _caller()
        if on_lost is not None:
            _call_when_lost(core, on_lost)

    @property
    def name(self) -> str:
        """The name; of several, the first."""
        return self._core.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._core.names)

    @property
    def is_held(self) -> bool:
        """Whether it is certainly held at this moment. Once false, it stays false."""
        return self._core.state()[0] == "held"

    @property
    def remaining(self) -> float:
        """For how many seconds it is certainly held. Every confirmed keep-alive extends this time.

        Raises :class:`LockLost` if it is lost, :class:`AlreadyReleased` if it was released.
        """
        return self._core.remaining()

    def check(self) -> None:
        """Raises :class:`LockLost` unless it is certainly held. Call it before each step that only the holder may do.

        A check is no guard: a program can be paused between the check and the step. The store must check the token.
        """
        self._core.check()

    @property
    def lost(self) -> LostSignal:
        """The loss signal."""
        if self._lost is None:
            self._lost = LostSignal(self._core)
        return self._lost

    @property
    def session(self) -> str | None:
        """The id of the session that holds it, as ``fencepost locks`` shows it. ``None`` for other systems."""
        ids = self._core.ids()
        return None if ids is None else ids[0]

    @property
    def grant(self) -> int | None:
        """The number of its grant, by which an administrator can break it. ``None`` for other systems."""
        ids = self._core.ids()
        return None if ids is None else ids[1]

    def release(self) -> None:
        """Gives it back, and waits until that is done.

        Raises :class:`LockLost` if it was lost before, :class:`AlreadyReleased` if it was released before. If no answer comes, a warning is
        logged: the release goes on in the background, and the lock ends with its TTL at the latest.
        """
        refuse_running_loop("`await lock.release_async()`")
        try:
            finish(self._core.release(), _nothing)
        except (OutcomeUnknown, Failed) as unheard:
            self._log_unheard(unheard)

    async def release_async(self) -> None:
        """As :meth:`release`, in a task. The release is under way before the first ``await``, and goes on if the task is cancelled."""
        op = self._core.release()
        try:
            await finish_async(op, _nothing)
        except (OutcomeUnknown, Failed) as unheard:
            self._log_unheard(unheard)

    def extend(self, max_hold: Duration) -> None:
        """Moves the end of ``max_hold`` to this time from now. Only Fencepost has it."""
        refuse_running_loop("`await lock.extend_async()`")
        finish(self._core.extend(seconds(max_hold, "max_hold")), _nothing)

    async def extend_async(self, max_hold: Duration) -> None:
        """As :meth:`extend`, in a task."""
        await finish_async(self._core.extend(seconds(max_hold, "max_hold")), _nothing)

    if TYPE_CHECKING:
        # In `_core.Block`: no signal can come between the check and the block.
        def __enter__(self: Self) -> Self: ...

    def _left(self, op: _core.Op | None, refused: Error | None, error: BaseException | None) -> None:
        """The end of ``__exit__``. ``op`` is the release, ``refused`` why there is none, ``error`` what the block itself raises."""
        try:
            if op is not None:
                finish(op, _nothing)
        except Error as answer:
            refused = answer
        if refused is not None:
            self._leave(error, refused)

    async def __aenter__(self: Self) -> Self:
        self._core.check()
        self._scope = _LossScope.arm(self._core)
        return self

    async def _left_async(self, op: _core.Op | None, refused: Error | None, error: BaseException | None) -> None:
        """The end of ``__aexit__``."""
        scope, self._scope = self._scope, None
        is_ours = scope is not None and scope.disarm(error)
        try:
            if op is not None:
                await finish_async(op, _nothing)
        except Error as answer:
            refused = answer
        if is_ours:
            raise self._loss(refused) from error
        if refused is not None:
            self._leave(error, refused)

    def _leave(self, error: BaseException | None, refused: Error) -> None:
        """Leaves the block after a release that was not simply done. ``error`` is what the block itself raises."""
        match refused:
            case AlreadyReleased():
                return
            case LockForked() | LockLost() | NotOwner():
                if error is None:
                    raise self._loss(refused) from None
                error.add_note(f"fencepost: {refused}")
            case OutcomeUnknown() | Failed():
                self._log_unheard(refused)
            case _:
                raise refused

    def _loss(self, refused: Error | None) -> LockLost:
        """The loss as an exception."""
        if isinstance(refused, LockLost):
            return refused
        lost = LockLost(str(refused) if refused is not None else f"{self._described()} is lost: stop what it protected")
        lost.reason = self._core.state()[1] or "another session may hold it"
        return lost

    def _log_unheard(self, unheard: Error) -> None:
        _background.logger.warning(
            "the release of %s was not answered: it goes on in the background, and the lock ends with its TTL at the latest: %s",
            self._described(),
            unheard,
        )

    def _described(self) -> str:
        names = self._core.names
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _state(self) -> str:
        try:
            return self._core.state()[0]
        except LockForked:
            return "of another process"

    def __repr__(self) -> str:
        token = self._core.shown_token()
        shown = "" if token is None else f", token {token}"
        kind = type(self).__name__.lstrip("_")
        return f"<{kind} {self._described()!r}{shown}, {self._state()}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a held lock belongs to its process and cannot be pickled or copied: acquire a lock where it is needed")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.outlive():
            file, line = self._where
            text = f"{self!r} was not released: it stays held until the program ends. It was acquired at {file}:{line}"
            warnings.warn_explicit(ResourceWarning(text), None, file, line, source=self)


class Lock(Held):
    """An exclusive lock."""

    __slots__ = ()

    @property
    def fence_token(self) -> FenceToken:
        """The fencing token. Give it to the store with every write, so that the store can refuse older ones.

        Raises :class:`LockLost` if the lock is lost.
        """
        return FenceToken(_number(self._core.token()))


class ReadLock(Held):
    """A shared lock: held together with other readers."""

    __slots__ = ()

    @property
    def fence_token(self) -> ReadToken:
        """The token for reads. It can never write."""
        return ReadToken(_number(self._core.token()))

    def upgrade(self, wait: Duration = 30.0) -> Lock:
        """Waits for the other readers to release, then becomes exclusive, with a new token.

        The result is the same lock: the block of this one releases it. If another reader waits for the same, :class:`Deadlock` or
        :class:`Refused` is raised at once: take an update lock if you are going to upgrade. An interrupted upgrade gives the lock back.
        """
        refuse_running_loop("`await lock.upgrade_async()`")
        return finish(self._core.upgrade(seconds(wait, "wait")), lambda _: _Lock(self))

    async def upgrade_async(self, wait: Duration = 30.0) -> Lock:
        """As :meth:`upgrade`, in a task."""
        return await finish_async(self._core.upgrade(seconds(wait, "wait")), lambda _: _Lock(self))


class UpdateLock(ReadLock):
    """An update lock: held by one client beside readers. It can become exclusive, and no other writer gets in between."""

    __slots__ = ()


class _Lock(Lock):
    """The exclusive lock that a shared or update lock has become. It keeps the object that it came from."""

    __slots__ = ("_before",)

    def __init__(self, before: ReadLock) -> None:
        super().__init__(before._core)
        self._before = before

    def __del__(self) -> None:
        # The lock that it came from warns.
        pass


class MultiLock(Held):
    """Exclusive locks on several names, held together."""

    __slots__ = ()

    def token(self, name: str) -> FenceToken:
        """The fencing token for a name. Fencepost gives one for all; other systems give one for each."""
        return FenceToken(_token_of(self, name))

    if not TYPE_CHECKING:

        @property
        def fence_token(self):
            raise AttributeError("a lock on several names has a token for each name: use `lock.token(name)`")


class MultiReadLock(Held):
    """Shared or update locks on several names, held together."""

    __slots__ = ()

    def token(self, name: str) -> ReadToken:
        """The token for reads of a name."""
        return ReadToken(_token_of(self, name))

    if not TYPE_CHECKING:
        fence_token = MultiLock.__dict__["fence_token"]


class EfficiencyLock(Held):
    """A lock of the efficiency tier: for work that may now and then be done twice. It has no token."""

    __slots__ = ()

    if not TYPE_CHECKING:

        @property
        def fence_token(self):
            raise AttributeError(
                "a lock of the efficiency tier has no fencing token, so no store can refuse a late write: "
                "if data depends on the lock, ask for `tier=fencepost.CORRECTNESS`, which is the default"
            )


class Permits(Held):
    """Permits of a semaphore. They cannot fence, so they have no token."""

    __slots__ = ()

    if not TYPE_CHECKING:

        @property
        def fence_token(self):
            raise AttributeError(
                "permits have no fencing token, because several clients hold some at a time: protect data with a lock"
            )


class Leadership(Held):
    """The leadership in an election. Leaving its block, or :meth:`resign`, gives it up."""

    __slots__ = ()

    @property
    def epoch(self) -> FenceToken:
        """The epoch, which rises with every leader: the fencing token for everything that the leader writes."""
        return FenceToken(_number(self._core.token()))

    @property
    def fence_token(self) -> FenceToken:
        """The same as :attr:`epoch`."""
        return self.epoch

    def set_value(self, value: str | bytes) -> None:
        """Changes the value that observers see."""
        refuse_running_loop("`await leadership.set_value_async()`")
        finish(self._core.set_value(to_bytes(value)), _nothing)

    async def set_value_async(self, value: str | bytes) -> None:
        """As :meth:`set_value`, in a task."""
        await finish_async(self._core.set_value(to_bytes(value)), _nothing)

    def resign(self) -> None:
        """Resigns, and waits until that is done. The same as :meth:`release`."""
        self.release()

    async def resign_async(self) -> None:
        """As :meth:`resign`, in a task."""
        await self.release_async()


class _LossScope:
    """Cancels a task once if a lock is lost while the task is in the block of the lock. It follows ``asyncio.timeout()``."""

    __slots__ = ("_is_armed", "_is_fired", "_loop", "_task", "_were_cancelling")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self._loop = loop
        self._task = task
        self._were_cancelling = task.cancelling()
        self._is_armed = True
        self._is_fired = False

    @staticmethod
    def arm(core: _core.Held) -> _LossScope | None:
        """A scope for the current task. The loss of the lock cancels it from now on."""
        import asyncio

        task = asyncio.current_task()
        if task is None:
            return None
        loop = asyncio.get_running_loop()
        scope = _LossScope(loop, task)
        if not core.listen(lambda: wake(loop, scope._fire)):
            core.check()
        return scope

    def _fire(self) -> None:
        # On the thread of the loop, so the task is at an `await`, or about to go on from one.
        if self._is_armed and not self._is_fired:
            self._is_fired = True
            self._task.cancel("fencepost: the lock of this block is lost")

    def disarm(self, error: BaseException | None) -> bool:
        """No cancellation from now on. True if ``error`` is the cancellation of this scope, and of no other."""
        import asyncio

        self._is_armed = False
        if not self._is_fired:
            return False
        is_last = self._task.uncancel() <= self._were_cancelling
        return is_last and isinstance(error, asyncio.CancelledError)


def _call_when_lost(core: _core.Held, on_lost: OnLost) -> None:
    """Calls the program's function once, on a thread of its own, if the lock is lost."""

    def lost() -> None:
        try:
            core.check()
        except LockLost as loss:
            loss.names = tuple(core.names)
            on_lost(loss)
        except Error:
            pass

    if not core.listen(lambda: _background.call(lost)):
        _background.call(lost)


def _caller() -> tuple[str, int]:
    """The file and the line of the program's code that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _token_of(lock: Held, name: str) -> int:
    token = lock._core.token(name)
    if token is None:
        raise KeyError(f"this lock does not hold {name!r}: it holds {', '.join(lock.names)}")
    return token


def _number(token: int | None) -> int:
    assert token is not None, "an exclusive or shared lock has a token"
    return token


def to_bytes(value: str | bytes) -> bytes:
    """A value as bytes: text in UTF-8."""
    return value.encode() if isinstance(value, str) else bytes(value)


def _nothing(_: object) -> None:
    return None
