"""What all tests share: clients, names, and waiting for a condition."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import fencepost
from fencepost.testing import Server

T = TypeVar("T")

#: How long a test waits for what must happen. Long, because a busy machine is slow.
PATIENCE_S = 60.0
#: The long runs: `./test long python`.
IS_SOAK = os.environ.get("FENCEPOST_SOAK_PYTHON") == "1"

_numbers = itertools.count()


def eventually(what: str, condition: Callable[[], T | None]) -> T:
    """Waits until the condition is true, and returns what it says."""
    until = time.monotonic() + PATIENCE_S
    while True:
        said = condition()
        if said:
            return said
        if time.monotonic() > until:
            raise AssertionError(f"this did not happen within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.002)


@pytest.fixture
def name() -> str:
    """A name of its own for each test."""
    return f"test/{os.getpid()}/{next(_numbers)}"


@pytest.fixture
def client(fencepost_client: fencepost.Client) -> fencepost.Client:
    return fencepost_client


@pytest.fixture
def other(fencepost_server: Server) -> Iterator[fencepost.Client]:
    """A second client, with a session of its own."""
    with fencepost_server.client(name="other") as client:
        yield client


@pytest.fixture
def broken(fencepost_server: Server) -> Callable[[str], Any]:
    """An administrator breaks the lock on a name: its holder loses it."""
    return lambda name: fencepost_server.run("break", name, "--yes", "--reason", "the test says so")


@pytest.fixture(autouse=True)
def _for_doctests(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["fencepost"] = fencepost
