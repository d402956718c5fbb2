"""The refusals of the guards. Each of them says who must act: the program that lost its lock, or the operator of the store.

An error of the driver that is not a refusal of the guard is raised as it is: a deadlock, a serialization failure, a lost connection.
"""

from __future__ import annotations

from fencepost._errors import Refused

__all__ = ["DoneBefore", "NoToken", "NoTransaction", "NotInstalled", "StaleToken"]


class StaleToken(Refused):
    """The store has seen a newer token, so the lock is lost: roll back, acquire it again, and decide again from what you then read.

    ``name`` and ``token`` are what was shown. ``highest`` is the mark that is higher, and ``at`` is the name that has this mark: ``name``
    itself, or a name above it, if it is a path.

    >>> print(StaleToken("/a/b", 5, "/a", 7))
    stale fencing token 5 for /a/b: token 7 has been seen at /a. The lock is lost: acquire it again, and decide again from what you then read
    """

    def __init__(self, name: str, token: int, at: str, highest: int) -> None:
        # All of it goes to the base class, so that a copy in another process (pickle) is complete.
        super().__init__(name, token, at, highest)
        self.name = name
        self.token = token
        self.at = at
        self.highest = highest

    def __str__(self) -> str:
        where = "" if self.name == self.at else f" at {self.at}"
        return (
            f"stale fencing token {self.token} for {self.name}: token {self.highest} has been seen{where}. The lock is lost: acquire it "
            "again, and decide again from what you then read"
        )


class DoneBefore(Refused):
    """The work of this key was done before: roll back, and leave the work out.

    ``token`` is the token of the holder that did the work. ``own`` says whether that is the caller's own token: then a commit of this
    holder, whose answer was lost, took effect.

    >>> print(DoneBefore("billing", "2026-11", 5, own=False))
    the work with the key '2026-11' under billing was done before, with token 5: leave it out
    """

    def __init__(self, name: str, key: str, token: int, own: bool) -> None:
        super().__init__(name, key, token, own)
        self.name = name
        self.key = key
        self.token = token
        self.own = own

    def __str__(self) -> str:
        how = f"with this same token {self.token}" if self.own else f"with token {self.token}"
        return f"the work with the key {self.key!r} under {self.name} was done before, {how}: leave it out"


class NotInstalled(Refused):
    """The store is not prepared for this version of the guard. The text says what its operator must do."""


class NoTransaction(Refused):
    """The guard counts only inside of a transaction, and none is open. The text says how to begin one."""


class NoToken(Refused):
    """This transaction has shown no token for what it writes. Triggers of the guard refuse such a write, whatever program sent it."""
