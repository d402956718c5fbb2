"""Threads for the program's own code: ``on_lost`` functions and log handlers.

Both may be slow or hang, so they do not run on the bridge thread, which carries the results of all requests.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

__all__ = ["call", "log"]

logger = logging.getLogger("fencepost")

#: How many ``on_lost`` functions run at a time. Others wait.
_CALLS_MAX = 64
#: How many log records may wait for a handler. Others are counted and left out.
_LOGS_MAX = 1_000


class _Threads:
    """Daemon threads that are started when they are needed, up to a number, and end after a while without work."""

    def __init__(self, name: str, count_max: int) -> None:
        self._name = name
        self._count_max = count_max
        self.restart()

    def restart(self) -> None:
        """Forgets threads and work: a child of a fork has neither."""
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0

    def waiting(self) -> int:
        return self._work.qsize()

    def start(self, work: Callable[[], None]) -> None:
        with self._lock:
            starts = self._idle <= self._work.qsize() and self._count < self._count_max
            if starts:
                self._count += 1
            self._work.put(work)
        if starts:
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError:  # The interpreter ends, or the system has no thread left.
                with self._lock:
                    self._count -= 1

    def finish(self, seconds: float) -> None:
        """Waits until the work is done that one thread has been given, but not for long."""
        done = threading.Event()
        with self._lock:
            if self._count == 0:
                return
            self._work.put(done.set)
        done.wait(seconds)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                work = self._work.get(timeout=10)
            except queue.Empty:
                with self._lock:
                    self._idle -= 1
                    if self._work.empty():
                        self._count -= 1
                        return
                continue
            with self._lock:
                self._idle -= 1
            try:
                work()
            except Exception:
                logger.exception("a function of this program failed in the background")


_calls = _Threads("fencepost-on-lost", _CALLS_MAX)
_logs = _Threads("fencepost-log", 1)
_left_out = 0


def _in_child() -> None:
    _calls.restart()
    _logs.restart()


os.register_at_fork(after_in_child=_in_child)


def call(function: Callable[[], None]) -> None:
    """Calls a function of the program on a thread of its own."""
    _calls.start(function)


def finish_logs(seconds: float) -> None:
    """Lets the handlers write what they have been given, but not for longer."""
    _logs.finish(seconds)


def log(level: int, text: str, left_out: int) -> None:
    """Logs what the library says. The bridge thread calls this: it never waits for a handler."""
    global _left_out
    _left_out += left_out
    if _logs.waiting() >= _LOGS_MAX:
        _left_out += 1
        return
    if _left_out > 0:
        text, _left_out = f"{text} (before this, {_left_out} records were left out)", 0
    _logs.start(lambda: logger.log(level, text))
