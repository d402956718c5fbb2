"""How programs end that hold locks, or ask for them: in time, without a crash, and with nothing left on the server."""

from __future__ import annotations

import random
import signal
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from conftest import IS_SOAK, eventually
from guides import shown
from programs import EXIT_S, Program, held_on, nothing_is_left, sessions_on
from stores import skip

from fencepost.testing import Server

#: How many programs end at a random moment.
RANDOM_EXITS = 200 if IS_SOAK else 20


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that no other test uses: its sessions are those of one program."""
    with Server() as server:
        yield server


# ---- Every way to end, while locks are held in every way

#: How a program ends: its last line, its exit code, and the last line in standard error.
ENDS: dict[str, tuple[str, int, str]] = {
    "its last line": ("pass", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "an exception": ("raise ZeroDivisionError('planned')", 1, "ZeroDivisionError: planned"),
    "Ctrl-C": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
}

#: What a program does before it ends. ``END`` is the end.
HOLDS: dict[str, str] = {
    "nothing": """
        END
    """,
    "a lock without a block": """
        lock = client.lock("a").acquire()
        END
    """,
    "a lock of a function": """
        def work():
            client.lock("a").acquire()

        work()
        END
    """,
    "blocks": """
        with client.lock("a") as lock, client.lock("b"), client.lock("c").acquire():
            END
    """,
    "every kind of lock": """
        held = [
            client.lock("a", ttl=2 * 600, max_hold=3600).acquire(),
            client.lock("b", "c").acquire(),
            client.lock("d", mode=fencepost.SHARED).acquire(),
            client.lock("e", mode=fencepost.UPDATE).acquire().upgrade(),
            client.lock("f", tier=fencepost.EFFICIENCY).acquire(),
            client.semaphore("g", limit=2).acquire(),
            client.election("h").campaign("me").acquire(),
            client.job("i", key="k").acquire(),
            fencepost.connect(ttl=600).lock("j", on_lost=print).acquire(),
        ]
        END
    """,
    "daemon threads that wait": """
        lock = client.lock("a").acquire()
        watch = client.watch("a").start()

        def block():
            with client.lock("a", wait=None):
                pass

        def quietly(wait):
            try:
                wait()
            except fencepost.Error:
                pass

        for wait in [client.lock("a", wait=None).acquire, block, lambda: [event for event in watch], lock.lost.wait]:
            threading.Thread(target=quietly, args=[wait], daemon=True).start()
        while client.explain("a").waiting < 2:
            pass
        END
    """,
    "a function that hangs after a loss": """
        called = threading.Event()

        def hang(loss):
            called.set()
            time.sleep(3600)

        logging.getLogger("fencepost").setLevel(logging.CRITICAL)
        lock = client.lock("a", max_hold=0.05, on_lost=hang).acquire()
        called.wait()
        END
    """,
    "async with": """
        async def main():
            async with client.lock("a") as lock, client.lock("b"):
                waiter = asyncio.create_task(client.lock("a", wait=None).acquire_async())
                while (await client.explain_async("a")).waiting == 0:
                    await asyncio.sleep(0)
                END

        asyncio.run(main())
    """,
    "a lock of a task": """
        async def main():
            lock = await client.lock("a")
            END

        asyncio.run(main())
    """,
    "tasks on a daemon thread": """
        async def hold(name):
            try:
                async with client.lock(name, wait=None) as lock:
                    await lock.lost.wait_async()
            except fencepost.Error:
                pass

        async def main():
            await asyncio.gather(*(hold(name) for name in "aab"))

        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        while client.explain("a").waiting == 0 or client.explain("b").is_free:
            pass
        END
    """,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("holds", HOLDS)
def test_an_end_leaves_nothing(server: Server, holds: str, end: str) -> None:
    code, exit_code, complaint = ENDS[end]
    with Program(server, HOLDS[holds].replace("END", code)) as program:
        assert program.ends(exit_code, complaint) < EXIT_S
    nothing_is_left(server)


@pytest.mark.parametrize(
    "wait",
    ["client.lock('a', wait=None).acquire()", "asyncio.run(client.lock('a', wait=None).acquire_async())"],
    ids=["itself", "in a task"],
)
def test_a_daemon_thread_that_waits_says_nothing_at_the_end(server: Server, wait: str) -> None:
    """As one that waits for a ``queue.Queue``: the program has ended, and its threads with it."""
    program = f"""
        lock = client.lock("a").acquire()
        threading.Thread(target=lambda: {wait}, daemon=True).start()
        listen()
    """
    with Program(server, program) as running:
        eventually("it waits", lambda: held_on(server) == ["a", "a"])
        running.tell()
        running.ends()
    nothing_is_left(server)


def test_a_child_of_os_fork_that_ends_leaves_nothing(server: Server) -> None:
    program = """
        lock = client.lock("parent").acquire()
        for number in range(3):
            child = os.fork()
            if child == 0:
                mine = client.lock("child", wait=None).acquire()
                sys.exit(number)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == number
        tell("waited")
        listen()
        lock.check()
    """
    with Program(server, program) as running:
        running.hear("waited")
        eventually("only the parent is left", lambda: held_on(server) == ["parent"] and len(sessions_on(server)) == 1)
        running.tell()
        running.ends()
    nothing_is_left(server)


def test_functions_for_the_end_may_still_use_locks(server: Server) -> None:
    """``atexit`` calls those that were registered last first, so before the client ends."""
    program = """
        import atexit

        @atexit.register
        def at_exit():
            with client.lock("b") as second:
                tell("held", second.session == lock.session)
            lock.check()

        lock = client.lock("a").acquire()
    """
    with Program(server, program) as running:
        running.ends()
        assert running.hear("held") == "True"
    nothing_is_left(server)


def test_threads_that_are_no_daemons_end_their_work_first(server: Server) -> None:
    program = """
        def work():
            listen()
            with client.lock("a") as lock:
                lock.check()
            tell("worked")

        threading.Thread(target=work).start()
        client.lock("b").acquire()
        tell("ends")
    """
    with Program(server, program) as running:
        running.hear("ends")
        running.tell()
        running.ends()
        running.hear("worked")
    nothing_is_left(server)


def test_objects_may_use_their_locks_while_the_interpreter_ends(server: Server) -> None:
    """Python calls ``__del__`` of global objects after the client has ended."""
    program = """
        class Account:
            def __init__(self):
                self.lock = client.lock("a").acquire()
                self.request = client.lock("b")

            def __del__(self):
                said = []
                for ask in (self.lock.release, self.lock.check, self.request.acquire, lambda: repr(self.lock), lambda: self.lock.lost.wait(1)):
                    try:
                        ask()
                        said.append("done")
                    except BaseException as error:
                        said.append(type(error).__name__)
                os.write(1, f"said {' '.join(said)}\\n".encode())

        account = Account()
    """
    with Program(server, program) as running:
        running.ends()
        running.hear("said")
    nothing_is_left(server)


# ---- Signals


@pytest.mark.parametrize("waits", ["for a lock", "in a block", "for a loss"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_wait_and_the_program(server: Server, number: signal.Signals, waits: str) -> None:
    """The handler for SIGTERM is the one of the guide."""
    steps = {
        "for a lock": "client.lock('a', wait=None).acquire()",
        "in a block": "with client.lock('b'): time.sleep(3600)",
        "for a loss": "client.lock('b').acquire().lost.wait()",
    }
    with server.client() as other, other.lock("a"):
        with Program(server, shown("python.md", "sigterm") + steps[waits]) as program:
            name, is_there = ("a", 1) if waits == "for a lock" else ("b", 0)
            eventually("it waits", lambda: other.explain(name).waiting == is_there and not other.explain(name).is_free)
            program.signal(number)
            if number == signal.SIGTERM:
                program.ends(0)
            else:
                program.ends(-signal.SIGINT, "KeyboardInterrupt")
        eventually("only the other lock is held", lambda: held_on(server) == ["a"] and len(sessions_on(server)) == 1)
    nothing_is_left(server)


@pytest.mark.parametrize("waits", ["for a lock", "in a block"])
def test_ctrl_c_ends_an_event_loop(server: Server, waits: str) -> None:
    program = f"""
        async def main():
            async with client.lock("a") as lock:
                {"await client.lock('a', wait=None)" if waits == "for a lock" else "await asyncio.sleep(3600)"}

        asyncio.run(main())
    """
    with server.client() as other, Program(server, program) as running:
        waiting = 1 if waits == "for a lock" else 0
        eventually("it waits", lambda: other.explain("a").waiting == waiting and not other.explain("a").is_free)
        running.signal(signal.SIGINT)
        running.wait()
        # asyncio shows two tracebacks: the one of the task, and its own.
        assert running.process.returncode == -signal.SIGINT and running.complaints.endswith("KeyboardInterrupt\n"), running.description
        running.assert_no_crash()
    nothing_is_left(server)


# ---- Servers that do not answer

SILENT: dict[str, Callable[[Server], None]] = {"is paused": Server.pause, "is killed": Server.kill}

#: What a program does until the server is silent, and then.
SILENT_HOLDS: dict[str, str] = {
    **{
        holds: HOLDS[holds].replace("END", "READY; END")
        for holds in ("a lock without a block", "every kind of lock", "daemon threads that wait", "tasks on a daemon thread")
    },
    "requests that begin then": """
        def quietly(wait):
            try:
                wait()
            except fencepost.Error:
                pass

        client.explain("a")
        READY
        for each in (client, fencepost.connect(connect_timeout=300)):
            threading.Thread(target=quietly, args=[each.lock("b").acquire], daemon=True).start()
        END
    """,
    # The end of a block waits for an answer as long as the program allows. That is before the end of the program.
    "a block": """
        client = fencepost.connect(ttl=600, call_timeout=0.5)
        with client.lock("a"):
            READY
            END
    """,
}


@pytest.mark.parametrize("silent", SILENT)
@pytest.mark.parametrize("holds", SILENT_HOLDS)
def test_an_end_does_not_wait_for_a_server(holds: str, silent: str) -> None:
    code = SILENT_HOLDS[holds].replace("READY", "tell('ready'); listen()").replace("END", "sys.exit(3)")
    quiet = "logging.getLogger('fencepost').setLevel(logging.CRITICAL)\n"
    with Server() as server, Program(server, quiet + textwrap.dedent(code)) as program:
        program.hear("ready")
        SILENT[silent](server)
        program.tell()
        assert program.ends(3) < EXIT_S, program.description


def test_an_end_does_not_wait_for_a_server_that_was_never_there() -> None:
    program = """
        def quietly(wait):
            try:
                wait()
            except fencepost.Error:
                pass

        for number in range(3):
            threading.Thread(target=quietly, args=[fencepost.connect(connect_timeout=300).lock("a").acquire], daemon=True).start()
        while not fencepost._core.thread_count():
            pass
    """
    with Program(None, program, address="127.0.0.1:1") as running:
        assert running.ends() < EXIT_S


# ---- Children of multiprocessing

CHILDREN = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

def begin(name):
    global lock
    lock = client.lock(name, wait=None).acquire()
    threading.Thread(target=wait_in_the_background, args=[name], daemon=True).start()
    while client.explain(name).waiting == 0:
        pass

def wait_in_the_background(name):
    try:
        client.lock(name, wait=None).acquire()
    except fencepost.Error:
        pass

def returns():
    begin("returns")

def exits():
    begin("exits")
    sys.exit(5)

def raises():
    begin("raises")
    raise ZeroDivisionError("planned")

def in_pool(number):
    client.lock(f"in pool {number}").acquire()
    return os.getpid()

if __name__ == "__main__":
    context = multiprocessing.get_context(listen())
    lock = client.lock("parent").acquire()
    codes = []
    for work in (returns, exits, raises):
        process = context.Process(target=work)
        process.start()
        process.join()
        codes.append(process.exitcode)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert os.getpid() not in pool.map(in_pool, range(4))
    pool = context.Pool(2, maxtasksperchild=2)
    pool.map(in_pool, range(4, 10), chunksize=1)
    pool.close()
    pool.join()
    tell("codes", json.dumps(codes))
    listen()
    lock.check()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_multiprocessing_leave_nothing(server: Server, method: str) -> None:
    with Program(server, CHILDREN) as program:
        program.tell(method)
        assert program.hear_json("codes") == [0, 5, 1], program.description
        # The parent lives, so it is the children that have given back.
        eventually("only the parent is left", lambda: held_on(server) == ["parent"] and len(sessions_on(server)) == 1)
        assert program.complaints.count("Traceback") == 1 and "ZeroDivisionError: planned" in program.complaints, program.description
        program.assert_no_crash()
        program.tell()
        program.wait()
        assert program.process.returncode == 0, program.description
    nothing_is_left(server)


# ---- At any moment

RANDOM = """
seed = int(listen())
chance = random.Random(seed)
names = ["a", "b", "c", "/d", "/d/e"]
operations = 0
ends = False

