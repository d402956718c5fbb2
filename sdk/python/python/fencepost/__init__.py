"""Distributed locks with fencing tokens: safe when a client is paused, killed or forked.

>>> with client.lock("wallet:user_123", ttl=30, wait=5, tier=fencepost.CORRECTNESS) as lock:
...     print(type(lock.fence_token).__name__)
FenceToken

``client`` is what :func:`connect` returns. Every lock has a deadline that its holder knows (``lock.remaining``) and a loss signal
(``lock.lost``). A lock alone cannot stop a program that was paused past its deadline, so the store checks the token: see
:mod:`fencepost.fence`.

A block is the safe way to hold a lock: it never runs without its lock, and it gives the lock back. In ``async with``, the loss of the lock
cancels the block, and the block raises :class:`LockLost`.
"""

from ._client import Client, Tls, connect
from ._core import __version__
from ._errors import (
    AlreadyReleased,
    Deadlock,
    Denied,
    Error,
    Failed,
    LockBusy,
    LockForked,
    LockLost,
    LockTimeout,
    NotOwner,
    OutcomeUnknown,
    Refused,
    Unsupported,
)
from ._jobs import Checkpoint, Completion, Job, JobRequest
from ._locks import (
    EfficiencyLock,
    Held,
    Leadership,
    Lock,
    LostSignal,
    MultiLock,
    MultiReadLock,
    Permits,
    ReadLock,
    UpdateLock,
)
from ._observe import Event, Explanation, Holder, Leader, LeaderWatch, Waiter, Watch
from ._requests import Election, Request
from ._tokens import FenceToken, ReadToken
from ._words import CORRECTNESS, EFFICIENCY, EXCLUSIVE, SHARED, SKIPPED, UPDATE, Mode, Skipped, Tier

__all__ = [
    "CORRECTNESS",
    "EFFICIENCY",
    "EXCLUSIVE",
    "SHARED",
    "SKIPPED",
    "UPDATE",
    "AlreadyReleased",
    "Checkpoint",
    "Client",
    "Completion",
    "Deadlock",
    "Denied",
    "EfficiencyLock",
    "Election",
    "Error",
    "Event",
    "Explanation",
    "Failed",
    "FenceToken",
    "Held",
    "Holder",
    "Job",
    "JobRequest",
    "Leader",
    "LeaderWatch",
    "Leadership",
    "Lock",
    "LockBusy",
    "LockForked",
    "LockLost",
    "LockTimeout",
    "LostSignal",
    "Mode",
    "MultiLock",
    "MultiReadLock",
    "NotOwner",
    "OutcomeUnknown",
    "Permits",
    "ReadLock",
    "ReadToken",
    "Refused",
    "Request",
    "Skipped",
    "Tier",
    "Tls",
    "Unsupported",
    "UpdateLock",
    "Waiter",
    "Watch",
    "__version__",
    "connect",
]
