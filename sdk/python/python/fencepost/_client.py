"""The client: where every request begins."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

from . import _background, _core, _decorators
from ._jobs import Completion, Job, JobRequest
from ._locks import (
    EfficiencyLock,
    Held,
    Lock,
    MultiLock,
    MultiReadLock,
    OnLost,
    Permits,
    ReadLock,
    UpdateLock,
)
from ._observe import Explanation, Watch
from ._requests import Election, Request, permits_request
from ._waiting import finish, finish_async, refuse_running_loop
from ._words import (
    CORRECTNESS,
    EXCLUSIVE,
    Duration,
    Mode,
    Skipped,
    Tier,
    optional_seconds,
    refuse_other_words,
)

__all__ = ["Client", "Tls", "connect"]

P = ParamSpec("P")
R = TypeVar("R")

#: How long the end of a program may take to give its locks back.
_EXIT_SECONDS = 2.0
#: The process for which the exit is arranged.
_arranged_in = 0


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings: paths of PEM files."""

    #: The authorities that sign the nodes' certificates.
    ca: str | os.PathLike[str]
    #: The certificate of this client, and its private key.
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    #: The name in the nodes' certificates. By default it is the host of each node.
    server_name: str | None = None

    def _read(self) -> tuple[bytes, tuple[bytes, bytes] | None, str | None]:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs both: `cert` and `key`")
        identity = None
        if self.cert is not None and self.key is not None:
            identity = (Path(self.cert).read_bytes(), Path(self.key).read_bytes())
        return Path(self.ca).read_bytes(), identity, self.server_name


def connect(
    address: str | None = None,
    *,
    ttl: Duration | None = None,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    tls: Tls | None = None,
    connect_timeout: Duration | None = None,
    call_timeout: Duration | None = None,
) -> Client:
    """A client of the lock system at an address: ``fencepost://host:7420,host:7420``, or ``redis://``, ``etcd://``, ``zookeeper://``,
    ``postgres+table://`` and the others of ``fencepost backends``. Without an address, the settings of the environment count, as for the
    command ``fencepost``: ``FENCEPOST_SERVER`` and its companions.

    It starts no thread and sends nothing: the first request connects. So a program can make a client before it forks, and each child connects
    by itself. An address of Fencepost that is not valid is a ``ValueError`` here, and so is one that names no system. What the address of
    another system says is read by the first request.

    ``ttl`` is how long locks outlive a program that died: 30 s by default. ``name`` and ``labels`` are shown to people who ask who holds a lock.
    ``connect_timeout`` is how long the first request looks for the leader (10 s), ``call_timeout`` how long an answer may take beside the wait
    for a lock (10 s).
    """
    return Client(
        address,
        ttl=ttl,
        name=name,
        labels=labels,
        tls=tls,
        connect_timeout=connect_timeout,
        call_timeout=call_timeout,
    )


