"""`marline.Executor` does what `concurrent.futures` and asyncio expect of an executor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import marline
import pytest
from harness.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("cluster")
# Workers of a separate cluster cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def begin_and_nap(file: Path) -> None:
    file.touch()
    time.sleep(PATIENCE)


def nap_and_tell(folder: Path) -> None:
    try:
        begin_and_nap(folder / "begun")
    finally:
        (folder / "ended").touch()


def fail(n: int) -> int:
    if n == 2:
        raise ValueError("two", n)
    return n


def test_calls_run_elsewhere_and_results_come_back() -> None:
    with marline.Executor() as executor:
        assert executor.submit(os.getpid).result() != os.getpid()
        assert executor.submit(pow, 7, 2, mod=10).result() == 9
        assert isinstance(executor, concurrent.futures.Executor)


def test_exceptions_arrive_as_themselves() -> None:
    with marline.Executor() as executor:
        future = executor.submit(fail, 2)
        with pytest.raises(ValueError) as caught:
            future.result(PATIENCE)
        assert caught.value.args == ("two", 2)
        assert isinstance(future.exception(), ValueError)


def test_the_future_fails_if_an_argument_cannot_be_pickled() -> None:
    with marline.Executor() as executor:
        with pytest.raises(TypeError, match="pickle"):
            executor.submit(nap, threading.Lock()).result(PATIENCE)  # type: ignore[arg-type]
        assert executor.submit(nap, 0).result(PATIENCE) == 0


def test_methods_see_their_object_as_it_is_at_the_call() -> None:
    class Scale:
        factor = 1

        def of(self, n: int) -> int:
            return n * self.factor

    scale = Scale()
    with marline.Executor() as executor:
        assert executor.submit(scale.of, 3).result() == 3
        scale.factor = 10
        assert executor.submit(scale.of, 3).result() == 30


def test_wait_and_as_completed_take_its_futures() -> None:
    with marline.Executor() as executor:
        futures = [executor.submit(pow, n, 2) for n in range(20)]
        done, rest = concurrent.futures.wait(futures, timeout=PATIENCE)
        assert (len(done), len(rest)) == (20, 0)
        came = [future.result() for future in concurrent.futures.as_completed(futures)]
        assert sorted(came) == [n * n for n in range(20)]


def test_a_running_call_is_cancelled(tmp_path: Path) -> None:
    executor = marline.Executor()
    future = executor.submit(begin_and_nap, tmp_path / "began")
    wait_until("the call runs", (tmp_path / "began").exists)
    assert future.running()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert future.cancel()  # A second cancel changes nothing.
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(PATIENCE)
    done, _ = concurrent.futures.wait([future], timeout=PATIENCE)
    assert done == {future}
    executor.shutdown()  # It waits for the task, which ends early since it is cancelled.


def test_cancel_wakes_as_completed(tmp_path: Path) -> None:
    with marline.Executor() as executor:
        future = executor.submit(begin_and_nap, tmp_path / "began")
        wait_until("the call runs", (tmp_path / "began").exists)
        threading.Timer(0.05, future.cancel).start()
        assert [done.cancelled() for done in concurrent.futures.as_completed([future], PATIENCE)] == [True]


def test_a_waiting_call_is_cancelled_and_never_runs(tmp_path: Path) -> None:
    with marline.Executor(max_workers=1) as executor:
        first = executor.submit(begin_and_nap, tmp_path / "first")
        second = executor.submit(begin_and_nap, tmp_path / "second")
        wait_until("the first runs", (tmp_path / "first").exists)
        assert not second.running()
        assert second.cancel()
        assert first.cancel()
        assert executor.submit(nap, 0).result(PATIENCE) == 0
    assert not (tmp_path / "second").exists()


def test_a_finished_call_is_not_cancelled() -> None:
    with marline.Executor() as executor:
        future = executor.submit(nap, 0)
        assert future.result(PATIENCE) == 0
        assert not future.cancel()
        assert not future.cancelled()


def test_max_workers_bounds_how_many_run(tmp_path: Path) -> None:
    def alone(folder: Path) -> bool:
        (folder / "busy").mkdir()  # This fails while another call runs.
        time.sleep(0.01)
        (folder / "busy").rmdir()
        return True

    with marline.Executor(max_workers=1) as executor:
        futures = [executor.submit(alone, tmp_path) for _ in range(8)]
        assert all(future.result(PATIENCE) for future in futures)
    with pytest.raises(ValueError, match="max_workers"):
        marline.Executor(max_workers=0)


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_keeps_the_order_and_fails_in_its_place(chunksize: int) -> None:
    with marline.Executor() as executor:
        assert list(executor.map(pow, range(10), [2] * 12, chunksize=chunksize)) == [n * n for n in range(10)]
        results = executor.map(fail, range(5), chunksize=chunksize)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ValueError, match="two"):
            next(results)


def test_map_has_a_time_limit_and_cancels_what_is_left() -> None:
    with marline.Executor() as executor:
        results = executor.map(nap, [0, PATIENCE, PATIENCE], timeout=1)
        assert next(results) == 0
        with pytest.raises(TimeoutError):
            next(results)


def test_map_reads_ahead_only_as_far_as_told() -> None:
    read: list[int] = []

    def numbers():  # type: ignore[no-untyped-def]
        for n in range(100):
            read.append(n)
            yield n

    with marline.Executor() as executor:
        results = executor.map(abs, numbers(), buffersize=3)
        assert len(read) == 3
        assert next(results) == 0
        assert len(read) == 4
        assert list(results) == list(range(1, 100))


def test_shutdown_waits_and_refuses_what_comes_after() -> None:
    executor = marline.Executor()
    futures = [executor.submit(nap, 0.05) for _ in range(4)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(nap, 0)
    executor.shutdown()


def test_shutdown_cancels_if_asked() -> None:
    executor = marline.Executor(max_workers=2)
    futures = [executor.submit(nap, PATIENCE) for _ in range(5)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_block_that_fails_cancels_what_it_submitted_and_sees_its_end(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), marline.Executor(max_workers=1) as executor:
        running = executor.submit(nap_and_tell, tmp_path)
        queued = executor.submit(begin_and_nap, tmp_path / "queued")
        wait_until("the first call runs", (tmp_path / "begun").exists)
        raise error
    assert running.cancelled() and queued.cancelled()
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "queued").exists()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(nap, 0)


def test_asyncio_runs_and_cancels_calls_in_an_executor(tmp_path: Path) -> None:
    async def main(executor: marline.Executor) -> None:
        loop = asyncio.get_running_loop()
        assert await asyncio.gather(*(loop.run_in_executor(executor, nap, 0) for _ in range(5))) == [0] * 5
        with pytest.raises(ValueError, match="two"):
            await loop.run_in_executor(executor, fail, 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.run_in_executor(executor, nap, PATIENCE), 0.05)

    with marline.Executor() as executor:
        asyncio.run(main(executor))


def test_callbacks_may_submit() -> None:
    came = concurrent.futures.Future[int]()

    def again(_: object) -> None:
        executor.submit(pow, 2, 3).add_done_callback(lambda future: came.set_result(future.result()))

    with marline.Executor(max_workers=1) as executor:
        executor.submit(nap, 0).add_done_callback(again)
        assert came.result(PATIENCE) == 8


def test_options_are_those_of_tasks() -> None:
    with marline.Executor(max_retries=0) as executor, pytest.raises(marline.WorkerLostError):
        executor.submit(os._exit, 3).result(PATIENCE)
    with pytest.raises(TypeError, match="no option 'cpus'"):
        marline.Executor(cpus=1)


def test_a_remote_function_means_the_plain_one() -> None:
    @marline.remote(num_cpus=100)
    def square(n: int) -> int:
        return n * n

    with marline.Executor() as executor:
        assert executor.submit(square, 2).result(PATIENCE) == 4
        assert list(executor.map(square, [1, 2, 3])) == [1, 4, 9]


def test_an_executor_refuses_at_once_what_it_cannot_do() -> None:
    with marline.Executor() as executor:
        with pytest.raises(TypeError, match=r"submit\(\) takes a function, not int"):
            executor.submit(5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="chunksize"):
            executor.map(abs, [1], chunksize=0)
        assert list(executor.map(abs)) == []
    for wrong in ({"initializer": print}, {"mp_context": None}, {"num_returns": 2}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            marline.Executor(**wrong)
    with pytest.raises(ValueError, match="max_workers must be at least 1, not 0"):
        marline.Executor(0)
