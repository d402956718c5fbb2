"""Real servers for tests, databases and lock systems, each in a temporary directory, on a free port of the loopback.

They are started as ``crates/testbed`` starts them. A server ends with the process that started it, even if that process is killed: a shell
waits for the end of a pipe, then ends the server and removes its directory. If a server is not installed, the test is skipped, and its name
and the reason are appended to the file that ``FENCEPOST_SKIPPED`` names.

The fixtures give each test a database of its own, with the guard in it. The SQL is the one that ``fencepost fence init`` runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

GUARDS = Path(__file__).parents[3] / "crates" / "fence" / "src"
PATIENCE_S = 120.0
TRIES = 5

KEEPER = """
exec 3<&0
directory=$1; signal=$2; shift 2
"$@" </dev/null >"$directory/log" 2>&1 & server=$!
(read -r _ <&3; kill -"$signal" $server) & keeper=$!
wait $server
kill $keeper
cd /; rm -rf "$directory"
"""

NUMBERS = itertools.count()


def skip(request: pytest.FixtureRequest, missing: str) -> NoReturn:
    """Skips the test, in the form of the Rust tests: one line with its name and the reason."""
    if listed := os.environ.get("FENCEPOST_SKIPPED"):
        with open(listed, "a", encoding="utf-8") as file:
            file.write(f"{request.node.name}: {missing}\n")
    pytest.skip(missing)


def driver(request: pytest.FixtureRequest, module: str, package: str) -> Any:
    """The module of a driver, or a skipped test."""
    try:
        return __import__(module, fromlist=["connect"])
    except ImportError:
        skip(request, f"the module {module} was not found: pip install {package}")


@dataclass(frozen=True)
class Kind:
    """A kind of server: its programs, and how it is prepared, started and ended."""

    #: The last one is the server. The first one prepares its directory, if that is needed.
    programs: tuple[str, ...]
    source: str
    #: Who runs it, if we are root. ``None``: it may run as root.
    user: str | None
    end_signal: str
    ready: str
    serve: Callable[[Path, int], list[str]]
    prepare: Callable[[Path], list[str]] | None = None
    #: A directory in memory for a server that would sync every write.
    memory: Path | None = None


POSTGRES = Kind(
    programs=("initdb", "postgres"),
    source="the Debian package postgresql",
    user="postgres",
    # After SIGKILL, Postgres would leave processes and shared memory behind.
    end_signal="QUIT",
    ready="database system is ready to accept connections",
    prepare=lambda place: [
        *("--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C"),
        *("-D", str(place / "data")),
    ],
    serve=lambda place, port: [
        *("-D", str(place / "data"), "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"),
        *("-c", f"unix_socket_directories={place}"),
    ],
)

MARIADB = Kind(
    programs=("mariadb-install-db", "mariadbd"),
    source="the Debian package mariadb-server",
    user="mysql",
    end_signal="KILL",
    ready="ready for connections",
    prepare=lambda place: [
        *("--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"),
        *(f"--datadir={place / 'data'}", f"--tmpdir={place}"),
    ],
    # A server that starts removes the temporary tables of its directory, also those of another server: none share one.
    serve=lambda place, port: [
        *("--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0"),
        *(f"--datadir={place / 'data'}", f"--tmpdir={place}", f"--port={port}", f"--socket={place / 'socket'}"),
    ],
)

REDIS = Kind(
    programs=("redis-server",),
    source="the Debian package redis-server",
    user="redis",
    end_signal="KILL",
    ready="Ready to accept connections",
    serve=lambda place, port: ["--bind", "127.0.0.1", "--save", "", "--port", str(port), "--dir", str(place)],
)

ETCD = Kind(
    programs=("etcd",),
    source="the Debian package etcd-server",
    user=None,
    end_signal="KILL",
    ready="ready to serve client requests",
    serve=lambda place, port: [
        *("--data-dir", str(place / "data"), "--listen-peer-urls", "http://127.0.0.1:0"),
        *("--listen-client-urls", f"http://127.0.0.1:{port}", "--advertise-client-urls", f"http://127.0.0.1:{port}"),
    ],
    memory=Path("/dev/shm"),
)


def serve_zookeeper(place: Path, port: int) -> list[str]:
    """One server with short ticks, because a session timeout is at least two ticks. It does not sync."""
    settings = place / "zoo.cfg"
    settings.write_text(
        f"dataDir={place / 'data'}\nclientPortAddress=127.0.0.1\nclientPort={port}\ntickTime=200\nmaxSessionTimeout=60000\n"
        "maxClientCnxns=0\nadmin.enableServer=false\nforceSync=no\n"
    )
    jars = [program(name) or "" for name in ZOOKEEPER.programs if name.endswith(".jar")]
    # A small JVM that starts fast.
    return [
        *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(jars)),
        *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)),
    ]


ZOOKEEPER = Kind(
    programs=("zookeeper.jar", "slf4j-simple.jar", "java"),
    source="the Debian packages libzookeeper-java and default-jre-headless",
    user=None,
    end_signal="KILL",
    ready="ZooKeeper audit is",
    serve=serve_zookeeper,
)


def program(name: str) -> str | None:
    """The path of a program or of a jar. Debian keeps servers outside of PATH."""
    versions = [version / "bin" for version in Path("/usr/lib/postgresql").glob("*")]
    path = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    places = [*path, Path("/usr/sbin"), Path("/usr/local/sbin"), Path("/usr/share/java"), *versions]
    return next((str(place / name) for place in places if (place / name).is_file()), None)


def missing(kind: Kind) -> str | None:
    """What is not installed, and what to install."""
    for name in kind.programs:
        if program(name) is None:
            return f"{name} was not found: install {kind.source}"
    return None


@cache
def server_port(kind: Kind, number: int = 0) -> int:
    """The port of a server that all tests of this process share. It is started at the first use. ``number`` tells several of a kind apart."""
    for _ in range(TRIES):
        memory = kind.memory if kind.memory and kind.memory.is_dir() else None
        place = Path(tempfile.mkdtemp(prefix="fencepost-python-", dir=memory))
        if user := other_user(kind):
            shutil.chown(place, user)
        if kind.prepare:
            prepare = [program(kind.programs[0]) or "", *kind.prepare(place)]
            subprocess.run(as_user(kind, prepare), check=True, stdin=subprocess.DEVNULL, capture_output=True, cwd="/")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        serve = as_user(kind, [program(kind.programs[-1]) or "", *kind.serve(place, port)])
        keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, "keeper", str(place), kind.end_signal, *serve],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # The pipe stays open as long as this process lives.
        KEEPERS.append(keeper)
        until = time.monotonic() + PATIENCE_S
        log = place / "log"
        while time.monotonic() < until and keeper.poll() is None:
            if log.exists() and kind.ready in log.read_text(errors="replace"):
                return port
            time.sleep(0.02)
        # Another process may have taken the port.
    raise RuntimeError(f"{kind.programs[-1]} did not start on any of {TRIES} ports")


KEEPERS: list[subprocess.Popen[bytes]] = []


def other_user(kind: Kind) -> str | None:
    """The user that must run the server instead of us. Most servers refuse to run as root."""
    return kind.user if os.geteuid() == 0 else None


def as_user(kind: Kind, command: list[str]) -> list[str]:
    user = other_user(kind)
    if user is None:
        return command
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--", *command]


class Proxy:
    """Forwards connections to a port until it is cut. From then on it refuses them, as a server that is gone does."""

    def __init__(self, port: int) -> None:
        self._there = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            ends = [self._listener, *self._open]
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _keep(self, *ends: socket.socket) -> bool:
        with self._lock:
            if not self._is_cut:
                self._open.update(ends)
            return not self._is_cut

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._there))
                if not self._keep(here, there):
                    here.close()
                    there.close()
                    return
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(65_536):
                sink.sendall(received)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session", autouse=True)
def end_servers() -> Iterator[None]:
    """Ends the servers of this process at the end, and waits until their directories are gone."""
    yield
    while KEEPERS:
        keeper = KEEPERS.pop()
        if keeper.stdin:
            keeper.stdin.close()
        keeper.wait()
    server_port.cache_clear()


@pytest.fixture
def postgres_bare(request: pytest.FixtureRequest) -> str:
    """The address of an empty database."""
    psycopg = driver(request, "psycopg", "'psycopg[binary]'")
    if reason := missing(POSTGRES):
        skip(request, reason)
    name = f"fence_{next(NUMBERS)}"
    address = f"postgresql://postgres@127.0.0.1:{server_port(POSTGRES)}"
    with psycopg.connect(f"{address}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{address}/{name}"


@pytest.fixture
def postgres(postgres_bare: str) -> str:
    """The address of a database with the guard."""
    import psycopg

    with psycopg.connect(postgres_bare) as connection:
        # The whole script is one string without parameters, so psycopg sends it as it is.
        connection.execute((GUARDS / "postgres.sql").read_bytes())
        # On a busy machine a test may idle for longer than the default bound.
        connection.execute("SELECT fencepost.set_idle_timeout('1 min')")
    return postgres_bare


@pytest.fixture
def mariadb_bare(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments with which PyMySQL and mysql-connector-python connect to an empty database."""
    pymysql = driver(request, "pymysql", "pymysql")
    if reason := missing(MARIADB):
        skip(request, reason)
    name = f"fence_{next(NUMBERS)}"
    address = {"host": "127.0.0.1", "port": server_port(MARIADB), "user": "root", "password": ""}
    connection = pymysql.connect(**address)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    return {**address, "database": name}


