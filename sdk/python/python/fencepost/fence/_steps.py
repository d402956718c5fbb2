"""How the guards talk to a database: each is a generator of statements, so that one text serves drivers with and without ``await``.

A guard yields a statement and gets the first row of its result, or the error of the driver, at that place. What it returns is the outcome.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

__all__ = ["Row", "Steps", "run"]

Done = TypeVar("Done")
Row: TypeAlias = tuple[Any, ...] | None
Statement: TypeAlias = tuple[str, Sequence[object]]
Steps: TypeAlias = Generator[Statement, Row, Done]


def run(cursor: Any, steps: Steps[Done]) -> Done:
    """Runs the statements of a guard on a cursor as PEP 249 describes it."""
    try:
        statement = next(steps)
        while True:
            try:
                cursor.execute(*statement)
                row = _as_tuple(cursor.fetchone()) if cursor.description is not None else None
            except Exception as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(row)
    except StopIteration as done:
        outcome: Done = done.value
        return outcome


def _as_tuple(row: Any) -> Row:
    """The values of a row in their order: the program may have chosen cursors that make dictionaries."""
    if row is None:
        return None
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)
