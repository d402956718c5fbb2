"""Programs that tests run in processes of their own: what they are told, what they say, and how they end.

Every program begins with :data:`BEGINNING`: it has a client, ``tell`` for a line to the test, and ``listen`` for a line from the test. It
stands in a file, so that ``multiprocessing`` can import it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from conftest import PATIENCE_S, eventually
from fencepost.testing import Server

#: The TTL of every program. A lock that is free long before this was given back.
TTL_S = 600
#: An end may take 2 seconds. The rest is for a busy machine, and far below the other limits of :data:`BEGINNING`.
EXIT_S = 2 + 20

BEGINNING = f"""
import asyncio, gc, json, logging, os, random, signal, socket, struct, sys, threading, time
import fencepost

client = fencepost.connect(ttl={TTL_S}, connect_timeout=300, call_timeout=300)

def tell(*words):
    # In one piece, because several threads and processes may tell.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def listen():
    return sys.stdin.readline().strip()

"""


class Program:
    """A program that runs beside the test. It is killed at the end of ``with``, with the children that it left."""

    def __init__(self, server: Server | None, code: str, *flags: str, address: str = "", beginning: str = BEGINNING) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fencepost-program-")
        place = Path(self._directory.name)
        file = place / "program.py"
        file.write_text(beginning + textwrap.dedent(code), encoding="utf-8")
        self._said, self._complaints = place / "stdout", place / "stderr"
        environment = {**os.environ, "FENCEPOST_SERVER": (address or (server.address if server else "")).removeprefix("fencepost://")}
        # Into files: a child that lives on would keep pipes open.
        with open(self._said, "wb") as stdout, open(self._complaints, "wb") as stderr:
            self.process = subprocess.Popen(
                # From 3.12 on, Python warns of a fork in a program with threads. The tests fork there.
                [sys.executable, "-X", "faulthandler", "-W", "ignore:This process:DeprecationWarning", *flags, str(file)],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self._told_at = time.monotonic()

    @property
    def said(self) -> list[str]:
        """The lines that it has told. The last one may not be complete yet, and is left out then."""
        return self._said.read_text(errors="replace").split("\n")[:-1]

    @property
    def complaints(self) -> str:
        """What is in its standard error."""
        return self._complaints.read_text(errors="replace")

    def hear(self, word: str) -> str:
        """Waits for a line that begins with this word, and returns the rest of it."""

        def heard() -> str | None:
            # Asked first: a process that has ended says nothing after that.
            has_ended = self.process.poll() is not None
            for line in self.said:
                if line.partition(" ")[0] == word:
                    return line
            assert not has_ended, f"it ended without saying {word!r}:\n{self.description}"
            return None

        return eventually(f"the program says {word!r}", heard).removeprefix(word).strip()

    def hear_json(self, word: str) -> Any:
        """As :meth:`hear`, for a value."""
        return json.loads(self.hear(word))

    def tell(self, line: str = "") -> None:
        """Sends it a line."""
        assert self.process.stdin is not None
        self._told_at = time.monotonic()
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._told_at = time.monotonic()
        self.process.send_signal(number)

    def wait(self) -> float:
        """Waits for its end, and returns the seconds since the last word or signal to it. A program that hangs shows its threads."""
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            # It may be stopped.
            self.process.send_signal(signal.SIGCONT)
            self.process.wait()
            raise AssertionError(f"it did not end within {PATIENCE_S:.0f} s:\n{self.description}") from None
        return time.monotonic() - self._told_at

    def ends(self, code: int = 0, complaint: str = "") -> float:
        """It ends with this code and, in its standard error, at most the traceback of this exception. Returns the seconds, as :meth:`wait`."""
        seconds = self.wait()
        assert self.process.returncode == code, self.description
        if complaint:
            assert self.complaints.startswith("Traceback (most recent call last):\n"), self.description
            assert self.complaints.splitlines()[-1] == complaint, self.description
            # asyncio shows that of its task, too.
            assert self.complaints.count("Traceback") == 1 + self.complaints.count("During handling of the above exception"), self.description
        else:
            assert self.complaints == "", self.description
        self.assert_no_crash()
        return seconds

    def assert_no_crash(self) -> None:
        """For a program whose own threads or tasks may complain at its end."""
        for word in ("Fatal Python error", "panicked", "Exception ignored in: <function", "SystemError"):
            assert word not in self.complaints, self.description

    @property
    def description(self) -> str:
        said = "\n".join(self.said)
        return f"code {self.process.returncode}\n--- stdout\n{said}\n--- stderr\n{self.complaints}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            # Its process group, which it leads.
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._directory.cleanup()


def held_on(server: Server) -> list[str]:
    """The names that are held or waited for on a server."""
    locks = json.loads(server.run("locks", "-o", "json"))
    return sorted(lock["name"] for row in [*locks["held"], *locks["waiting"]] for lock in row["locks"])


def sessions_on(server: Server) -> list[str]:
    """The sessions of a server."""
    return sorted(row["session"] for row in json.loads(server.run("sessions", "-o", "json")))


def nothing_is_left(server: Server) -> None:
    """The server has no lock, no waiting request and no session. Long before :data:`TTL_S`, so they were given back."""
    eventually("nothing is held, and no session is open", lambda: held_on(server) == [] and sessions_on(server) == [])