def pick(chance):
    names_now = chance.sample(names[:3], chance.choice([1, 1, 2]))
    mode = chance.choice([fencepost.EXCLUSIVE, fencepost.EXCLUSIVE, fencepost.SHARED])
    return client.lock(*names_now, mode=mode, wait=chance.choice([0, 0.001, 0.1, None]), on_lost=chance.choice([None, on_lost]))

def on_lost(loss):
    tell("lost", loss)

def operate(chance):
    what = chance.randrange(8)
    if what == 0:
        client.explain(chance.choice(names))
    elif what == 1:
        with client.semaphore("f", limit=2, wait=0.01):
            pass
    elif what == 2:
        with client.election("g").campaign("me") as leadership:
            leadership.set_value("you")
    elif what == 3:
        client.job("h", key=str(chance.randrange(5)), wait=0.1).run(lambda job: job.checkpoint("half"))
    elif what == 4:
        event = next(client.watch("a", after=None).start()) if chance.random() < 0.3 else None
    elif what == 5:
        # Never released: it stands in the way of the others until the end.
        left.append(client.lock(f"left/{chance.random()}", ttl=chance.choice([None, 1200])).acquire())
    else:
        with pick(chance) as lock:
            if chance.random() < 0.5:
                lock.check()

def repeat(seed):
    global operations
    chance = random.Random(seed)
    while True:
        operations += 1
        try:
            operate(chance)
        except (fencepost.LockBusy, fencepost.LockTimeout):
            pass
        except SystemExit:
            # What a daemon thread gets at the end of a program.
            if not ends:
                tell("ended too early")
            raise
        except BaseException as error:
            tell("failed", type(error), error)
            return

