"""Measures the Python package beside redis-py and kazoo: how many pairs of acquire and release a program does in a second, on free locks.

    python sdk/python/bench/pairs.py --bin target/release/fencepost

Run it with a Python that has a release build of `fencepost`, and `redis`, `kazoo` and `pytest`. It needs redis-server, ZooKeeper's jars and
Java, as the tests do. It prints Markdown for docs/performance.md.

All servers run on this machine during the whole run. The cases take turns in blocks of a second, round after round, because a shared machine
is slow now and fast then. So compare figures within one run, and ratios within one round. Each case uses the same number of names in turn,
and makes the object of each lock once, outside of the measured time. This favours kazoo, which looks for the path of each new object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

NAMES = 64
CONCURRENT = 16
#: Java compiles the code of its servers while they are used, so everything is used for some time before it is measured.
WARM_UP_S = 4.0

Block = Callable[[float], float]


@dataclass
class Case:
    """Something to measure. ``block`` runs for so many seconds, and returns the pairs a second."""

    what: str
    shape: str
    block: Block


# ---- Ways to load a client


def one_thread(locks: list[Any]) -> Block:
    """One pair after the other. A lock is something with a `with` block."""

    def block(seconds: float) -> float:
        return count_pairs(itertools.cycle(locks), seconds)

    return block


def threads(locks: list[Any]) -> Block:
    """Several threads on one client, each with names of its own."""

    def block(seconds: float) -> float:
        shares = [itertools.cycle(locks[number::CONCURRENT]) for number in range(CONCURRENT)]
        rates = [0.0] * CONCURRENT

        def load(number: int) -> None:
            rates[number] = count_pairs(shares[number], seconds)

        workers = [threading.Thread(target=load, args=[number]) for number in range(CONCURRENT)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(rates)

    return block


def count_pairs(locks: Iterator[Any], seconds: float) -> float:
    pairs = 0
    began = now = time.perf_counter()
    while now - began < seconds:
        with next(locks):
            pass
        pairs += 1
        now = time.perf_counter()
    return pairs / (now - began)


def tasks(runner: asyncio.Runner, locks: list[Any], count: int = CONCURRENT) -> Block:
    """Several tasks on one client. A lock is something with an `async with` block."""

    async def load(locks: Iterator[Any], seconds: float) -> float:
        pairs = 0
        began = now = time.perf_counter()
        while now - began < seconds:
            async with next(locks):
                pass
            pairs += 1
            now = time.perf_counter()
        return pairs / (now - began)

    async def all_of_them(seconds: float) -> float:
        return sum(await asyncio.gather(*(load(itertools.cycle(locks[number::count]), seconds) for number in range(count))))

    return lambda seconds: runner.run(all_of_them(seconds))


# ---- The systems


def fencepost_cases(stack: ExitStack, runner: asyncio.Runner) -> list[Case]:
    import fencepost
    from fencepost.testing import Cluster

    cases = []
    for nodes, shown in ((1, "one node"), (3, "three nodes")):
        cluster = stack.enter_context(Cluster(nodes=nodes))
        client = stack.enter_context(cluster.client())
        for tier in (fencepost.EFFICIENCY, fencepost.CORRECTNESS):
            locks = [client.lock(f"bench/{number}", tier=tier) for number in range(NAMES)]
            what = f"fencepost, {tier.value}, {shown}"
            cases += [
                Case(what, "one thread", one_thread(locks)),
                Case(what, f"{CONCURRENT} threads", threads(locks)),
                Case(what, f"{CONCURRENT} tasks", tasks(runner, locks)),
            ]
    return cases


def redis_cases(stack: ExitStack, runner: asyncio.Runner) -> list[Case]:
    import redis
    import redis.asyncio
    import stores

    address = f"redis://127.0.0.1:{stores.server_port(stores.REDIS)}/"
    client = stack.enter_context(redis.Redis.from_url(address))
    asynchronous = redis.asyncio.Redis.from_url(address)
    stack.callback(lambda: runner.run(asynchronous.aclose()))
    locks = [client.lock(f"bench/{number}", timeout=30) for number in range(NAMES)]
    locks_async = [asynchronous.lock(f"bench/async/{number}", timeout=30) for number in range(NAMES)]
    what = "redis-py `Lock`"
    return [
        Case(what, "one thread", one_thread(locks)),
        # Each of these threads or tasks gets a connection of its own from the pool.
        Case(what, f"{CONCURRENT} threads", threads(locks)),
        Case(what, f"{CONCURRENT} tasks", tasks(runner, locks_async)),
    ]


def kazoo_cases(stack: ExitStack, *, syncs: bool) -> list[Case]:
    import stores
    from kazoo.client import KazooClient  # type: ignore[import-untyped]

    def serve(place: Path, port: int) -> list[str]:
        """A server with the default settings, and the full JIT compiler. The tests' one has a small JVM that starts fast."""
        settings = place / "zoo.cfg"
        settings.write_text(
            f"dataDir={place / 'data'}\nclientPortAddress=127.0.0.1\nclientPort={port}\nadmin.enableServer=false\n"
            f"forceSync={'yes' if syncs else 'no'}\n"
        )
        jars = [stores.program(name) or "" for name in stores.ZOOKEEPER.programs if name.endswith(".jar")]
        return ["-Xmx512m", "-cp", os.pathsep.join(jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)]

    client = KazooClient(f"127.0.0.1:{stores.server_port(replace(stores.ZOOKEEPER, serve=serve))}", timeout=30)
    client.start(60)
    stack.callback(client.close)
    stack.callback(client.stop)
    locks = [client.Lock(f"/bench/{number}") for number in range(NAMES)]
    what = f"kazoo `Lock`, `forceSync={'yes' if syncs else 'no'}`"
    return [Case(what, "one thread", one_thread(locks)), Case(what, f"{CONCURRENT} threads", threads(locks))]


