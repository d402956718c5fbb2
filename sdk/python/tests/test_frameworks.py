"""The package in the frameworks that fork: gunicorn with a preloaded application, and the prefork pool of Celery.

The applications are as a user writes them: the client is made in a module, which the parent of all workers imports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from conftest import PATIENCE_S, eventually
from programs import TTL_S, held_on, nothing_is_left, sessions_on
from stores import driver, end_servers, redis_address

from fencepost.testing import Server

__all__ = ["end_servers", "redis_address"]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that no other test uses."""
    with Server() as server:
        yield server


class Service:
    """A service of several processes, which all write into one log. It is killed at the end of ``with``."""

    def __init__(self, server: Server, place: Path, module: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> None:
        self._log = place / "log"
        environment = {**os.environ, "FENCEPOST_SERVER": server.address.removeprefix("fencepost://")}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", module, *arguments],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=pass_fds,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal_end(self) -> None:
        """Asks it to end in order: only its main process gets the signal."""
        self._process.terminate()

    def ends(self) -> None:
        """It ends in order, and none of its processes has crashed or complained."""
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {PATIENCE_S:.0f} s:\n{self.log}") from None
        assert self._process.returncode == 0, f"code {self._process.returncode}:\n{self.log}"
        for word in ("Fatal Python error", "panicked", "Traceback", "Exception ignored", "WorkerLostError"):
            assert word not in self.log, self.log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            error.add_note(f"the log:\n{self.log}")
        try:
            # Its process group, which it leads.
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


# ---- gunicorn

SHOP = f"""
import itertools, json, os
from pathlib import Path

import fencepost

client = fencepost.connect(ttl={TTL_S})
stock = Path(__file__).with_name("stock")
numbers = itertools.count()
used = None
"""

#: What the master does with the client before it forks.
MASTERS = {
    "has not used the client": "",
    "has used the client": "with client.lock('stock') as lock: used = lock.session",
    # The guide says not to do this. The workers are told.
    "holds a lock": "held = client.lock('held').acquire(); used = held.session",
}

APPLICATION = """
def count():
    # Without the lock, two workers would read the same number.
    with client.lock("stock", wait=None) as lock:
        stock.write_text(str(int(stock.read_text()) + 1))
        return {"pid": os.getpid(), "session": lock.session, "token": lock.fence_token, "used": used}

def leave():
    return client.lock(f"left/{os.getpid()}/{next(numbers)}").acquire().name

def check():
    try:
        held.check()
    except fencepost.LockForked as forked:
        return str(forked)

def application(environ, start_response):
    answer = {"/count": count, "/leave": leave, "/check": check}[environ["PATH_INFO"]]()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
"""


class Gunicorn(Service):
    def __init__(self, server: Server, place: Path, master: str, *arguments: str) -> None:
        (place / "shop.py").write_text(f"{SHOP}{MASTERS[master]}\n{APPLICATION}")
        (place / "stock").write_text("0")
        with socket.create_server(("127.0.0.1", 0)) as listens:
            self._port: int = listens.getsockname()[1]
            bind = f"fd://{listens.fileno()}"
            command = ["--preload", "--bind", bind, "--no-control-socket", "--timeout", "0", "--graceful-timeout", "60"]
            super().__init__(server, place, "gunicorn", *command, *arguments, "shop:application", pass_fds=(listens.fileno(),))

    def ask(self, path: str) -> Any:
        # Until it serves, its queue of connections keeps this one.
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)


@pytest.mark.parametrize("workers", ["sync", "gthread"])
@pytest.mark.parametrize("master", MASTERS)
def test_gunicorn_workers_use_the_client_of_a_preloaded_module(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, master: str, workers: str
) -> None:
    driver(request, "gunicorn", "gunicorn")
    arguments = ["--workers", "3", "--worker-class", workers, "--threads", "4" if workers == "gthread" else "1"]
    answers: list[dict[str, Any]] = []
    with Gunicorn(server, tmp_path, master, *arguments) as gunicorn, ThreadPoolExecutor(12) as browsers:

        def all_have_worked() -> bool:
            answers.extend(browsers.map(gunicorn.ask, ["/count"] * 24))
            return len({answer["pid"] for answer in answers}) == 3

        eventually("each worker has answered", all_have_worked)
        assert (tmp_path / "stock").read_text() == str(len(answers))
        assert len({answer["token"] for answer in answers}) == len(answers)
        sessions = {(answer["pid"], answer["session"]) for answer in answers}
        assert len(sessions) == 3 and len({session for _, session in sessions}) == 3
        used = answers[0]["used"]
        assert used not in {session for _, session in sessions}
        assert set(sessions_on(server)) == {session for _, session in sessions} | ({used} if used else set())
        left = [gunicorn.ask("/leave") for _ in range(3)]
        if master == "holds a lock":
            assert "belongs to the process that took it" in gunicorn.ask("/check")
            left.append("held")
        assert held_on(server) == sorted(left)
        gunicorn.signal_end()
        gunicorn.ends()
    nothing_is_left(server)


