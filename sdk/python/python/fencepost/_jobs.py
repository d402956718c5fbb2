"""Jobs that run once: a key on a lock, and what the cluster remembers about the work.

The guide ``docs/guides/jobs.md`` says what the store must do, so that the effect of the work stands exactly once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import AlreadyReleased, Error
from ._locks import Lock, OnLost
from ._waiting import finish, finish_async, refuse_running_loop
from ._words import Duration, optional_seconds

if TYPE_CHECKING:
    from . import _core

__all__ = ["Checkpoint", "Completion", "Job", "JobRequest"]

#: The longest result, checkpoint and error text.
BYTES_MAX = 4_096

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of a job."""

    #: Whether the work ran here, now. Otherwise the job was completed before.
    ran: bool
    #: Whether the job succeeded. Otherwise it has failed for good.
    succeeded: bool
    #: What the work returned, as bytes.
    result: bytes
    #: The token of the grant that completed it. ``None`` if an administrator did.
    token: int | None
    #: The administrator who completed it.
    by: str | None
    #: How many attempts there were.
    attempts: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far an earlier attempt has come."""

    attempt: int
    bytes: bytes


class Job(Lock):
    """A job that this client holds. If its block ends before :meth:`complete` or :meth:`fail`, the job stays open for another attempt."""

    __slots__ = ("_key",)

    _key: str

    @property
    def key(self) -> str:
        """The key of the job."""
        return self._key

    def begin(self) -> int:
        """Begins an attempt, and returns its number. A second call begins no other."""
        refuse_running_loop("`await job.begin_async()`")
        return finish(self._core.begin(), int)

    async def begin_async(self) -> int:
        """As :meth:`begin`, in a task."""
        return await finish_async(self._core.begin(), int)

    def checkpoint(self, bytes: str | bytes) -> None:
        """Stores how far the work has come, at most 4 KiB, and returns when that is replicated. The next attempt reads it."""
        refuse_running_loop("`await job.checkpoint_async()`")
        finish(self._core.checkpoint(result_bytes(bytes)), _nothing)

    async def checkpoint_async(self, bytes: str | bytes) -> None:
        """As :meth:`checkpoint`, in a task."""
        await finish_async(self._core.checkpoint(result_bytes(bytes)), _nothing)

    def last_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint of the job, usually that of an earlier attempt."""
        refuse_running_loop("`await job.last_checkpoint_async()`")
        return finish(self._core.last_checkpoint(), _checkpoint)

    async def last_checkpoint_async(self) -> Checkpoint | None:
        """As :meth:`last_checkpoint`, in a task."""
        return await finish_async(self._core.last_checkpoint(), _checkpoint)

    def complete(self, result: object = None, *, succeeded: bool = True) -> Completion:
        """Completes the job, and gives the lock back. No attempt begins any more.

        ``result`` is ``None``, bytes, text, or a value that JSON has; it takes at most 4 KiB. With ``succeeded=False`` the job has failed for
        good. :class:`LockLost` if the lock was lost before: then another attempt may run. :class:`OutcomeUnknown` only if the cluster cannot
        be reached until the lease is over.
        """
        refuse_running_loop("`await job.complete_async()`")
        return finish(self._core.complete(result_bytes(result), succeeded), _ran_here)

    async def complete_async(self, result: object = None, *, succeeded: bool = True) -> Completion:
        """As :meth:`complete`, in a task."""
        return await finish_async(self._core.complete(result_bytes(result), succeeded), _ran_here)

    def fail(self, error: object) -> None:
        """Ends this attempt, leaves the job open for another one, and gives the lock back. The first 4 KiB of the text are kept."""
        refuse_running_loop("`await job.fail_async()`")
        finish(self._core.fail(str(error)), _nothing)

    async def fail_async(self, error: object) -> None:
        """As :meth:`fail`, in a task."""
        await finish_async(self._core.fail(str(error)), _nothing)