# ---- The report


def show(cases: list[Case], rates: list[list[float]]) -> None:
    measured = {(case.what, case.shape): rates for case, rates in zip(cases, rates, strict=True)}
    shapes = list(dict.fromkeys(case.shape for case in cases))
    for title, tier, beside in (
        ("Efficiency tier", "efficiency", "redis-py"),
        ("Correctness tier", "correctness", "kazoo"),
    ):
        rows = [what for what in dict.fromkeys(case.what for case in cases) if tier in what or beside in what]
        if not rows:
            continue
        others = [what for what in rows if beside in what]
        print(f"\n**{title}**, pairs/s\n")
        print(f"| | {' | '.join(shapes)} |\n|---|{'---|' * len(shapes)}")
        for what in rows:
            cells = [spread(measured.get((what, shape)), "{:,.0f}") for shape in shapes]
            print(f"| {what} | {' | '.join(cells)} |")
        for what in rows:
            for other in others if tier in what else []:
                cells = [
                    spread(ratios(measured.get((what, shape)), measured.get((other, shape))), "{:.2f}") for shape in shapes
                ]
                print(f"| {what} / {other} | {' | '.join(cells)} |")


def ratios(some: list[float] | None, others: list[float] | None) -> list[float] | None:
    """The ratios within each round."""
    return [one / other for one, other in zip(some, others, strict=True)] if some and others else None


def spread(figures: list[float] | None, form: str) -> str:
    if not figures:
        return ""
    median, least, most = (form.format(figure) for figure in (statistics.median(figures), min(figures), max(figures)))
    return f"{median} ({least} to {most})"


def where() -> str:
    """What this ran on."""
    try:
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = models[0].partition(": ")[2]
    except (OSError, IndexError):
        model = platform.processor()
    server = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout.split()
    program = subprocess.run([os.environ["FENCEPOST_BIN"], "--version"], capture_output=True, text=True, check=True).stdout.strip()
    found = ", ".join(f"{name} {version(name)}" for name in ("fencepost", "redis", "kazoo"))
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores of {model}, Python {platform.python_version()} with {found}; {program}; "
        f"Redis {server[2].removeprefix('v=') if len(server) > 2 else '?'}; load before: {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bin", required=True, type=Path, help="the program fencepost, a release build")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="the length of a block")
    parser.add_argument("--only", default="", help="only cases with this text in their names, such as 'one thread'")
    arguments = parser.parse_args()
    os.environ["FENCEPOST_BIN"] = str(arguments.bin.resolve())

    print(f"{where()}; {arguments.rounds} rounds of {arguments.seconds:g} s", flush=True)
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        import stores

        # The servers end with this process, too; this waits until they have removed their directories.
        stack.callback(end, stores)
        cases = [
            *fencepost_cases(stack, runner),
            *redis_cases(stack, runner),
            *kazoo_cases(stack, syncs=True),
            *kazoo_cases(stack, syncs=False),
        ]
        cases = [case for case in cases if arguments.only in f"{case.what}, {case.shape}"]
        for case in cases:
            case.block(WARM_UP_S)
        rates: list[list[float]] = [[] for _ in cases]
        for number in range(arguments.rounds):
            # Each round begins elsewhere, so that no case always follows the same one.
            for place in range(len(cases)):
                place = (place + number) % len(cases)
                # What earlier blocks have left to be written is written now.
                os.sync()
                rates[place].append(cases[place].block(arguments.seconds))
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
        show(cases, rates)


def end(stores: Any) -> None:
    while stores.KEEPERS:
        keeper = stores.KEEPERS.pop()
        keeper.stdin.close()
        keeper.wait()


if __name__ == "__main__":
    main()