@pytest.mark.parametrize("master", MASTERS)
def test_a_gunicorn_worker_that_is_replaced_gives_its_locks_back(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path, master: str
) -> None:
    driver(request, "gunicorn", "gunicorn")
    with Gunicorn(server, tmp_path, master, "--workers", "2", "--max-requests", "1") as gunicorn:
        left = [gunicorn.ask("/leave") for _ in range(4)]
        assert len(set(left)) == 4
        # The workers that held them are gone; the master is not.
        masters = ["held"] if master == "holds a lock" else []
        eventually("the locks are given back", lambda: held_on(server) == masters)
        sessions = 0 if master == "has not used the client" else 1
        eventually("the sessions are closed", lambda: len(sessions_on(server)) == sessions)
        gunicorn.signal_end()
        gunicorn.ends()
    nothing_is_left(server)


# ---- Celery

TASKS = f"""
import os, time
from pathlib import Path

import fencepost
from celery import Celery

from settings import SETTINGS

app = Celery("tasks")
app.conf.update(SETTINGS)

client = fencepost.connect(ttl={TTL_S})
place = Path(__file__).parent
stock = place / "stock"
used = None
"""

BILLING = """
@app.task(name="count")
def count():
    with client.lock("stock", wait=None) as lock:
        stock.write_text(str(int(stock.read_text()) + 1))
        return {"pid": os.getpid(), "session": lock.session, "token": lock.fence_token, "used": used}

@app.task(name="hold")
def hold():
    with client.lock("held by a task") as lock:
        (place / "holds").touch()
        while not (place / "go").exists():
            time.sleep(0.01)
        lock.check()
        return lock.session

@app.task(name="leave")
def leave():
    lock = client.lock(f"left/{os.getpid()}").acquire()
    return lock.name
"""


class Celery(Service):
    def __init__(self, server: Server, redis: str, place: Path, master: str, *arguments: str) -> None:
        (place / "stock").write_text("0")
        settings = {
            "broker_url": redis,
            "result_backend": redis,
            # The tests of a process share a Redis.
            "task_default_queue": str(place),
            "broker_connection_retry_on_startup": True,
            "worker_enable_remote_control": False,
        }
        (place / "settings.py").write_text(f"SETTINGS = {settings!r}")
        (place / "tasks.py").write_text(f"{TASKS}{MASTERS[master]}\n{BILLING}")
        celery: Any = import_module("celery")
        self._sender = celery.Celery("sender", set_as_current=False)
        self._sender.conf.update(settings)
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
        super().__init__(server, place, "celery", "-A", "tasks", "worker", "--pool", "prefork", *quiet, *arguments)

    def send(self, task: str) -> Any:
        return self._sender.send_task(task)

    def result(self, sent: Any) -> Any:
        return sent.get(timeout=PATIENCE_S, interval=0.02)

    def result_of(self, task: str) -> Any:
        return self.result(self.send(task))


@pytest.mark.parametrize("master", ["has not used the client", "has used the client"])
def test_celery_tasks_use_the_client_of_their_module(
    request: pytest.FixtureRequest, server: Server, redis_address: str, tmp_path: Path, master: str
) -> None:
    driver(request, "celery", "celery")
    answers: list[dict[str, Any]] = []
    with Celery(server, redis_address, tmp_path, master, "--concurrency", "2") as celery:

        def both_have_worked() -> bool:
            sent = [celery.send("count") for _ in range(8)]
            answers.extend(celery.result(each) for each in sent)
            return len({answer["pid"] for answer in answers}) == 2

        eventually("each process of the pool has worked", both_have_worked)
        assert (tmp_path / "stock").read_text() == str(len(answers))
        assert len({answer["token"] for answer in answers}) == len(answers)
        sessions = {(answer["pid"], answer["session"]) for answer in answers}
        assert len(sessions) == 2 and len({session for _, session in sessions}) == 2
        assert answers[0]["used"] not in {session for _, session in sessions}
        assert held_on(server) == []
        celery.signal_end()
        celery.ends()


def test_a_celery_process_that_ends_warm_gives_its_locks_back(
    request: pytest.FixtureRequest, server: Server, redis_address: str, tmp_path: Path
) -> None:
    """One task holds a lock while the shutdown begins, and ends in order. Another one has taken a lock and not released it."""
    driver(request, "celery", "celery")
    with Celery(server, redis_address, tmp_path, "has used the client", "--concurrency", "2") as celery:
        left = celery.result_of("leave")
        sent = celery.send("hold")
        eventually("the task holds its lock", (tmp_path / "holds").exists)
        celery.signal_end()
        eventually("it shuts down", lambda: "Warm shutdown" in celery.log)
        assert held_on(server) == ["held by a task", left]
        (tmp_path / "go").touch()
        assert celery.result(sent)
        celery.ends()
    nothing_is_left(server)


def test_a_celery_process_that_is_replaced_gives_its_locks_back(
    request: pytest.FixtureRequest, server: Server, redis_address: str, tmp_path: Path
) -> None:
    """``max-tasks-per-child`` ends a process between two tasks."""
    driver(request, "celery", "celery")
    with Celery(server, redis_address, tmp_path, "has used the client", "--concurrency", "1", "--max-tasks-per-child", "1") as celery:
        first, second = celery.result_of("leave"), celery.result_of("leave")
        assert first != second
        sessions = {celery.result_of("count")["session"] for _ in range(2)}
        assert len(sessions) == 2
        eventually("the locks of the ended processes are given back", lambda: held_on(server) == [])
        celery.signal_end()
        celery.ends()
    nothing_is_left(server)