class Client:
    """A client. It may be shared by threads, tasks and event loops. See :func:`connect`.

    >>> with client.lock("wallet:user_123", ttl=30, wait=5) as lock:
    ...     isinstance(lock.fence_token, fencepost.FenceToken), lock.remaining > 0
    (True, True)
    """

    def __init__(
        self,
        address: str | None,
        *,
        ttl: Duration | None,
        name: str | None,
        labels: Mapping[str, str] | None,
        tls: Tls | None,
        connect_timeout: Duration | None,
        call_timeout: Duration | None,
    ) -> None:
        self._address = address
        self._settings = {
            "ttl": ttl,
            "name": name,
            "labels": labels,
            "tls": tls,
            "connect_timeout": connect_timeout,
            "call_timeout": call_timeout,
        }
        self._core = _core.Client(
            address,
            optional_seconds(ttl, "ttl"),
            name,
            [(str(key), str(value)) for key, value in (labels or {}).items()],
            None if tls is None else tls._read(),
            optional_seconds(connect_timeout, "connect_timeout"),
            optional_seconds(call_timeout, "call_timeout"),
        )

    @overload
    def lock(
        self,
        name: str,
        /,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        mode: Literal[Mode.EXCLUSIVE] = EXCLUSIVE,
        tier: Literal[Tier.CORRECTNESS] = CORRECTNESS,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Request[Lock]: ...
    @overload
    def lock(
        self,
        name: str,
        /,
        *,
        mode: Literal[Mode.SHARED],
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        tier: Literal[Tier.CORRECTNESS] = CORRECTNESS,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Request[ReadLock]: ...
    @overload
    def lock(
        self,
        name: str,
        /,
        *,
        mode: Literal[Mode.UPDATE],
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        tier: Literal[Tier.CORRECTNESS] = CORRECTNESS,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Request[UpdateLock]: ...
    @overload
    def lock(
        self,
        name: str,
        /,
        *names: str,
        tier: Literal[Tier.EFFICIENCY],
        mode: Literal[Mode.EXCLUSIVE, Mode.SHARED] = EXCLUSIVE,
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Request[EfficiencyLock]: ...
    @overload
    def lock(
        self,
        name: str,
        second: str,
        /,
        *names: str,
        mode: Literal[Mode.EXCLUSIVE] = EXCLUSIVE,
        tier: Literal[Tier.CORRECTNESS] = CORRECTNESS,
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Request[MultiLock]: ...
    @overload
    def lock(
        self,
        name: str,
        second: str,
        /,
        *names: str,
        mode: Literal[Mode.SHARED, Mode.UPDATE],
        tier: Literal[Tier.CORRECTNESS] = CORRECTNESS,
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Request[MultiReadLock]: ...
    def lock(
        self,
        *names: str,
        ttl: Duration | None = None,
        wait: Duration | None = 30.0,
        mode: Mode = EXCLUSIVE,
        tier: Tier = CORRECTNESS,
        owner: str | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
        **other_words: Any,
    ) -> Request[Any]:
        """A request for a lock on one name, or on several names together. Use it as a block: ``with client.lock("wallet:7") as lock:``

        - ``wait`` is how long to wait for the lock: 30 s by default. ``None`` waits for ever, zero does not wait.
        - ``ttl`` is how long the lock outlives this program if it dies. The default is the client's. While the program lives, the lock is
          renewed by itself.
        - ``mode`` is ``EXCLUSIVE``, ``SHARED`` or ``UPDATE``.
        - ``tier`` is ``CORRECTNESS`` if data depends on the lock, and ``EFFICIENCY`` if it only saves work: then it is faster and has no token.
        - ``owner`` is the unit of work that holds the lock. The same owner may take the lock again, and a deadlock between owners is refused.
        - ``max_hold`` ends the lock this long after it was granted, even if the program lives: for work that may hang.
        - ``on_lost`` is called with the :class:`LockLost` if the lock is lost, on a thread of its own.

        A name that begins with ``/`` is a path, and a lock on it covers everything below.
        """
        refuse_other_words("client.lock()", other_words)
        if not names:
            raise TypeError("client.lock() needs at least one name")
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"the name of a lock is a text, not {type(name).__name__}: several names are several arguments")
        if not isinstance(mode, Mode):
            raise TypeError("mode is fencepost.EXCLUSIVE, fencepost.SHARED or fencepost.UPDATE")
        if not isinstance(tier, Tier):
            raise TypeError("tier is fencepost.CORRECTNESS or fencepost.EFFICIENCY")
        terms = (optional_seconds(ttl, "ttl"), optional_seconds(max_hold, "max_hold"))
        waits = optional_seconds(wait, "wait")
        efficiency = tier is Tier.EFFICIENCY

        def start(wait: float | None) -> _core.Op:
            return self._begin().lock(list(names), mode.value, efficiency, owner, wait, *terms)

        kind: type[Held]
        if efficiency:
            kind = EfficiencyLock
        elif len(names) > 1:
            kind = MultiLock if mode is Mode.EXCLUSIVE else MultiReadLock
        else:
            kind = {Mode.EXCLUSIVE: Lock, Mode.SHARED: ReadLock, Mode.UPDATE: UpdateLock}[mode]
        return Request(lambda: start(waits), lambda: start(0.0), kind, on_lost)

    def semaphore(
        self,
        name: str,
        *,
        limit: int | None = None,
        permits: int = 1,
        wait: Duration | None = 30.0,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
        **other_words: Any,
    ) -> Request[Permits]:
        """A request for permits of a semaphore: ``with client.semaphore("uploads", limit=10):``

        ``limit`` is how many permits there are in all. It is needed unless an administrator has set one. Only Fencepost has semaphores.
        """
        refuse_other_words("client.semaphore()", other_words)
        terms = (optional_seconds(wait, "wait"), optional_seconds(ttl, "ttl"), optional_seconds(max_hold, "max_hold"))
        for word, number in (("permits", permits), ("limit", limit)):
            if number is not None and not 0 < number < 2**32:
                raise ValueError(f"{word}={number} is not between 1 and 2**32 - 1")
        return permits_request(self._begin, name, permits, limit, terms, on_lost)

    def election(
        self,
        name: str,
        *,
        wait: Duration | None = None,
        ttl: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> Election:
        """A leader election. A campaign waits until it is elected, unless ``wait`` says otherwise. Only Fencepost has elections."""
        return Election(self._begin, name, wait, ttl, on_lost)

    def job(
        self,
        name: str,
        *,
        key: str,
        wait: Duration | None = None,
        attempts: int | None = None,
        keep: Duration | None = None,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
        on_lost: OnLost | None = None,
    ) -> JobRequest:
        """A request for a job: work that is done once under this key. Only Fencepost has jobs.

        The cluster remembers what is completed, and nothing is granted for it again. It waits until the job is free or completed, unless ``wait``
        says otherwise. ``attempts`` is how many attempts the job may have, ``keep`` how long the cluster remembers it after its last attempt: a
        minute to a year, 30 days by default.

        >>> client.job("billing", key="2026-11").run(lambda job: "40 bills").result
        b'40 bills'
        >>> client.job("billing", key="2026-11").run(lambda job: "40 more").ran
        False
        """
        return JobRequest(
            self._begin,
            name,
            key,
            wait=wait,
            attempts=attempts,
            keep=keep,
            ttl=ttl,
            max_hold=max_hold,
            on_lost=on_lost,
        )

    @overload
    def locked(
        self, name: str, /, *, on_busy: Literal["raise"] = "raise", pass_lock: Literal[False] = False, **terms: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    @overload
    def locked(
        self, name: str, /, *, on_busy: Literal["raise"] = "raise", pass_lock: Literal[True], **terms: Any
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]: ...
    @overload
    def locked(
        self, name: str, /, *, on_busy: Literal["skip"], pass_lock: Literal[False] = False, **terms: Any
    ) -> _Skipping: ...
    @overload
    def locked(
        self, name: str, /, *, on_busy: Literal["skip"], pass_lock: Literal[True], **terms: Any
    ) -> _SkippingWithLock: ...
    def locked(
        self, name: str, /, *, on_busy: str = "raise", pass_lock: bool = False, **terms: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a function or a coroutine: each call holds the lock. ``{id}`` in the name is the parameter ``id`` of the function.

        With ``on_busy="skip"`` the call returns :data:`SKIPPED` if the lock is not free; it does not wait, unless ``wait`` is given. Every
        other error is raised. With ``pass_lock=True`` the function gets the lock as its first argument. The other arguments are those of
        :meth:`lock`.

        >>> @client.locked("report:{id}", on_busy="skip")
        ... def report(id):
        ...     return f"report {id}"
        >>> report(7)
        'report 7'
        """
        if on_busy not in ("raise", "skip"):
            raise ValueError(f"on_busy={on_busy!r} is neither 'raise' nor 'skip'")
        if on_busy == "skip":
            terms.setdefault("wait", 0)
        self.lock("checked", **terms)  # Wrong terms are refused where the function is decorated.
        return _decorators.locked(
            name, lambda filled: self.lock(filled, **terms), skips=on_busy == "skip", passes_lock=pass_lock
        )

    @overload
    def once(
        self, name: str, /, *, key: str, pass_job: Literal[False] = False, **terms: Any
    ) -> _Once: ...
    @overload
    def once(
        self, name: str, /, *, key: str, pass_job: Literal[True], **terms: Any
    ) -> _OnceWithJob: ...
    def once(self, name: str, /, *, key: str, pass_job: bool = False, **terms: Any) -> Any:
        """Decorates a function or a coroutine whose work is done once under a key. ``{month}`` in the key is the parameter ``month``.

        A call returns the :class:`Completion` of the job: its ``ran`` says whether this call did the work, its ``result`` is what the function
        returned, as bytes. An exception passes unchanged and leaves the job open. With ``pass_job=True`` the function gets the :class:`Job` as
        its first argument. The other arguments are those of :meth:`job`.

        >>> @client.once("billing", key="{month}")
        ... def bill(month):
        ...     return f"bills of {month}"
        >>> bill("2026-10").ran, bill("2026-10").ran
        (True, False)
        """
        self.job(name, key="checked", **terms)
        return _decorators.once(key, lambda filled: self.job(name, key=filled, **terms), passes_job=pass_job)

    def watch(self, prefix: str = "", *, after: str | None = None) -> Watch:
        """Iterates over events about names with this prefix, with ``for`` or ``async for``. Only Fencepost has events.

        It begins with the first step, or with ``start()``; with ``after`` it goes on after the position of an event. Use it to observe, not to
        decide: when a program reads an event, the lock may already have another holder.
        """
        return Watch(lambda: self._begin().watch(prefix, after))

    def explain(self, name: str) -> Explanation:
        """Who holds a name, and who waits for it. Only Fencepost explains."""
        refuse_running_loop("`await client.explain_async()`")
        return finish(self._begin().explain(name), Explanation._of)

    async def explain_async(self, name: str) -> Explanation:
        """As :meth:`explain`, in a task."""
        return await finish_async(self._begin().explain(name), Explanation._of)

    def close(self) -> None:
        """Gives back all locks of this client and closes its session. The client takes no request from then on.

        A program that ends does the same by itself, for all of its clients, within two seconds.
        """
        refuse_running_loop("`await client.close_async()`")
        op = self._core.close()
        if op is not None:
            finish(op, _nothing)

    async def close_async(self) -> None:
        """As :meth:`close`, in a task."""
        op = self._core.close()
        if op is not None:
            await finish_async(op, _nothing)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        return f"<fencepost.Client {_without_password(self._address)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A client that is sent to another process connects there.
        return _reconnect, (self._address, self._settings)

    def _begin(self) -> _core.Client:
        """The core of this client, for a request that starts now."""
        if _arranged_in != os.getpid():
            _arrange_exit()
        return self._core


class _Skipping:
    """The type of ``@client.locked(..., on_busy="skip")``."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | Skipped]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | Skipped]: ...
    def __call__(self, function: Any) -> Any: ...


class _SkippingWithLock:
    """The type of ``@client.locked(..., on_busy="skip", pass_lock=True)``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Awaitable[R]]
    ) -> Callable[P, Awaitable[R | Skipped]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R]) -> Callable[P, R | Skipped]: ...
    def __call__(self, function: Any) -> Any: ...


class _Once:
    """The type of ``@client.once(...)``."""

    # A coroutine function is a function, too: the first signature that fits counts.
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Awaitable[Completion]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, Completion]: ...
    def __call__(self, function: Any) -> Any: ...


class _OnceWithJob:
    """The type of ``@client.once(..., pass_job=True)``."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[Concatenate[Job, P], Awaitable[R]]
    ) -> Callable[P, Awaitable[Completion]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R]) -> Callable[P, Completion]: ...
    def __call__(self, function: Any) -> Any: ...


def _reconnect(address: str | None, settings: dict[str, Any]) -> Client:
    return connect(address, **settings)


def _without_password(address: str | None) -> str:
    if address is None:
        return "by the environment"
    scheme, there, rest = address.rpartition("://")
    return f"{scheme}{there}{rest.rpartition('@')[2]}"


def _arrange_exit() -> None:
    """Gives the locks back when this process ends. A child of ``multiprocessing`` does not run ``atexit``, but finalizers."""
    global _arranged_in
    _arranged_in = os.getpid()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # After the finalizers of the program, which may use locks.
        cast(Any, util).Finalize(None, _end, exitpriority=-100)
    signals = sys.modules.get("celery.signals")
    if signals is not None:
        # A process of Celery's pool runs neither `atexit` nor finalizers.
        cast(Any, signals).worker_process_shutdown.connect(_end, weak=False)


def _end(**_: object) -> None:
    began = time.monotonic()
    _core.shutdown(_EXIT_SECONDS)
    _background.finish_logs(max(0.1, began + _EXIT_SECONDS - time.monotonic()))


def _nothing(_: object) -> None:
    return None


atexit.register(_end)
