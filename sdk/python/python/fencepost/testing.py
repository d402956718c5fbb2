"""Real Fencepost servers for tests: the program ``fencepost``, on free ports of the loopback, in a temporary directory.

>>> from fencepost.testing import Server
>>> with Server() as server:
...     with server.client() as client, client.lock("wallet:7"):
...         print("wallet:7" in server.run("locks"))
True

The program is looked for in ``FENCEPOST_BIN``, beside the Python interpreter, and in ``PATH``. ``pip install fencepost-server`` installs it.

Everything ends with the process that started it, even if that process is killed: each server has a keeper, a shell that reads from a pipe
whose other end only this process holds. When the pipe closes, the keeper kills the server and removes its directory.

With pytest, use the fixtures ``fencepost_server``, ``fencepost_address`` and ``fencepost_client``. Linux and macOS only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar, final

from fencepost import Client, connect

__all__ = ["Cluster", "CommandFailed", "Server", "ServerNotFound", "StartFailed"]

_T = TypeVar("_T")

#: Long enough for a node to start on a busy machine.
START_TIMEOUT = 60.0
#: How long a node has for a graceful end. It is killed after that.
STOP_TIMEOUT = 10.0
#: Attempts to start a node of a cluster: another process may take a port that was free a moment ago.
_TRIES = 5
#: Lines of output in the message of a failed start.
_TAIL_LINES = 30
#: The ports of a cluster's nodes. They lie below those that the system gives to outgoing connections, so that no connection takes the port
#: of a node while that node is down.
_PORTS = range(12_000, 30_000)

#: Becomes the server by ``exec``, so that the server has the process id that we know. ``$$`` is that id in the background, too. A line of
#: input says that the server was waited for; the end of the input says that our process is gone.
_KEEPER = """
exec 3<&0
(read -r _ <&3 || { kill -KILL $$; rm -rf "$0"; }) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"""


class ServerNotFound(FileNotFoundError):
    """The program ``fencepost`` was not found. The text says how to install it."""


class StartFailed(RuntimeError):
    """A node did not start. The text has the last lines of what it printed."""


class CommandFailed(subprocess.CalledProcessError):
    """A ``fencepost`` command did not end with exit code 0. ``returncode``, ``stdout`` and ``stderr`` have what came of it."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}".rstrip()


class Server:
    """One node that keeps everything in memory. It runs when the constructor returns, and ends with ``stop()`` or at the end of ``with``.

    For a node that keeps its state when it is killed and started again, use ``Cluster(nodes=1)``.
    """

    def __init__(self) -> None:
        self._binary = _find_binary()
        self._directory = _Directory()
        self._node = _Node(self._directory.path, "server")
        try:
            self._node.start([self._binary, "dev", "--listen", "127.0.0.1:0"])
            said = self._node.wait_for(re.compile(r"^ready: (\S+) ", re.MULTILINE))
        except BaseException:
            self.stop()
            raise
        self._endpoint = said.group(1)

    @property
    def address(self) -> str:
        """The address for clients, such as ``fencepost://127.0.0.1:40001``."""
        return f"fencepost://{self._endpoint}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._node.pid

    @property
    def log(self) -> str:
        """What the server has printed."""
        return self._node.log

    def client(self, **settings: Any) -> Client:
        """A new client of this server: ``fencepost.connect(server.address, **settings)``. The caller closes it."""
        return connect(self.address, **settings)

    def run(self, *arguments: str, timeout: float = 60.0) -> str:
        """Runs ``fencepost`` with these arguments against this server, and returns what it prints: ``server.run("locks", "-o", "json")``.

        Raises ``CommandFailed`` if its exit code is not 0.
        """
        return _run(self._binary, self._endpoint, arguments, timeout)

    def pause(self) -> None:
        """Stops the process as a long pause of the machine does (SIGSTOP): connections stay, and nothing is answered."""
        self._node.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process continue (SIGCONT)."""
        self._node.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process as a crash does (SIGKILL). All locks are lost, because they were in memory."""
        self._node.kill()

    def stop(self) -> None:
        """Ends the process gracefully, and removes its directory. Does nothing the second time, and nothing in a forked child."""
        self._node.stop()
        self._directory.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server({self.address!r})"