async def repeat_async(seed):
    global operations
    chance = random.Random(seed)
    while True:
        operations += 1
        try:
            if chance.random() < 0.1:
                await client.explain_async("a")
            else:
                async with asyncio.timeout(chance.choice([None, 0.001, 0.1])), pick(chance) as lock:
                    await asyncio.sleep(chance.choice([0, 0.001]))
        except (fencepost.LockBusy, TimeoutError):
            pass
        except Exception as error:
            tell("failed", type(error), error)
            return

# Of several tasks asyncio hears of the `SystemExit` of one, and complains of the others.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)

async def tasks(seeds):
    await asyncio.gather(*map(repeat_async, seeds))

left = []
for number in range(chance.randrange(1, 8)):
    threading.Thread(target=repeat, args=[chance.random()], daemon=True).start()
for number in range(chance.randrange(3)):
    seeds = [chance.random() for _ in range(5)]
    threading.Thread(target=lambda: asyncio.run(tasks(seeds)), daemon=True).start()
enough, some_time = chance.choice([0, 1, 10, 100, 300]), chance.random() * 0.01
while operations < enough and threading.active_count() > 1:
    time.sleep(0)
time.sleep(some_time)
ends = True
"""


def test_ends_at_any_moment(server: Server) -> None:
    def end(seed: int) -> None:
        chance = random.Random(seed)
        code, exit_code, complaint = ENDS[chance.choice(list(ENDS))]
        flags = chance.choice([(), ("-X", "dev", "-W", "ignore::ResourceWarning")])
        with Program(server, RANDOM + code + "\n", *flags) as program:
            program.tell(str(seed))
            program.wait()
            assert program.process.returncode == exit_code, f"seed {seed}: {program.description}"
            assert program.said == [], f"seed {seed}: {program.description}"
            assert program.complaints.endswith(f"{complaint}\n" if complaint else ""), f"seed {seed}: {program.description}"
            assert program.complaints.count("Traceback") == (1 if complaint else 0), f"seed {seed}: {program.description}"
            program.assert_no_crash()

    # A few at a time stand in each other's way.
    with ThreadPoolExecutor(3) as several:
        list(several.map(end, range(RANDOM_EXITS)))
    nothing_is_left(server)


# ---- Subinterpreters

SUBINTERPRETER = """
import sys

