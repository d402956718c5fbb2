"""What a caller shows to a guard: the names of its locks, each with its token.

Nothing is compared here: the guards do that. This file refuses what is no token, or a token that may not do what is asked. A type checker
sees the same mistakes, because the locks are described by protocols: this package knows no class of a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, cast

from fencepost._tokens import FenceToken, ReadToken
from fencepost.fence._rules import Shown, Use, checked_name

__all__ = ["Access", "Reader", "Writer", "named"]


class _Exclusive(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def fence_token(self) -> FenceToken: ...


class _Several(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...
    def token(self, name: str, /) -> FenceToken: ...


class _Held(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def fence_token(self) -> FenceToken | ReadToken: ...


class _SeveralHeld(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...
    def token(self, name: str, /) -> FenceToken | ReadToken: ...


#: What can write and claim: an exclusive lock, also on several names, a job or a leadership; or a name with its token, for a service that
#: gets the token from another program.
Writer: TypeAlias = _Exclusive | _Several | tuple[str, FenceToken]
#: What can read: also a shared or an update lock, or the token of one.
Reader: TypeAlias = Writer | _Held | _SeveralHeld | tuple[str, ReadToken]


class Access:
    """Everything that an access was decided from, for ``admit``. If one of the tokens is stale, the whole access is refused.

    >>> from fencepost.fence import Access, FenceToken, ReadToken
    >>> Access.write(("order:42", FenceToken(7))).and_read(("price:3", ReadToken(5)))
    Access(write order:42 7, read price:3 5)

    Only the token of an exclusive lock can write or claim:

    >>> Access.write(("price:3", ReadToken(5)))
    Traceback (most recent call last):
    TypeError: the lock on price:3 is shared or an update lock, and its token can only read: ...
    """

    __slots__ = ("shown",)

    def __init__(self, shown: Sequence[Shown]) -> None:
        self.shown = tuple(shown)

    @classmethod
    def write(cls, lock: Writer) -> Access:
        """Writes under an exclusive lock."""
        return cls(_shown(lock, "write"))

    @classmethod
    def claim(cls, lock: Writer) -> Access:
        """The first access of a new holder that is going to write: from here on no older holder can write."""
        return cls(_shown(lock, "claim"))

    @classmethod
    def read(cls, lock: Reader) -> Access:
        """Reads under a lock of any kind that has a token."""
        return cls(_shown(lock, "read"))

    def and_write(self, lock: Writer) -> Access:
        """Writes under one more lock."""
        return Access(self.shown + _shown(lock, "write"))

    def and_claim(self, lock: Writer) -> Access:
        """Claims one more lock."""
        return Access(self.shown + _shown(lock, "claim"))

    def and_read(self, lock: Reader) -> Access:
        """Shows one more lock that the decision was read from."""
        return Access(self.shown + _shown(lock, "read"))

    def __repr__(self) -> str:
        return f"Access({', '.join(f'{one.use} {one.name} {one.token}' for one in self.shown)})"


def named(lock: Writer) -> Shown:
    """The write of the one name that work is recorded under."""
    shown = _shown(lock, "write")
    if len(shown) != 1:
        names = ", ".join(one.name for one in shown)
        raise TypeError(f"a key is recorded under one name, and this lock is on {names}: give the pair of a name and lock.token(name)")
    (one,) = shown
    return one


def _shown(lock: Reader, use: Use) -> tuple[Shown, ...]:
    shown = tuple(Shown(checked_name(name), _number(token, name, use), use) for name, token in _tokens(lock))
    if not shown:
        raise TypeError(f"{lock!r} is on no name, so it shows nothing")
    return shown


def _tokens(lock: object) -> list[tuple[str, Any]]:
    """The names of a lock with their tokens. An exception of the lock is passed on: a lock that is lost has no token any more."""
    if isinstance(lock, tuple):
        if len(lock) != 2:
            raise TypeError(f"{lock!r} is no pair of a name and its token")
        return [cast("tuple[str, Any]", lock)]
    if isinstance(lock, (str, int)):
        raise TypeError(f"{lock!r} is no lock: give a lock that is held, or the pair of a name and its token")
    names = getattr(lock, "names", None)
    if not isinstance(names, (tuple, list)):
        raise TypeError(f"{type(lock).__name__} is no lock: give a lock that is held, or the pair of a name and its token")
    token = getattr(lock, "token", None)
    if callable(token):
        return [(name, token(name)) for name in names]
    try:
        token = cast(Any, lock).fence_token
    except AttributeError as why:
        raise TypeError(f"{type(lock).__name__} has no fencing token, so no store can check it: {why}") from why
    if len(names) > 1:
        raise TypeError(f"{type(lock).__name__} is on {len(names)} names, and does not say the token of each")
    return [(name, token) for name in names]


def _number(token: object, name: str, use: Use) -> int:
    if isinstance(token, FenceToken) or (use == "read" and isinstance(token, ReadToken)):
        return int(token)
    if isinstance(token, ReadToken):
        raise TypeError(f"the lock on {name} is shared or an update lock, and its token can only read: to {use}, hold the lock exclusively")
    raise TypeError(
        f"{token!r} is no fencing token for {name}: take it from the lock, or make one from what another program sent: FenceToken(number)"
    )
