"""The names that examples in docstrings use without saying where they come from: ``fencepost`` and ``client``.

``.ci/python`` loads this as a plugin of pytest when it runs those examples.
"""

from __future__ import annotations

from typing import Any

import fencepost
import pytest


@pytest.fixture(autouse=True)
def names(doctest_namespace: dict[str, Any], fencepost_client: fencepost.Client) -> None:
    """Every example has a client of a real server of its own session."""
    doctest_namespace.update(client=fencepost_client, fencepost=fencepost)
