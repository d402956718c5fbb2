"""Locks of a program without an event loop."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from conftest import eventually

import fencepost
from fencepost import Client
from fencepost.testing import Server


def is_free(client: Client, name: str) -> bool:
    return client.explain(name).is_free


def test_a_block_holds_the_lock_and_gives_it_back(client: Client, other: Client, name: str) -> None:
    with client.lock(name, ttl=30, wait=5, tier=fencepost.CORRECTNESS) as lock:
        assert lock.is_held and not lock.lost and 0 < lock.remaining <= 30
        assert other.lock(name).try_acquire() is None
        assert (lock.name, lock.names) == (name, (name,))
        assert other.explain(name).holders[0].session == lock.session
    assert is_free(other, name)
    assert not lock.is_held and not lock.lost


def test_tokens_rise_and_have_a_type(client: Client, name: str) -> None:
    tokens = []
    for _ in range(3):
        with client.lock(name) as lock:
            tokens.append(lock.fence_token)
    assert tokens == sorted(set(tokens)) and all(type(token) is fencepost.FenceToken for token in tokens)
    for mode in (fencepost.SHARED, fencepost.UPDATE):
        with client.lock(name, mode=mode) as reader:
            assert type(reader.fence_token) is fencepost.ReadToken and reader.fence_token > tokens[-1]


def test_a_lock_without_a_token_says_why(client: Client, name: str) -> None:
    with client.lock(name, tier=fencepost.EFFICIENCY) as lock:
        assert not hasattr(lock, "fence_token")
        with pytest.raises(AttributeError, match="no store can refuse a late write"):
            lock.fence_token  # type: ignore[attr-defined]
    with client.semaphore(name, limit=2) as permits, pytest.raises(AttributeError, match="several clients hold some"):
        permits.fence_token  # type: ignore[attr-defined]
    with client.lock(name, name + "b") as both, pytest.raises(AttributeError, match=r"lock\.token\(name\)"):
        both.fence_token  # type: ignore[attr-defined]


def test_several_names_are_held_together(client: Client, other: Client, name: str) -> None:
    names = (f"{name}/a", f"{name}/b")
    with client.lock(*names) as both:
        assert both.names == names and both.token(names[0]) == both.token(names[1])
        assert all(other.lock(each).try_acquire() is None for each in names)
        with pytest.raises(KeyError, match="does not hold 'c'"):
            both.token("c")
    with client.lock(*names, mode=fencepost.SHARED) as both_read:
        assert type(both_read.token(names[1])) is fencepost.ReadToken


def test_a_path_covers_what_is_below(client: Client, other: Client, name: str) -> None:
    with client.lock(f"/{name}"):
        assert other.lock(f"/{name}/below").try_acquire() is None


def test_an_update_lock_becomes_exclusive_when_the_readers_are_gone(client: Client, other: Client, name: str) -> None:
    reader = other.lock(name, mode=fencepost.SHARED).acquire()
    with client.lock(name, mode=fencepost.UPDATE) as lock:
        with pytest.raises(fencepost.LockTimeout):
            lock.upgrade(wait=0.05)
        assert lock.is_held
        reader.release()
        with lock.upgrade(wait=5) as writer:
            assert type(writer.fence_token) is fencepost.FenceToken
            assert other.lock(name, mode=fencepost.SHARED).try_acquire() is None
        assert is_free(other, name)
    assert not lock.is_held


def test_busy_and_timed_out_say_who_is_in_the_way(client: Client, other: Client, name: str) -> None:
    with other.lock(name) as held:
        with pytest.raises(fencepost.LockBusy, match="is busy") as busy:
            client.lock(name, wait=0).acquire()
        assert busy.value.names == [name]
        with pytest.raises(fencepost.LockTimeout, match=f"held by session {str(held.session)[:12]}") as timed_out:
            client.lock(name, wait=timedelta(milliseconds=50)).acquire()
        assert isinstance(timed_out.value, TimeoutError) and isinstance(timed_out.value, fencepost.Refused)


def test_a_waiter_is_granted_when_the_holder_releases(client: Client, other: Client, name: str) -> None:
    order: list[str] = []

    def wait() -> None:
        with other.lock(name, wait=None):
            order.append("waiter")

    with client.lock(name):
        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually("the other client waits", lambda: client.explain(name).waiting == 1)
        order.append("holder")
    waiter.join()
    assert order == ["holder", "waiter"]


def test_owners_enter_again_and_their_deadlocks_are_refused(client: Client, other: Client, name: str) -> None:
    with client.lock(name, owner="a"), client.lock(name, owner="a"), client.lock(f"{name}/a", owner="a"):
        with other.lock(f"{name}/b", owner="b"):
            refused: list[BaseException] = []

            def close_the_circle() -> None:
                try:
                    other.lock(f"{name}/a", owner="b", wait=30).acquire().release()
                except fencepost.Error as error:
                    refused.append(error)

            thread = threading.Thread(target=close_the_circle)
            thread.start()
            eventually("the other owner waits", lambda: client.explain(f"{name}/a").waiting == 1)
            with pytest.raises(fencepost.Deadlock):
                client.lock(f"{name}/b", owner="a", wait=30).acquire()
            client.close()
            thread.join()
            assert refused == []


@pytest.mark.parametrize("leave", ["normally", "by an exception"])
def test_leaving_a_block_after_a_loss_is_never_silent(
    client: Client, broken: Callable[[str], Any], name: str, leave: str
) -> None:
    if leave == "normally":
        with pytest.raises(fencepost.LockLost, match="the test says so"), client.lock(name) as lock:
            broken(name)
            assert lock.lost.wait(30) and lock.lost and "the test says so" in str(lock.lost.reason)
    else:
        with pytest.raises(ZeroDivisionError) as raised, client.lock(name) as lock:
            broken(name)
            assert lock.lost.wait(30)
            1 / 0  # noqa: B018
        assert "the lock is lost" in raised.value.__notes__[0]
    assert not lock.is_held


def test_nothing_of_a_lost_lock_succeeds(
    client: Client, other: Client, broken: Callable[[str], Any], name: str
) -> None:
    lock = client.lock(name, max_hold=60).acquire()
    lock.extend(70)
    broken(name)
    assert lock.lost.wait(30)
    with other.lock(name):
        asks: list[Callable[[], Any]] = [
            lock.check,
            lambda: lock.remaining,
            lambda: lock.fence_token,
            lambda: lock.extend(1),
            lock.__enter__,
            lock.release,
        ]
        for ask in asks:
            with pytest.raises(fencepost.LockLost):
                ask()
        assert not lock.is_held


def test_nothing_of_a_released_lock_succeeds(client: Client, name: str) -> None:
    lock = client.lock(name).acquire()
    lock.release()
    asks: list[Callable[[], Any]] = [
        lock.check,
        lambda: lock.remaining,
        lambda: lock.fence_token,
        lambda: lock.extend(1),
        lock.release,
    ]
    for ask in asks:
        with pytest.raises(fencepost.AlreadyReleased):
            ask()
    assert not lock.lost and lock.lost.wait(0) is False


def test_on_lost_runs_on_a_thread_of_its_own(client: Client, broken: Callable[[str], Any], name: str) -> None:
    heard: list[tuple[fencepost.LockLost, str]] = []
    hangs = threading.Event()

    def hang(loss: fencepost.LockLost) -> None:
        hangs.wait(60)

    def hear(loss: fencepost.LockLost) -> None:
        heard.append((loss, threading.current_thread().name))

    first = client.lock(f"{name}/a", on_lost=hang).acquire()
    second = client.lock(f"{name}/b", on_lost=hear).acquire()
    try:
        broken(f"{name}/a")
        assert first.lost.wait(30)
        broken(f"{name}/b")
        eventually("the second function is called, although the first one hangs", lambda: heard)
        assert heard[0][0].names == (second.name,) and heard[0][1] == "fencepost-on-lost"
    finally:
        hangs.set()


def test_on_lost_is_not_called_after_a_release(client: Client, broken: Callable[[str], Any], name: str) -> None:
    heard: list[str] = []
    client.lock(f"{name}/a", on_lost=lambda loss: heard.append("released")).acquire().release()
    lost = client.lock(f"{name}/b", on_lost=lambda loss: heard.append("lost")).acquire()
    broken(lost.name)
    eventually("the function of the lost lock is called", lambda: heard)
    assert heard == ["lost"]


def test_a_ttl_above_the_clients_has_a_session_of_that_ttl(client: Client, name: str) -> None:
    with client.lock(f"{name}/a") as usual, client.lock(f"{name}/b", ttl=90) as long:
        assert usual.session != long.session and 60 < long.remaining <= 90
        with client.lock(f"{name}/c", ttl=timedelta(seconds=90)) as second:
            assert second.session == long.session
    with pytest.raises(fencepost.Unsupported, match=r"give `ttl` to `fencepost\.connect`"):
        client.lock(name, ttl=90, tier=fencepost.EFFICIENCY).acquire()


def test_a_program_that_computes_its_ttls_has_a_bounded_number_of_sessions(fencepost_server: Server, name: str) -> None:
    with fencepost_server.client() as client:
        locks = [client.lock(f"{name}/{ttl}", ttl=ttl).acquire() for ttl in range(31, 131)]
        sessions = {lock.session for lock in locks}
        # The first 16 have exactly their TTL. After them there are 64 s, 128 s and 256 s.
        assert len(sessions) == 19
        assert all(lock.remaining <= ttl for lock, ttl in zip(locks, range(31, 131), strict=True))


def test_max_hold_ends_a_lock_and_extend_moves_the_end(client: Client, other: Client, name: str) -> None:
    lock = client.lock(name, max_hold=0.2).acquire()
    assert lock.lost.wait(30) and lock.lost.reason
    with client.lock(name, max_hold=5) as lock:
        lock.extend(3_600)
        assert eventually("the new end is known", lambda: lock.remaining > 10)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"timeout": 5}, "`timeout` is the TTL in redis-py, and the wait in kazoo"),
        ({"blocking": False}, "`wait=0` or `try_acquire"),
        ({"blocking_timeout": 1}, "is `wait`"),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
        ({"wait": "5"}, "wait is a number of seconds or a timedelta, not str"),
        ({"ttl": True}, "ttl is a number of seconds or a timedelta, not bool"),
        ({"mode": "shared"}, "mode is fencepost.EXCLUSIVE"),
        ({"tier": "efficiency"}, "tier is fencepost.CORRECTNESS"),
    ],
)
def test_wrong_words_are_type_errors_that_name_the_right_ones(
    client: Client, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError) as refused:
        client.lock("x", **arguments)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"wait": -1}, "wait=-1 is negative"),
        ({"wait": float("inf")}, "wait=None waits for ever"),
        ({"wait": float("nan")}, "is not a duration"),
        ({"ttl": 0.5}, "a value is not valid"),
        ({"owner": ""}, "a value is not valid"),
    ],
)
def test_wrong_values_are_value_errors(client: Client, name: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        client.lock(name, **arguments).acquire()
    assert says in str(refused.value)


def test_wrong_names_are_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="at least one name"):
        client.lock()  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="several names are several arguments"):
        client.lock(["a", "b"])  # type: ignore[call-overload]
    for name in ("", "x" * 1_000, "/a//b"):
        with pytest.raises(ValueError, match="is not valid"):
            client.lock(name).acquire()


def test_acquire_refuses_the_words_of_other_libraries(client: Client, name: str) -> None:
    with pytest.raises(TypeError, match=r"acquire\(\) has no argument `timeout`"):
        client.lock(name).acquire(timeout=5)
    assert is_free(client, name)


def test_a_request_is_for_one_block_at_a_time(client: Client, name: str) -> None:
    request = client.lock(name)
    with request:
        with pytest.raises(RuntimeError, match="in a block already"), request:
            pass
    with request as again:
        assert again.is_held
    assert is_free(client, name)


def test_a_held_lock_cannot_be_pickled_or_copied(client: Client, name: str) -> None:
    with client.lock(name) as lock:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                attempt(lock)


def test_a_client_that_is_pickled_connects_again(client: Client, name: str) -> None:
    again = pickle.loads(pickle.dumps(client))
    with again, client.lock(name) as lock, again.lock(f"{name}/b") as second:
        assert lock.session != second.session


def test_a_lock_that_the_collector_takes_stays_held(client: Client, other: Client, name: str) -> None:
    def work_without_a_block() -> None:
        if client.lock(name).acquire():
            pass

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        work_without_a_block()
        gc.collect()
    warning = next(each for each in said if issubclass(each.category, ResourceWarning) and name in str(each.message))
    assert warning.filename == __file__ and f"{__file__}:{warning.lineno}" in str(warning.message)
    assert other.lock(name).try_acquire() is None
    client.close()
    with other.lock(name, wait=30):
        pass


def test_a_closed_client_takes_no_request_and_holds_nothing(client: Client, other: Client, name: str) -> None:
    lock = client.lock(name).acquire()
    client.close()
    client.close()
    assert not lock.is_held
    with pytest.raises(fencepost.Failed, match="the client is closed"):
        client.lock(name).acquire()
    with other.lock(name, wait=0):
        pass


def test_an_address_that_is_not_valid_is_refused_before_anything_is_sent() -> None:
    for address in ("fencepost://", "gopher://x", "fencepost://a:b:c", "redis:/x"):
        with pytest.raises(ValueError):
            fencepost.connect(address)
    with pytest.raises(ValueError, match="`name` is a setting of Fencepost alone"):
        fencepost.connect("redis://127.0.0.1/", name="x")


def test_the_environment_says_where_to_connect(
    monkeypatch: pytest.MonkeyPatch, fencepost_address: str, name: str
) -> None:
    monkeypatch.setenv("FENCEPOST_SERVER", fencepost_address)
    with fencepost.connect() as client, client.lock(name) as lock:
        assert lock.is_held


def test_nothing_listens_is_failed_at_the_first_use(name: str) -> None:
    with fencepost.connect("fencepost://127.0.0.1:1", connect_timeout=0.2) as client:
        with pytest.raises(fencepost.Failed, match="no node runs at 127.0.0.1:1"):
            client.lock(name).acquire()
        # The next request tries again.
        with pytest.raises(fencepost.Failed):
            client.lock(name).acquire()


def test_observers_see_the_language_and_the_name_of_a_client(fencepost_server: Any, name: str) -> None:
    with fencepost_server.client(name="billing", labels={"team": "a"}) as client, client.lock(name):
        said = fencepost_server.run("sessions", "-o", "json")
    assert f"python {fencepost.__version__}" in said and "billing" in said and '"team"' in said


def test_semaphores_elections_and_watches(client: Client, other: Client, name: str) -> None:
    with client.semaphore(name, limit=2), other.semaphore(name, limit=2):
        assert client.semaphore(name, limit=2).try_acquire() is None
        with pytest.raises(fencepost.LockBusy):
            client.semaphore(name, limit=2, wait=0).acquire()
    with pytest.raises(ValueError, match="permits=0"):
        client.semaphore(name, permits=0)

    election = f"{name}/election"
    assert other.election(election).leader() is None
    changes = iter(other.election(election).observe())
    assert next(changes) is None
    with client.election(election).campaign("10.0.0.7") as leadership:
        leader = next(changes)
        assert leader is not None and (leader.value, leader.epoch) == (b"10.0.0.7", leadership.epoch)
        leadership.set_value("10.0.0.8")
        changed = next(changes)
        assert changed is not None and changed.value == b"10.0.0.8"
        assert other.election(election, wait=0).campaign().try_acquire() is None
    assert next(changes) is None

    watch = other.watch(f"{name}/watched").start()
    with client.lock(f"{name}/watched") as lock:
        token = lock.fence_token
    events = [next(watch) for _ in range(2)]
    assert [(event.kind, event.token) for event in events] == [("granted", token), ("released", token)]
    assert watch.position == events[1].position
    resumed = other.watch(f"{name}/watched", after=events[0].position)
    assert next(resumed) == events[1]
    with pytest.raises(ValueError, match="is not a position"):
        next(other.watch(after="yesterday"))


def test_jobs_run_once(client: Client, other: Client, name: str) -> None:
    attempts = []

    def work(job: fencepost.Job) -> dict[str, int]:
        attempts.append(job.fence_token)
        last = job.last_checkpoint()
        if last is None:
            job.checkpoint("half")
            raise ConnectionError("the database is away")
        assert (last.attempt, last.bytes) == (1, b"half")
        return {"bills": 40}

    job = client.job(name, key="2026-11")
    with pytest.raises(ConnectionError):
        job.run(work)
    done = job.run(work)
    assert done.ran and done.succeeded and done.result == b'{"bills": 40}' and done.attempts == 2
    assert done.token == attempts[1]
    before = other.job(name, key="2026-11").run(work)
    assert not before.ran and before.result == done.result and len(attempts) == 2
    assert isinstance(other.job(name, key="2026-11").acquire(), fencepost.Completion)


def test_a_job_gives_up_after_its_attempts(client: Client, name: str) -> None:
    def fail(job: fencepost.Job) -> None:
        raise ValueError("no luck")

    for _ in range(2):
        with pytest.raises(ValueError, match="no luck"):
            client.job(name, key="k", attempts=2).run(fail)
    gave_up = client.job(name, key="k", attempts=2).run(fail)
    assert not gave_up.succeeded and gave_up.result == b"gave up after 2 attempts"
    with pytest.raises(ValueError, match="leaves no attempt"):
        client.job(name, key="k", attempts=0)


def test_a_job_stays_open_if_its_block_ends_without_a_completion(client: Client, name: str) -> None:
    job = client.job(name, key="k").acquire()
    assert isinstance(job, fencepost.Job)
    with job:
        assert (job.key, job.begin()) == ("k", 1)
    second = client.job(name, key="k").acquire()
    assert isinstance(second, fencepost.Job)
    with second:
        assert second.begin() == 2
        with pytest.raises(ValueError, match="the result of a job is not valid"):
            second.complete(b"x" * 5_000)
        assert second.complete("done").attempts == 2
        with pytest.raises(fencepost.AlreadyReleased):
            second.complete("again")


def test_the_work_of_a_job_is_completed_whatever_it_returns(client: Client, name: str) -> None:
    circle: list[Any] = []
    circle.append(circle)
    for number, result in enumerate((None, b"b", "text", [1], object(), circle, "x" * 9_000)):
        done = client.job(name, key=str(number)).run(lambda job, result=result: result)  # type: ignore[misc]
        assert done.ran and len(done.result) <= 4_096


def test_decorated_functions_hold_the_lock_of_their_arguments(client: Client, other: Client, name: str) -> None:
    @client.locked(name + ":{id}", on_busy="skip")
    def report(id: int, *, colour: str = "red") -> str:
        """Makes a report."""
        assert other.lock(f"{name}:{id}").try_acquire() is None
        return f"{id} {colour}"

    assert report(7) == "7 red" and report(id=8, colour="blue") == "8 blue"
    assert report.__name__ == "report" and report.__doc__ == "Makes a report."
    with other.lock(f"{name}:7"):
        assert report(7) is fencepost.SKIPPED
    assert repr(fencepost.SKIPPED) == str(fencepost.SKIPPED) == "fencepost.SKIPPED"

    @client.locked(name, pass_lock=True, wait=1)
    def write(lock: fencepost.Lock, what: str) -> tuple[int, str]:
        return lock.fence_token, what

    assert write("x")[1] == "x"

    @client.once(name, key="{month}")
    def bill(month: str) -> str:
        return f"bills of {month}"

    assert [bill("november").ran for _ in range(2)] == [True, False]

    @client.once(name, key="with job {month}", pass_job=True)
    def bill_with_job(job: fencepost.Job, month: str) -> str:
        return job.key

    assert bill_with_job("may").result == b"with job may"


def test_skip_is_for_the_lock_of_the_function_only(client: Client, other: Client, name: str) -> None:
    @client.locked(name, on_busy="skip")
    def work() -> None:
        client.lock(f"{name}/b", wait=0).acquire()

    with other.lock(f"{name}/b"), pytest.raises(fencepost.LockBusy):
        work()


def test_skip_is_for_busy_only(name: str) -> None:
    with fencepost.connect("fencepost://127.0.0.1:1", connect_timeout=0.2) as nowhere:

        @nowhere.locked(name, on_busy="skip")
        def work() -> None:
            raise AssertionError("it runs without its lock")

        with pytest.raises(fencepost.Failed):
            work()


def test_templates_take_plain_parameter_names_alone(client: Client) -> None:
    def report(id: int) -> None: ...

    for template in ("x:{id.real}", "x:{id[0]}", "x:{id!r}", "x:{id:>9}", "x:{}", "x:{0}"):
        with pytest.raises(TypeError, match="is not a plain parameter name"):
            client.locked(template)(report)
    with pytest.raises(TypeError, match="has no parameter `other`"):
        client.locked("x:{other}")(report)
    with pytest.raises(ValueError, match="neither 'raise' nor 'skip'"):
        client.locked("x", on_busy="wait")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="redis-py"):
        client.locked("x", timeout=5)

    def generate(id: int) -> Any:
        yield id

    with pytest.raises(TypeError, match="cannot hold a lock for a generator"):
        client.locked("x")(generate)


def test_the_librarys_warnings_reach_logging(
    client: Client, broken: Callable[[str], Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="fencepost"):
        lock = client.lock(name).acquire()
        broken(name)
        assert lock.lost.wait(30)
        record = eventually(
            "the loss is logged", lambda: next((each for each in caplog.records if name in each.message), None)
        )
    assert record.name == "fencepost" and record.levelno == logging.WARNING


def test_an_unheard_release_logs_and_does_not_raise(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Server() as server, server.client(call_timeout=0.3) as client:
        with caplog.at_level(logging.WARNING, logger="fencepost"), client.lock(name):
            server.pause()
        server.resume()
    assert any("was not answered" in record.message and name in record.message for record in caplog.records)


def test_waits_of_many_threads_share_one_client(client: Client, name: str) -> None:
    inside, worst, rounds = [0], [0], 20

    def work() -> None:
        for _ in range(rounds):
            with client.lock(name, wait=60):
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst[0] == 1
