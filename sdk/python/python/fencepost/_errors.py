"""The exceptions, grouped by what a caller may conclude from them.

There are three answers, and programs must not mix them up: the service refused; nothing was done; the outcome is unknown. Only after the
second may a program simply ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AlreadyReleased",
    "Deadlock",
    "Denied",
    "Error",
    "Failed",
    "LockBusy",
    "LockForked",
    "LockLost",
    "LockTimeout",
    "NotOwner",
    "OutcomeUnknown",
    "Refused",
    "Unsupported",
]


class Error(Exception):
    """Every exception of this package, except for wrong arguments (``TypeError``, ``ValueError``)."""


class Refused(Error):
    """The service refused the request, and says why. Nothing was changed."""


class LockBusy(Refused):
    """The lock is not free, and the request does not wait. ``names`` has the name that is busy."""

    names: Sequence[str] = ()


class LockTimeout(Refused, TimeoutError):
    """The lock was not granted within the wait. The text says who holds it, as far as the system tells.

    ``names`` are the names that were asked for; ``suspected`` are the sessions that seem to wait for each other, this one first, if a
    deadlock may be the reason.
    """

    names: Sequence[str] = ()
    suspected: Sequence[str] = ()


class Deadlock(Refused):
    """The request would have closed a cycle of owners that wait for each other. Release what you hold, and start again."""


class LockLost(Refused):
    """The lock is lost: stop what it protected. ``reason`` says how it ended. ``names`` are its names, for an ``on_lost`` function."""

    reason: str = ""
    names: Sequence[str] = ()


class LockForked(LockLost):
    """The lock belongs to the process that took it, and this is a child of that process. Take a lock of your own."""


class NotOwner(Refused):
    """This session does not hold the lock, and another may: stop what it protected."""


class AlreadyReleased(Refused):
    """The lock was released before."""


class Denied(Refused):
    """The caller may not do that."""


class Unsupported(Refused):
    """This lock system cannot do that, or does not promise it. Nothing was sent."""


class Failed(Error):
    """Nothing was done, and nothing will be. It is safe to ask again.

    ``retry_after`` is the time in seconds after which that may help, if the service said one.
    """

    retry_after: float | None = None


class OutcomeUnknown(Error):
    """The request may have been done, or may still be done. What a lock request is granted late is given back in the background."""


def _named(kind: str, text: str, facts: dict[str, Any]) -> Error:
    """The exception of this kind, as the extension module describes it. Used by ``_core`` alone."""
    error: Error = _KINDS[kind](text)
    for name, value in facts.items():
        setattr(error, name, value)
    return error


_KINDS: dict[str, type[Error]] = {
    kind.__name__: kind
    for kind in (
        AlreadyReleased,
        Deadlock,
        Denied,
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
}
