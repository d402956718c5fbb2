"""The rules of fencing at the store, and nothing else: which access is admitted, and which marks it lifts.

This is the twin of ``crates/fence/src/rules.rs``, which explains the rules. SQLite has no functions of its own, so its guard runs the
rules in this process. A test plays histories that the Rust rules have judged against this file, and against the stores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fencepost.fence._errors import StaleToken

__all__ = ["MarkTable", "Marks", "Shown", "Use", "ancestors", "checked_key", "checked_name"]

#: What an access does under a name. ``claim`` reads and will write later: from then on no older holder may write.
Use: TypeAlias = Literal["read", "claim", "write"]

NAME_BYTES_MAX = 512
PATH_LEVELS_MAX = 16
KEY_BYTES_MAX = 256
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Shown:
    """One name that an access shows, with the token of the lock on it."""

    name: str
    token: int
    use: Use


@dataclass(frozen=True, slots=True)
class Marks:
    """What a store remembers about one name. If a name has no marks, the base floor of the store stands for all four."""

    #: The highest token seen here. Writes with an older token are refused.
    write_floor: int = 0
    #: The highest token that wrote here. Reads with an older token are refused.
    read_floor: int = 0
    #: The highest token seen anywhere below.
    write_floor_below: int = 0
    #: The highest token that wrote anywhere below.
    read_floor_below: int = 0


class MarkTable:
    """The marks of a store, or of a part of it.

    >>> table = MarkTable()
    >>> table.admit([Shown("wallet:7", 5, "claim")])
    >>> table.admit([Shown("wallet:7", 7, "claim")])
    >>> table.admit([Shown("wallet:7", 5, "write")])
    Traceback (most recent call last):
    fencepost.fence._errors.StaleToken: stale fencing token 5 for wallet:7: token 7 has been seen. The lock is lost: acquire it again, ...
    """

    def __init__(self, base: int = 0) -> None:
        #: No token below this one is admitted anywhere.
        self.base = base
        self._marks: dict[str, Marks] = {}

    def restore(self, name: str, marks: Marks) -> None:
        """Loads the marks that a store has kept for a name."""
        self._marks[name] = marks

    # Rule: fence-gc
    def marks(self, name: str) -> Marks:
        """The effective marks of a name: the kept ones, but at least the base floor."""
        kept = self._marks.get(name, Marks())
        return Marks(
            max(kept.write_floor, self.base),
            max(kept.read_floor, self.base),
            max(kept.write_floor_below, self.base),
            max(kept.read_floor_below, self.base),
        )

    def admit(self, shown: Iterable[Shown]) -> None:
        """Admits an access and lifts the marks; or raises ``StaleToken`` about the first token that is too old, and changes nothing."""
        shown = tuple(shown)
        # Everything is checked before any mark moves, so the order of `shown` does not matter.
        for one in shown:
            self._check(one)
        for one in shown:
            self._lift(one)

    # Rule: fence, fence-hierarchy
    def _check(self, shown: Shown) -> None:
        here = self.marks(shown.name)
        if shown.use == "read":
            _floor(shown, shown.name, max(here.read_floor, here.read_floor_below))
            for above in ancestors(shown.name):
                _floor(shown, above, self.marks(above).read_floor)
        else:
            _floor(shown, shown.name, max(here.write_floor, here.write_floor_below))
            for above in ancestors(shown.name):
                _floor(shown, above, self.marks(above).write_floor)

    # Rule: fence, fence-hierarchy, claim-before-read
    def _lift(self, shown: Shown) -> None:
        token = shown.token
        wrote = token if shown.use == "write" else 0
        here = self._marks.get(shown.name, Marks())
        self._marks[shown.name] = Marks(
            max(here.write_floor, token), max(here.read_floor, wrote), here.write_floor_below, here.read_floor_below
        )
        for name in ancestors(shown.name):
            above = self._marks.get(name, Marks())
            self._marks[name] = Marks(
                above.write_floor, above.read_floor, max(above.write_floor_below, token), max(above.read_floor_below, wrote)
            )

    # Rule: fence-gc
    def forget_below(self, oldest_live: int) -> int:
        """Raises the base floor to this token, and forgets the marks that are not above it. Returns how many were forgotten."""
        self.base = max(self.base, oldest_live)
        # The floors for reads need no look: every write lifts the floors for writes at least as far.
        kept = {name: marks for name, marks in self._marks.items() if max(marks.write_floor, marks.write_floor_below) > self.base}
        forgotten = len(self._marks) - len(kept)
        self._marks = kept
        return forgotten


def _floor(shown: Shown, at: str, highest: int) -> None:
    if shown.token < highest:
        raise StaleToken(shown.name, shown.token, at, highest)


def ancestors(name: str) -> Iterator[str]:
    """The names above a path, from the top. A name that does not begin with ``/`` is no path, and has none.

    >>> list(ancestors("/a/b/c")), list(ancestors("a/b"))
    (['/a', '/a/b'], [])
    """
    end = name.find("/", 1) if name.startswith("/") else -1
    while end != -1:
        yield name[:end]
        end = name.find("/", end + 1)


def checked_name(name: str) -> str:
    """The name, if it is one: the lock service has the same rule."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a lock is a str, not {type(name).__name__}")
    _plain(name, "the name", NAME_BYTES_MAX, "a resource name")
    if name.startswith("/"):
        segments = name[1:].split("/")
        if "" in segments:
            raise ValueError(
                "the name is not valid: a name that begins with '/' is a path: no empty segment, so neither '//' nor a '/' at the end"
            )
        if len(segments) > PATH_LEVELS_MAX:
            raise ValueError(f"the name is not valid: a path has at most {PATH_LEVELS_MAX} levels")
    return name


def checked_key(key: str) -> str:
    """The key of a piece of work, if it is one: one key serves the lock service and the store."""
    if not isinstance(key, str):
        raise TypeError(f"the key of a piece of work is a str, not {type(key).__name__}")
    return _plain(key, "the key", KEY_BYTES_MAX, "a job's key")


def _plain(text: str, what: str, bytes_max: int, whose: str) -> str:
    # A lone surrogate is no text: this raises UnicodeEncodeError, which is a ValueError.
    size = len(text.encode())
    if size == 0:
        raise ValueError(f"{what} is not valid: empty: say at least one character")
    if size > bytes_max:
        raise ValueError(f"{what} is not valid: {whose} has at most {bytes_max} bytes")
    if _CONTROL.search(text):
        raise ValueError(f"{what} is not valid: control characters are not allowed")
    return text
