"""Fencing tokens: the numbers that a store compares.

A token of an exclusive lock can write, a token of a shared or update lock can only read. They are two types, so that a type checker sees
the difference, and both are whole numbers, so that every database driver takes them.
"""

from __future__ import annotations

from typing import final

__all__ = ["FenceToken", "ReadToken"]

#: Tokens are below this bound, so that every language can hold one in a double.
TOKEN_END = 2**53


def _checked(kind: str, number: int) -> int:
    if not 0 < number < TOKEN_END:
        raise ValueError(f"{number} is not a {kind}: tokens are whole numbers from 1 to 2**53 - 1")
    return number


@final
class FenceToken(int):
    """The token of an exclusive lock. Give it to the store with every write, so that the store can refuse older ones.

    >>> FenceToken(7)
    FenceToken(7)
    >>> FenceToken(7) + 0, f"{FenceToken(7)}"
    (7, '7')
    """

    __slots__ = ()

    def __new__(cls, number: int) -> FenceToken:
        return super().__new__(cls, _checked("fence token", int(number)))

    def __repr__(self) -> str:
        return f"FenceToken({int(self)})"

    __str__ = int.__repr__


@final
class ReadToken(int):
    """The token of a shared or an update lock. A store checks it for reads; it can never write.

    >>> ReadToken(7)
    ReadToken(7)
    """

    __slots__ = ()

    def __new__(cls, number: int) -> ReadToken:
        return super().__new__(cls, _checked("read token", int(number)))

    def __repr__(self) -> str:
        return f"ReadToken({int(self)})"

    __str__ = int.__repr__
