"""The words of requests: modes, tiers, durations, and the words of other libraries that mean something else here."""

from __future__ import annotations

import enum
import math
from datetime import timedelta
from typing import Any, Final

__all__ = ["CORRECTNESS", "EFFICIENCY", "EXCLUSIVE", "SHARED", "SKIPPED", "UPDATE", "Duration", "Mode", "Skipped", "Tier"]

#: A duration: seconds, or a ``timedelta``.
type_of_duration = (int, float, timedelta)
Duration = float | timedelta


class Mode(enum.Enum):
    """How a lock is held."""

    #: Alone.
    EXCLUSIVE = "exclusive"
    #: Together with other readers.
    SHARED = "shared"
    #: Alone beside readers, with the right to become exclusive.
    UPDATE = "update"


class Tier(enum.Enum):
    """What a lock is for."""

    #: Data depends on it. The lock is granted by consensus and has a fencing token, which the store checks.
    CORRECTNESS = "correctness"
    #: It saves work that may now and then be done twice. The lock has no token.
    EFFICIENCY = "efficiency"


class Skipped(enum.Enum):
    """The type of :data:`SKIPPED`."""

    SKIPPED = "skipped"

    def __repr__(self) -> str:
        return "fencepost.SKIPPED"

    __str__ = __repr__


EXCLUSIVE: Final = Mode.EXCLUSIVE
SHARED: Final = Mode.SHARED
UPDATE: Final = Mode.UPDATE
CORRECTNESS: Final = Tier.CORRECTNESS
EFFICIENCY: Final = Tier.EFFICIENCY
#: What a function with ``@client.locked(..., on_busy="skip")`` returns if the lock was busy.
SKIPPED: Final = Skipped.SKIPPED


def seconds(duration: Duration, word: str) -> float:
    """The duration in seconds. ``word`` is the name of the argument."""
    if isinstance(duration, bool) or not isinstance(duration, type_of_duration):
        raise TypeError(f"{word} is a number of seconds or a timedelta, not {type(duration).__name__}")
    number = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not math.isfinite(number):
        hint = f"; {word}=None waits for ever" if word == "wait" else ""
        raise ValueError(f"{word}={duration!r} is not a duration{hint}")
    if number < 0:
        raise ValueError(f"{word}={duration!r} is negative")
    return number


def optional_seconds(duration: Duration | None, word: str) -> float | None:
    """As :func:`seconds`; ``None`` stays ``None``."""
    return None if duration is None else seconds(duration, word)


_THE_WAIT = "how long to wait for the lock is `wait`, and how long the lock outlives a holder that died is `ttl`"

#: Arguments of other libraries, and what to write instead.
_OTHER_WORDS = {
    "timeout": f"{_THE_WAIT} (`timeout` is the TTL in redis-py, and the wait in kazoo)",
    "blocking": "`blocking=False` is `wait=0` or `try_acquire()`, and `blocking=True` is the default",
    "blocking_timeout": _THE_WAIT,
    "lease_time": _THE_WAIT,
    "expire": _THE_WAIT,
    "sleep": "there is no polling: the service tells a waiter when its turn comes",
    "thread_local": "a lock belongs to the object that `acquire` returns, and any thread may use it",
    "token": "the service draws the token: read it from `lock.fence_token`",
}


def refuse_other_words(function: str, arguments: dict[str, Any]) -> None:
    """Raises ``TypeError`` for arguments that do not exist here, and says what to write instead."""
    for word in arguments:
        instead = _OTHER_WORDS.get(word)
        if instead is not None:
            raise TypeError(f"{function} has no argument `{word}`: {instead}")
        raise TypeError(f"{function} got an unexpected keyword argument {word!r}")