@pytest.fixture
def mariadb(mariadb_bare: dict[str, Any]) -> dict[str, Any]:
    """The same for a database with the guard."""
    import pymysql

    # The file names its delimiter in its first statement, for the client on the command line.
    _, statements = (GUARDS / "mysql.sql").read_text(encoding="utf-8").split("\nDELIMITER //\n")
    connection = pymysql.connect(**mariadb_bare)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'STRICT_TRANS_TABLES'")
        for statement in statements.split("\n//\n")[:-1]:
            cursor.execute(statement)
        # On a busy machine a test may idle for longer than the default bound.
        cursor.execute("UPDATE fencepost_base SET idle_seconds = 60")
        connection.commit()
    return mariadb_bare


@pytest.fixture
def redis_address(request: pytest.FixtureRequest) -> str:
    """The address of a Redis, as redis-py and Fencepost take it."""
    driver(request, "redis", "redis")
    if reason := missing(REDIS):
        skip(request, reason)
    return f"redis://127.0.0.1:{server_port(REDIS)}/"


@pytest.fixture
def zookeeper_hosts(request: pytest.FixtureRequest) -> str:
    """The host and port of a ZooKeeper, as kazoo takes it."""
    driver(request, "kazoo.client", "kazoo")
    if reason := missing(ZOOKEEPER):
        skip(request, reason)
    return f"127.0.0.1:{server_port(ZOOKEEPER)}"
