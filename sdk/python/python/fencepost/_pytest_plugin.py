"""The pytest plugin: a real server for tests, as fixtures.

    def test_one_holder(fencepost_client):
        with fencepost_client.lock("wallet:7"):
            ...

All tests of a session share one server, so tests that must not meet use different names. pytest imports this module in every project
where the package is installed: it imports nothing of ``fencepost`` until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fencepost import Client
    from fencepost.testing import Server


@pytest.fixture(scope="session")
def fencepost_server() -> Iterator[Server]:
    """A real server with one node, in memory, that all tests of the session share."""
    from fencepost.testing import Server

    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def fencepost_address(fencepost_server: Server) -> str:
    """The address of ``fencepost_server``, for ``fencepost.connect``."""
    return fencepost_server.address


@pytest.fixture
def fencepost_client(fencepost_server: Server) -> Iterator[Client]:
    """A client of ``fencepost_server`` for one test. It is closed at the end, and its locks are given back."""
    client = fencepost_server.client()
    try:
        yield client
    finally:
        client.close()
