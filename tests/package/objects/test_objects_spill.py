"""Values beyond a store's memory spill to disk. Damage is noticed, a full disk is reported."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import marline
import pytest
from harness import store
from harness.store import (
    MIB,
    Array,
    is_whole,
    needs_root,
    one_worker_cluster,
    open_files,
    pattern,
    resize,
    small_disk,
    spilled_bytes,
)
from harness.waiting import PATIENCE, wait_until

# Workers of a separate cluster cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(store)


@marline.remote
def make(size: int, seed: int) -> Array:
    return pattern(size, seed)


@marline.remote
def check_pattern(value: Array, seed: int) -> bool:
    return is_whole(value, seed)


def test_ten_times_the_memory_goes_through_a_pipeline_and_each_item_counts_once(tmp_path: Path) -> None:
    items, size = 200, MIB

    @marline.remote
    def turn(value: Array, seed: int) -> tuple[int, Array]:
        assert is_whole(value, seed), f"item {seed} is corrupt"
        return seed, 255 - value

    @marline.remote
    def ledger(*entries: tuple[int, Array]) -> dict[int, bool]:
        """Returns for each item whether it arrived whole and once."""
        seen: dict[int, bool] = {}
        for seed, value in entries:
            seen[seed] = seed not in seen and is_whole(255 - value, seed)
        return seen

    @marline.remote
    def merged(*parts: dict[int, bool]) -> dict[int, bool]:
        assert sum(len(part) for part in parts) == len({seed for part in parts for seed in part})
        return {seed: whole for part in parts for seed, whole in part.items()}

    spill = tmp_path / "spill"
    spill.mkdir()
    with one_worker_cluster(tmp_path / "run", items * size // 10, spill) as running:
        # All values are held until the end: none makes room by its release.
        made = [make.remote(size, seed) for seed in range(items)]
        turned = [turn.remote(ref, seed) for seed, ref in enumerate(made)]
        parts = [ledger.remote(*turned[start : start + 8]) for start in range(0, items, 8)]
        assert marline.get(merged.remote(*parts)) == dict.fromkeys(range(items), True)
        assert spilled_bytes(running.pid, spill) > 3 * items * size // 2, "most values are on the disk"
        assert not list(spill.iterdir()), "spill files have no name"
        del made, turned, parts
        wait_until("the disk is empty again", lambda: spilled_bytes(running.pid, spill) == 0)
        assert marline.get(check_pattern.remote(make.remote(size, 1), 1))


def test_tasks_that_each_need_more_than_half_of_the_memory_take_turns(tmp_path: Path) -> None:
    @marline.remote
    def check_all(start: int, *values: Array) -> bool:
        return all(is_whole(value, start + number) for number, value in enumerate(values))

    spill = tmp_path / "spill"
    spill.mkdir()
    with one_worker_cluster(tmp_path / "run", 21 * MIB, spill, patience=5):
        made = [make.remote(MIB, seed) for seed in range(60)]
        tasks = [check_all.remote(start, *made[start : start + 12]) for start in range(0, 48, 3)]
        assert all(marline.get(tasks))
        with pytest.raises(marline.ExhaustedError, match="20 MiB of it are being read"):
            marline.get(check_all.remote(0, *made))


def flip(file: int, size: int) -> None:
    """Flips a bit in each block of a file that has data."""
    for offset in range(0, size, 4096):
        if byte := os.pread(file, 1, offset + 2000):
            os.pwrite(file, bytes([byte[0] ^ 1]), offset + 2000)


@pytest.mark.parametrize(
    "harm", [flip, lambda file, _: os.ftruncate(file, 100)], ids=["changed", "cut short"]
)
def test_a_value_that_the_disk_damaged_is_made_again_or_lost_and_never_given_out(
    harm: Callable[[int, int], None], tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    with one_worker_cluster(tmp_path / "run", 20 * MIB, spill) as running:
        put = [marline.put(pattern(2 * MIB, seed)) for seed in range(10)]
        made = [make.remote(2 * MIB, 100 + seed) for seed in range(10)]
        once = [make.options(max_retries=0).remote(2 * MIB, 200 + seed) for seed in range(10)]
        marline.wait(made + once, num_returns=20)
        (path,) = open_files(running.pid, f"{spill}/").values()
        before = spilled_bytes(running.pid, spill)
        assert before >= 40 * MIB
        file = os.open(path, os.O_RDWR)
        harm(file, os.fstat(file).st_size)
        os.close(file)
        lost = 0
        for seed, ref in (*enumerate(put), *enumerate(once, 200)):
            try:
                assert is_whole(marline.get(ref, timeout=PATIENCE), seed)
            except marline.ObjectLostError as error:
                assert "is lost" in str(error)
                lost += 1
                with pytest.raises(marline.ObjectLostError):
                    marline.get(check_pattern.remote(ref, seed), timeout=PATIENCE)
        assert lost >= 10, "spilled values that cannot be made again are lost"
        for seed, ref in enumerate(made, 100):
            assert marline.get(check_pattern.remote(ref, seed), timeout=PATIENCE), "for a task"
            assert is_whole(marline.get(ref, timeout=PATIENCE), seed), "for this process"
        del put, made, once, ref
        gc.collect()
        wait_until("the disk is empty again", lambda: spilled_bytes(running.pid, spill) == 0)


@needs_root
def test_a_full_disk_is_reported_with_figures_and_used_again_when_it_has_room(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", "10m") as spill,
        one_worker_cluster(tmp_path / "run", 21 * MIB, spill, patience=2) as running,
    ):
        kept: dict[int, Any] = {}
        with pytest.raises(marline.ExhaustedError) as raised:
            for seed in range(20):
                kept[seed] = marline.put(pattern(4 * MIB, seed))
        text = str(raised.value)
        assert "no room for 4 MiB" in text and "20 MiB of 21 MiB are used" in text, text
        assert "No space left on device" in text, text
        assert len(kept) == 7, "five in memory, and two on the disk"
        waits = make.remote(4 * MIB, 50)
        assert not marline.wait([waits], timeout=1)[0], "the task waits for room"
        resize(spill, "100m")
        assert is_whole(marline.get(waits, timeout=PATIENCE), 50), "the task goes on when the disk has room"
        for seed in range(60, 70):
            kept[seed] = marline.put(pattern(4 * MIB, seed))
        assert all(is_whole(marline.get(ref), seed) for seed, ref in kept.items()), "nothing was lost"
        del waits
        kept.clear()
        wait_until("the disk is empty again", lambda: spilled_bytes(running.pid, spill) == 0)


def test_without_a_disk_producers_wait_for_room_and_are_refused_if_none_comes(
    tmp_path: Path,
) -> None:
    with one_worker_cluster(tmp_path / "run", 21 * MIB, patience=2) as running:
        kept = [marline.put(pattern(4 * MIB, seed)) for seed in range(5)]
        views = marline.get(kept[:2])
        waits = [make.options(max_retries=0).remote(4 * MIB, 10 + seed) for seed in range(2)]
        with pytest.raises(marline.ExhaustedError) as raised:
            marline.put(pattern(4 * MIB, 20))
        text = str(raised.value)
        for figure in ("for 4 MiB", "20 MiB of 21 MiB are used", "8 MiB of it are being read", "no disk"):
            assert figure in text, text
        for ref in waits:
            with pytest.raises(marline.ExhaustedError, match="no room for 4 MiB"):
                marline.get(ref, timeout=PATIENCE)
        assert store.memory_bytes(running.pid) < 22 * MIB
        waits = [make.remote(4 * MIB, 30 + seed) for seed in range(20)]
        seeds = {ref: 30 + seed for seed, ref in enumerate(waits)}
        assert not marline.wait(waits, timeout=0.5)[0], "the tasks wait for room"
        del ref
        kept.clear()
        while seeds:
            (ready,), waits = marline.wait(waits, timeout=PATIENCE)
            assert is_whole(marline.get(ready), seeds.pop(ready))
            del ready
        assert all(is_whole(view, seed) for seed, view in enumerate(views)), "views stay as they were"


@pytest.mark.parametrize("embedded", [False, True], ids=["joined", "embedded"])
def test_a_get_that_times_out_says_that_views_of_this_process_fill_the_store(
    tmp_path: Path, embedded: bool
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    started: Any = one_worker_cluster(tmp_path / "run", 21 * MIB, spill)
    if embedded:
        started = marline.init(num_cpus=1, object_store_memory=21 * MIB, object_spilling_directory=str(spill))
    with started:
        refs = [marline.put(pattern(4 * MIB, seed)) for seed in range(6)]
        views = [marline.get(ref, timeout=PATIENCE) for ref in refs[1:]]
        with pytest.raises(marline.GetTimeoutError) as raised:
            marline.get(refs[0], timeout=0.3)
        text = str(raised.value)
        for figure in ("no room for 4 MiB", "20 MiB of 21 MiB are used", "20 MiB of it are being read"):
            assert figure in text, text
        del views
        assert is_whole(marline.get(refs[0], timeout=PATIENCE), 0)


@pytest.mark.parametrize("actor", [False, True], ids=["task", "call"])
def test_results_of_one_task_that_do_not_fit_together_go_to_the_disk(tmp_path: Path, actor: bool) -> None:
    count, size = 6, 4 * MIB

    def several() -> list[Array]:
        return [pattern(size, seed) for seed in range(count)]

    class Makes:
        def several(self) -> list[Array]:
            return several()

    spill = tmp_path / "spill"
    spill.mkdir()
    with one_worker_cluster(tmp_path / "run", count * size // 2, spill):
        if actor:
            refs = marline.remote(Makes).remote().several.options(num_returns=count).remote()
        else:
            refs = marline.remote(num_returns=count, max_retries=0)(several).remote()
        for seed, ref in enumerate(refs):
            assert marline.get(check_pattern.remote(ref, seed), timeout=PATIENCE)
