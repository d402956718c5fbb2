"""What the interpreter does to a program that holds a lock: it stops every thread of Python, and it interrupts the main one anywhere."""

from __future__ import annotations

import ctypes
import dis
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from conftest import eventually

import fencepost
from fencepost import Client
from fencepost.testing import Server

PACKAGE = str(Path(fencepost.__file__).parent)


def test_a_lock_stays_held_while_no_thread_of_python_runs(
    fencepost_server: Server, other: Client, name: str
) -> None:
    with fencepost_server.client(ttl=2) as client, client.lock(name) as lock:
        token, session = lock.fence_token, lock.session
        # A call through PyDLL keeps the GIL, as a bad extension module does.
        ctypes.PyDLL(None).sleep(6)
        lock.check()
        assert (lock.fence_token, lock.session) == (token, session) and lock.remaining > 0
        assert other.lock(name).try_acquire() is None


def interrupt_when(what: str, condition: Callable[[], bool]) -> threading.Thread:
    """Presses Ctrl-C, on another thread, when the condition is true."""

    def press() -> None:
        eventually(what, condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.mark.parametrize("wait", [None, 60], ids=["without an end", "with an end"])
def test_ctrl_c_ends_a_wait_and_leaves_the_queue(client: Client, other: Client, name: str, wait: float | None) -> None:
    with other.lock(name):
        pressing = interrupt_when("the client waits", lambda: other.explain(name).waiting == 1)
        with pytest.raises(KeyboardInterrupt), client.lock(name, wait=wait):
            raise AssertionError("the body runs without its lock")
        pressing.join()
        eventually("it has left the queue", lambda: other.explain(name).waiting == 0)
    with other.lock(name, wait=0), client.lock(f"{name}/b") as lock:
        assert lock.is_held


def test_ctrl_c_ends_a_wait_for_a_loss_and_for_an_event(client: Client, other: Client, name: str) -> None:
    with client.lock(name) as lock:
        waits: list[Callable[[], Any]] = [lock.lost.wait, lambda: next(other.watch(f"{name}/nothing"))]
        for wait in waits:
            reached = threading.Event()
            pressing = interrupt_when("the wait begins", reached.is_set)
            with pytest.raises(KeyboardInterrupt):
                reached.set()
                wait()
                raise AssertionError("the wait is over")
            pressing.join()
        assert lock.is_held


def test_ctrl_c_ends_no_wait_of_another_thread(client: Client, other: Client, name: str) -> None:
    tokens: list[int] = []

    def work() -> None:
        with client.lock(name, wait=None) as lock:
            tokens.append(lock.fence_token)

    with other.lock(name) as lock:
        thread = threading.Thread(target=work)
        thread.start()
        pressing = interrupt_when("the thread waits", lambda: other.explain(name).waiting == 1)
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait()
        pressing.join()
        assert other.explain(name).waiting == 1
        first = lock.fence_token
    thread.join()
    assert tokens[0] > first


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


class Stepper:
    """Interrupts the code of the package at one of the points where the interpreter handles signals.

    These are: where a function begins, after a jump backwards, and after a call of C code. A signal is handled within the instruction of the
    call, and this interrupts the next one. So an instruction that an `except` or a `with` no longer covers, if it covered the call, is left out.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.steps = 0
        #: Where it was interrupted.
        self.where: str | None = None
        #: For each frame, its last instruction, unless that has called a function in Python.
        self.last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call" and frame.f_back is not None:
            self.last.pop(frame.f_back, None)
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode" and frame.f_code.co_name != "__del__":
            last, now = self.last.get(frame), frame.f_lasti
            self.last[frame] = now
            if last is not None and handles_signals(frame.f_code, last) and handler(frame.f_code, last) == handler(frame.f_code, now):
                self.steps += 1
                if self.steps == self.step:
                    self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}, instruction {now}"
                    raise Interrupted
        return self

    def run(self, work: Callable[[], object]) -> str | None:
        """Runs the work. Says where it was interrupted; ``None`` if it is over before that."""
        before = sys.gettrace()
        try:
            sys.settrace(self)
            work()
        except Interrupted:
            return self.where
        finally:
            sys.settrace(before)
        assert self.where is None, f"an interrupt was swallowed: {self.where}"
        return None


def handles_signals(code: CodeType, at: int) -> bool:
    return dis.opname[code.co_code[at]].startswith(("CALL", "RESUME", "JUMP_BACKWARD"))


@cache
def handler(code: CodeType, at: int) -> int | None:
    """Where an exception at this instruction goes."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return next((entry.target for entry in entries if entry.start <= at < entry.end), None)


def works(client: Client, name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    keys = itertools.count()

    def block() -> None:
        with client.lock(name, wait=60) as lock:
            lock.check()

    def block_of_a_held_lock() -> None:
        with client.lock(name, wait=60) as reader, reader:
            pass

    def upgrade() -> None:
        with client.lock(name, mode=fencepost.UPDATE, wait=60) as reader:
            reader.upgrade(wait=60)

    @client.locked(name, wait=60)
    def decorated() -> None:
        pass

    def job() -> None:
        client.job(name, key=str(next(keys)), wait=60).run(lambda job: None)

    def lead() -> None:
        with client.election(name, wait=60).campaign("me"):
            pass

    yield "a block", block
    yield "a block in a block", block_of_a_held_lock
    yield "an upgrade", upgrade
    yield "a decorated function", decorated
    yield "a job", job
    yield "a leadership", lead


@pytest.mark.parametrize("number", range(6))
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_at_any_instruction_leaves_nothing(client: Client, other: Client, name: str, number: int) -> None:
    what, work = list(works(client, name))[number]
    # In some versions of Python the first run has no event for each instruction.
    assert Stepper(sys.maxsize).run(work) is None
    step = 1
    while where := Stepper(step).run(work):
        eventually(f"nothing is left of {what} that is interrupted in {where}", lambda: other.explain(name).is_free)
        step += 1
    assert step > 20, f"{what} has only {step} steps"
