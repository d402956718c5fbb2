"""Runs the Python code that pages for people show, and tells whether a test file runs all of it.

A block of a page has a name, in a comment before it: ``<!-- python: name -->``. A test runs it as ``run_shown("page.md", "name", ...)``.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
GUIDES = ROOT / "docs" / "guides"
#: The page that opens the package, and the one that opens the project.
README = "README.md"
PROJECT_README = "/README.md"


def path_of(page: str) -> Path:
    if page == PROJECT_README:
        return ROOT / "README.md"
    return ROOT / "sdk" / "python" / README if page == README else GUIDES / page


def text_of(page: str) -> str:
    return path_of(page).read_text(encoding="utf-8")


def shown(page: str, name: str) -> str:
    """The code of a page after ``<!-- python: name -->``."""
    _, found, rest = text_of(page).partition(f"<!-- python: {name} -->\n```python\n")
    assert found, f"{page} has no {name}"
    return rest.partition("```")[0]


def run_shown(page: str, name: str, **names: Any) -> dict[str, Any]:
    """Runs the code of a page with these names, and returns what it has defined. Code that awaits becomes the coroutine function ``shown``."""
    code = shown(page, name)
    where = f"{page}: {name}"
    try:
        compiled = compile(code, where, "exec")
    except SyntaxError:
        compiled = compile("async def shown():\n" + textwrap.indent(code, "    "), where, "exec")
    exec(compiled, names)
    return names


def assert_all_run(pages: tuple[str, ...], tests: Path, least: int) -> None:
    """Every block of Python in these pages has a name, and the test file runs it. There are at least so many."""
    here = tests.read_text(encoding="utf-8")
    blocks = 0
    for page in pages:
        text = text_of(page)
        names = re.findall(r"<!-- python: (.*) -->\n```python\n", text)
        assert len(names) == len(set(names)) == text.count("```python\n"), f"{page} has a block without a name of its own"
        for name in names:
            call = rf'\brun_\w+\("{re.escape(page)}", "{re.escape(name)}"'
            assert re.search(call, here), f"{name} of {page} does not run"
        blocks += len(names)
    assert blocks >= least, f"{blocks} blocks were found"