class Cluster:
    """A cluster of real nodes, each a process of its own with its log on disk: what a node promised survives ``kill`` and ``restart``.

    The nodes are called ``n1``, ``n2``, ``n3``. All of them vote when the constructor returns.
    """

    def __init__(self, nodes: int = 3) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self._binary = _find_binary()
        self._directory = _Directory()
        self._nodes: dict[str, _Node] = {}
        #: The ports of each node: for clients, for HTTP and for the other nodes. A node that starts again has the same.
        self._ports: dict[str, tuple[int, int, int]] = {}
        try:
            for place in range(nodes):
                self._add(f"n{place + 1}")
        except BaseException:
            self.stop()
            raise

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes, also of those that do not run."""
        return tuple(self._nodes)

    @property
    def address(self) -> str:
        """The address for clients, with all nodes: ``fencepost://127.0.0.1:12001,127.0.0.1:12004,127.0.0.1:12007``."""
        return f"fencepost://{self._endpoints()}"

    def address_of(self, node: str) -> str:
        """The address of one node alone. A client that gets it finds the others through that node."""
        return f"fencepost://127.0.0.1:{self._ports[self._known(node)][0]}"

    def pid(self, node: str) -> int:
        """The id of a node's process."""
        return self._nodes[self._known(node)].pid

    def log(self, node: str) -> str:
        """What a node has printed."""
        return self._nodes[self._known(node)].log

    def client(self, **settings: Any) -> Client:
        """A new client that knows all nodes: ``fencepost.connect(cluster.address, **settings)``. The caller closes it."""
        return connect(self.address, **settings)

    def run(self, *arguments: str, timeout: float = 60.0) -> str:
        """Runs ``fencepost`` with these arguments against this cluster, and returns what it prints. As ``Server.run``."""
        return _run(self._binary, self._endpoints(), arguments, timeout)

    def leader(self, timeout: float = START_TIMEOUT) -> str:
        """Waits until a node that runs and is not paused leads, and returns its name."""

        def leads() -> str | None:
            for member in self._members():
                node = self._nodes.get(str(member["name"]))
                if member["leads"] and node is not None and node.runs and not node.paused:
                    return str(member["name"])
            return None

        return _wait_until("a running node leads", leads, timeout)

    def pause(self, node: str) -> None:
        """Stops a node's process as a long pause of its machine does (SIGSTOP)."""
        self._nodes[self._known(node)].signal(signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """Lets a paused node continue (SIGCONT)."""
        self._nodes[self._known(node)].signal(signal.SIGCONT)

    def kill(self, node: str) -> None:
        """Kills a node's process as a crash does (SIGKILL). Its log stays on disk."""
        self._nodes[self._known(node)].kill()

    def restart(self, node: str) -> None:
        """Starts a node again, with its log and its addresses, and kills it first if it runs. Returns when it listens."""
        self.kill(node)
        self._launch(node, [])

    def stop(self) -> None:
        """Ends all nodes at once, and removes their logs. Does nothing the second time, and nothing in a forked child."""
        for node in self._nodes.values():
            node.kill()
        self._directory.remove()

    def _known(self, node: str) -> str:
        if node not in self._nodes:
            raise ValueError(f"{node!r} is not a node of this cluster: it has {', '.join(self._nodes)}")
        return node

    def _endpoints(self) -> str:
        return ",".join(f"127.0.0.1:{client}" for client, _, _ in self._ports.values())

    def _members(self) -> list[dict[str, Any]]:
        """The members as a node sees them. Empty while none answers."""
        try:
            answer = json.loads(self.run("members", "-o", "json"))
        except CommandFailed:
            return []
        members: list[dict[str, Any]] = answer["members"]
        return members

    def _add(self, name: str) -> None:
        begin = ["--join", self._endpoints()] if self._nodes else ["--new-cluster"]
        for attempt in itertools.count(1):
            self._nodes[name] = _Node(self._directory.path, name)
            client, http, peer = (_free_port() for _ in range(3))
            self._ports[name] = (client, http, peer)
            try:
                self._launch(name, begin)
                break
            except StartFailed as failure:
                if attempt == _TRIES or "in use" not in str(failure):
                    raise

        def votes() -> bool | None:
            return any(member["name"] == name and member["role"] == "voter" for member in self._members()) or None

        _wait_until(f"{name} votes", votes, START_TIMEOUT)

    def _launch(self, name: str, begin: list[str]) -> None:
        data = self._directory.path / name
        command = [self._binary, "serve", "--name", name, "--data", str(data), *begin]
        for flag, port in zip(("--listen-client", "--listen-http", "--listen-peer"), self._ports[name], strict=True):
            command += [flag, f"127.0.0.1:{port}"]
        self._nodes[name].start(command)
        self._nodes[name].wait_for(re.compile(r"^ready: ", re.MULTILINE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Cluster({self.address!r})"


@final
class _Directory:
    """A temporary directory. Only the process that made it removes it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fencepost-testing-"))
        self._process = os.getpid()

    def remove(self) -> None:
        if os.getpid() == self._process:
            shutil.rmtree(self.path, ignore_errors=True)


@final
class _Node:
    """One process of ``fencepost``, with its keeper and a file for what it prints. It can be started again after its end."""

    def __init__(self, directory: Path, name: str) -> None:
        self.paused = False
        self._directory = directory
        self._name = name
        self._output = directory / f"{name}.log"
        #: How much was printed before the process that runs now.
        self._printed_before = 0
        self._process: subprocess.Popen[bytes] | None = None
        #: Our end of the keeper's pipe. Open as long as the process runs.
        self._lifeline: BinaryIO | None = None
        self._owner = os.getpid()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        try:
            return self._output.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def start(self, command: list[str]) -> None:
        self._printed_before = len(self.log)
        reader, writer = os.pipe()
        self._lifeline = os.fdopen(writer, "wb", buffering=0)
        _lifelines.add(self._lifeline)
        with open(self._output, "ab") as output, os.fdopen(reader, "rb") as keeper_input:
            # A session of its own: Ctrl-C in the terminal ends the tests, and their teardown ends the server.
            self._process = subprocess.Popen(
                ["sh", "-c", _KEEPER, str(self._directory), *command],
                stdin=keeper_input,
                stdout=output,
                stderr=output,
                env=_environment({}),
                start_new_session=True,
            )
        self.paused = False

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Waits until the output of this start has the pattern."""

        def said() -> re.Match[str] | None:
            # Asked first: a process that has ended prints nothing after that.
            ended = not self.runs
            found = pattern.search(self.log[self._printed_before :])
            if ended:
                code = self._process.returncode if self._process else None
                raise StartFailed(f"{self._name} ended with code {code} instead of serving.\n{self._tail()}")
            return found

        try:
            return _wait_until(f"{self._name} serves", said, START_TIMEOUT)
        except BaseException:
            self.kill()
            raise

    def signal(self, number: signal.Signals) -> None:
        # Not `Popen.send_signal` alone: that one does nothing, and says nothing, if the process has ended.
        self._running().send_signal(number)
        self.paused = number == signal.SIGSTOP

    def kill(self) -> None:
        self._end(graceful=False)

    def stop(self) -> None:
        self._end(graceful=True)

    def _end(self, *, graceful: bool) -> None:
        process, lifeline = self._process, self._lifeline
        if process is None or lifeline is None or os.getpid() != self._owner:
            return
        if graceful and process.poll() is None:
            # A paused process takes the signal when it continues.
            process.terminate()
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)
        process.kill()
        process.wait()
        # Fails if a test has killed the keeper.
        with contextlib.suppress(BrokenPipeError):
            lifeline.write(b"\n")
        lifeline.close()
        self._process = self._lifeline = None
        self.paused = False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self._name} does not run")
        return self._process

    def _tail(self) -> str:
        lines = self.log[self._printed_before :].splitlines()[-_TAIL_LINES:]
        return "\n".join(lines) if lines else "It printed nothing."


#: Our ends of all keepers' pipes. A forked child closes its copies: only the end of the process that started a server may end the server.
_lifelines: weakref.WeakSet[BinaryIO] = weakref.WeakSet()


def _close_lifelines() -> None:
    for lifeline in list(_lifelines):
        lifeline.close()


os.register_at_fork(after_in_child=_close_lifelines)

_next_port = itertools.count(os.getpid() % 600 * 30)


def _free_port() -> int:
    """A port on which no process listens. Processes begin at different ports, so that they rarely try the same one."""
    for step in itertools.islice(_next_port, len(_PORTS)):
        port = _PORTS[step % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise StartFailed(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")


def _find_binary() -> str:
    named = os.environ.get("FENCEPOST_BIN")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerNotFound(f"FENCEPOST_BIN is {named!r}, and there is no such program")
        return found
    beside = Path(sys.executable).parent / "fencepost"
    found = shutil.which(beside) or shutil.which("fencepost")
    if found is None:
        raise ServerNotFound(
            "the program `fencepost` was not found: run `pip install fencepost-server`, or set FENCEPOST_BIN to its path"
        )
    return found


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings of Fencepost, so that those of the tests' own environment do not reach the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")} | dict(settings)


def _run(binary: str, endpoints: str, arguments: tuple[str, ...], timeout: float) -> str:
    environment = _environment({"FENCEPOST_SERVER": endpoints})
    command = [binary, *arguments]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise CommandFailed(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def _wait_until(what: str, condition: Callable[[], _T | None], timeout: float) -> _T:
    """Asks again and again, until the condition has an answer. ``StartFailed`` if it has none in time."""
    until = time.monotonic() + timeout
    while (answer := condition()) is None:
        if time.monotonic() > until:
            raise StartFailed(f"after {timeout:.0f} s this was still not so: {what}")
        time.sleep(0.01)
    return answer