def run(kind, code):
    "Runs it in another interpreter. Returns the class and the text of its exception."
    try:
        import _interpreters as interpreters
        other = interpreters.create(kind)
    except ImportError:
        import _xxsubinterpreters as interpreters
        other = interpreters.create(isolated=kind == "isolated")
    try:
        if not hasattr(interpreters, "exec"):
            interpreters.run_string(other, code)
            return None
        problem = interpreters.exec(other, code)
        return problem and f"{problem.type.__name__}: {problem.msg}"
    except interpreters.RunFailedError as error:
        return str(error)
    finally:
        interpreters.destroy(other)

"""


@pytest.mark.parametrize("first", ["the main interpreter", "the subinterpreter"])
@pytest.mark.parametrize("kind", ["isolated", "legacy"])
def test_importing_the_package_in_a_subinterpreter_is_refused(
    request: pytest.FixtureRequest, server: Server, kind: str, first: str
) -> None:
    """Servers such as mod_wsgi make the legacy ones, which share the lock of the main interpreter."""
    if all(find_spec(module) is None for module in ("_interpreters", "_xxsubinterpreters")):
        skip(request, "this Python has no module for subinterpreters")
    ask = f"for _ in range(2): print('said', run({kind!r}, 'import fencepost'))"
    use = "import fencepost; lock = fencepost.connect(ttl=600).lock('a').acquire()"
    code = "\n".join([ask, use] if first == "the subinterpreter" else [use, ask])
    with Program(server, SUBINTERPRETER + code, beginning="") as program:
        program.wait()
        assert program.process.returncode == 0, program.description
        assert len(program.said) == 2, program.description
        assert all("ImportError" in line and "subinterpreter" in line for line in program.said), program.description
        assert program.complaints == "", program.description
    nothing_is_left(server)
