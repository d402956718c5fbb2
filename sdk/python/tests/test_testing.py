"""Real servers for tests: they start, they are found, they end with the process that started them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fencepost
import pytest
from fencepost.testing import Cluster, CommandFailed, Server, ServerNotFound, StartFailed

SAYS_WHERE = "print(server.pid, server._directory.path, flush=True)"


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, f"after 30 s this was still not so: {what}"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether the process runs. One that has ended and that its parent has not waited for does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def python(*lines: str) -> subprocess.Popen[str]:
    """Another Python that starts a server and says where."""
    code = "\n".join(["import os, time", "from fencepost.testing import Server", "server = Server()", SAYS_WHERE, *lines])
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def assert_nothing_is_left(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    pid, directory = process.stdout.readline().split()
    process.wait()
    wait_until("the server has ended", lambda: not runs(int(pid)))
    wait_until("its directory is removed", lambda: not Path(directory).exists())


def test_a_server_serves_and_leaves_nothing_behind() -> None:
    with Server() as server:
        with server.client(name="a test") as client, client.lock("a") as lock:
            held = json.loads(server.run("locks", "-o", "json"))["held"]
            assert [(grant["locks"][0]["name"], grant["token"]) for grant in held] == [("a", lock.fence_token)]
        pid, directory = server.pid, server._directory.path
        assert directory.exists()
    assert not runs(pid)
    assert not directory.exists()
    server.stop()
    with pytest.raises(RuntimeError, match="does not run"):
        server.pause()


def test_package_and_program_have_one_version() -> None:
    with Server() as server:
        assert server.run("--version").strip() == f"fencepost {fencepost.__version__}"
    assert importlib.metadata.version("fencepost") == fencepost.__version__


def test_a_command_that_fails_says_why() -> None:
    with Server() as server, pytest.raises(CommandFailed, match="unrecognized subcommand") as failed:
        server.run("lock")
    assert failed.value.returncode == 2


def test_a_paused_server_answers_after_it_is_resumed() -> None:
    with Server() as server:
        server.pause()
        with pytest.raises(CommandFailed):
            server.run("locks", "--timeout", "200ms")
        server.resume()
        assert json.loads(server.run("locks", "-o", "json")) == {"held": [], "waiting": []}


def test_a_paused_server_can_be_stopped() -> None:
    server = Server()
    pid = server.pid
    server.pause()
    server.stop()
    assert not runs(pid)


def test_a_server_ends_with_a_python_that_is_killed() -> None:
    process = python("time.sleep(60)")
    assert process.stdout is not None
    pid, directory = process.stdout.readline().split()
    assert runs(int(pid))
    process.kill()
    process.wait()
    wait_until("the server has ended", lambda: not runs(int(pid)))
    wait_until("its directory is removed", lambda: not Path(directory).exists())


def test_a_server_ends_with_a_python_that_forgets_it() -> None:
    assert_nothing_is_left(python())


def test_a_server_ends_before_the_forked_children_of_its_python() -> None:
    # The child closes its copies of standard output, for `communicate` of this test, and lives on.
    assert_nothing_is_left(python("if os.fork() == 0:", "    os.close(1)", "    time.sleep(60)", "os._exit(0)"))


def test_a_forked_child_does_not_stop_the_server() -> None:
    with Server() as server:
        child = os.fork()
        if child == 0:
            # No exception may leave this branch: pytest would run twice.
            try:
                server.stop()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert runs(server.pid)
        server.run("locks")


def test_a_cluster_outlives_its_leader() -> None:
    with Cluster() as cluster:
        assert cluster.nodes == ("n1", "n2", "n3")
        with cluster.client() as client:
            with client.lock("a") as lock:
                before = lock.fence_token
            leader = cluster.leader()
            cluster.kill(leader)
            assert cluster.leader() != leader
            with client.lock("a") as lock:
                assert lock.fence_token > before
            cluster.restart(leader)
        with fencepost.connect(cluster.address_of(leader)) as client, client.lock("a") as lock:
            assert lock.fence_token > before
        paused = cluster.leader()
        cluster.pause(paused)
        assert cluster.leader() != paused
        cluster.resume(paused)
        pids = [cluster.pid(node) for node in cluster.nodes]
        with pytest.raises(ValueError, match="'n4' is not a node of this cluster"):
            cluster.kill("n4")
    assert not any(runs(pid) for pid in pids)


def test_one_node_on_disk_keeps_its_tokens() -> None:
    with Cluster(nodes=1) as cluster, cluster.client() as client:
        with client.lock("a") as lock:
            before = lock.fence_token
        cluster.restart("n1")
        with client.lock("a") as lock:
            assert lock.fence_token > before


def test_a_missing_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FENCEPOST_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ServerNotFound, match="pip install fencepost-server"):
        Server()
    monkeypatch.setenv("FENCEPOST_BIN", str(tmp_path / "fencepost"))
    with pytest.raises(ServerNotFound, match="FENCEPOST_BIN is"):
        Cluster()


def test_a_failed_start_shows_the_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "fencepost"
    program.write_text("#!/bin/sh\necho this is the reason >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("FENCEPOST_BIN", str(program))
    with pytest.raises(StartFailed, match="ended with code 3 instead of serving.\nthis is the reason"):
        Server()


def test_the_fixtures_belong_together(
    fencepost_server: Server, fencepost_address: str, fencepost_client: fencepost.Client
) -> None:
    assert fencepost_address == fencepost_server.address
    with fencepost_client.lock("a"):
        assert "a" in fencepost_server.run("locks")