class JobRequest:
    """A request for a job. See :meth:`Client.job`."""

    __slots__ = ("_attempts", "_client", "_keep", "_key", "_max_hold", "_name", "_on_lost", "_ttl", "_wait")

    def __init__(
        self,
        client: Callable[[], _core.Client],
        name: str,
        key: str,
        *,
        wait: Duration | None,
        attempts: int | None,
        keep: Duration | None,
        ttl: Duration | None,
        max_hold: Duration | None,
        on_lost: OnLost | None,
    ) -> None:
        if attempts is not None and attempts < 1:
            raise ValueError(f"attempts={attempts} leaves no attempt")
        self._client = client
        self._name = name
        self._key = key
        self._attempts = attempts
        self._wait = optional_seconds(wait, "wait")
        self._keep = optional_seconds(keep, "keep")
        self._ttl = optional_seconds(ttl, "ttl")
        self._max_hold = optional_seconds(max_hold, "max_hold")
        self._on_lost = on_lost

    def acquire(self) -> Job | Completion:
        """Waits until the job is yours, or completed: then nothing is left to do."""
        refuse_running_loop("`await request.acquire_async()`")
        return finish(self._start(), self._adopt)

    async def acquire_async(self) -> Job | Completion:
        """As :meth:`acquire`, in a task."""
        return await finish_async(self._start(), self._adopt)

    def run(self, work: Callable[[Job], object]) -> Completion:
        """Does the work, unless the job is completed: waits for the job, begins an attempt, calls ``work``, and completes the job with what it
        returns.

        An exception of the work ends the attempt, leaves the job open, and passes unchanged. A result of more than 4 KiB is cut, because the
        work is done. After the last of ``attempts`` the job is completed as failed, and its completion is returned.
        """
        refuse_running_loop("`await request.run_async()`")
        op = self._start()
        try:
            turn = finish(op, self._adopt)
            return turn if isinstance(turn, Completion) else self._attempt(turn, work)
        except BaseException:
            # A signal can come before the block of the attempt begins.
            op.abandon()
            raise

    def _attempt(self, job: Job, work: Callable[[Job], object]) -> Completion:
        with job:
            attempt = job.begin()
            if self._attempts is not None and attempt > self._attempts:
                return job.complete(self._gave_up(), succeeded=False)
            try:
                result = work(job)
            except BaseException as error:
                _quietly(lambda: job.fail(error or type(error).__name__))
                raise
            return job.complete(cut(result))

    async def run_async(self, work: Callable[[Job], Awaitable[object]]) -> Completion:
        """As :meth:`run`, in a task. If the lock is lost, the work is cancelled."""
        job = await self.acquire_async()
        if isinstance(job, Completion):
            return job
        async with job:
            attempt = await job.begin_async()
            if self._attempts is not None and attempt > self._attempts:
                return await job.complete_async(self._gave_up(), succeeded=False)
            try:
                result = await work(job)
            except Exception as error:
                try:
                    await job.fail_async(error)
                except Error:
                    pass  # The attempt is over whether or not its text arrives, and the exception is the caller's.
                raise
            return await job.complete_async(cut(result))

    def _gave_up(self) -> str:
        return f"gave up after {self._attempts} attempts"

    def _start(self) -> _core.Op:
        return self._client().job(self._name, self._key, self._keep, self._wait, self._ttl, self._max_hold)

    def _adopt(self, turn: Any) -> Job | Completion:
        if isinstance(turn, dict):
            return Completion(ran=False, **turn)
        job = Job(turn, self._on_lost)
        job._key = self._key
        return job


def result_bytes(result: object) -> bytes:
    """A result as bytes: text in UTF-8, other values as JSON."""
    match result:
        case None:
            return b""
        case bytes() | bytearray() | memoryview():
            return bytes(result)
        case str():
            return result.encode()
        case _:
            return json.dumps(result, default=str).encode()


def cut(result: object) -> bytes:
    """The first bytes of a result, as many as a job keeps. The work is done, so its result is not refused for its form."""
    try:
        return result_bytes(result)[:BYTES_MAX]
    except (TypeError, ValueError, RecursionError):
        return repr(result).encode()[:BYTES_MAX]


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except (Error, AlreadyReleased):
        pass  # The attempt is over whether or not its text arrives, and the exception is the caller's.


def _ran_here(fields: dict[str, Any]) -> Completion:
    return Completion(ran=True, **fields)


def _checkpoint(last: tuple[int, bytes] | None) -> Checkpoint | None:
    return None if last is None else Checkpoint(*last)


def _nothing(_: object) -> None:
    return None
