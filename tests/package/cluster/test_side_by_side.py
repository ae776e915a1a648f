"""Clusters of several processes of one user do not mix, although they use the same names.

The file also tests that definitions of the main module travel, however the program is started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness.processes import is_alive
from harness.waiting import PATIENCE, wait_until

FIXTURES = """
import os, time
from pathlib import Path
import marline, pytest

@marline.remote
class Counter:
    def __init__(self):
        self.count = 0
    def add(self):
        self.count += 1
        return self.count, os.getpid()

@pytest.fixture(scope="session")
def counter():
    with marline.init(num_cpus=1):
        # If all processes had one cluster, this name would be taken.
        counter = Counter.options(name="counter").remote()
        _, pid = marline.get(counter.add.remote())
        here = Path(os.environ["MEETING"])
        (here / f"{os.environ['PYTEST_XDIST_WORKER']}-{pid}").touch()
        # Wait until every process has its actor.
        end = time.monotonic() + 60
        while len(list(here.iterdir())) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield counter, pid, [1]
"""

SUITE = """
import marline, pytest

@pytest.mark.parametrize("number", range(12))
def test_it_is_our_own(counter, number):
    actor, pid, counted = counter
    counted[0] += 1
    assert marline.get(marline.get_actor("counter").add.remote()) == (counted[0], pid)
    assert marline.list_named_actors(all_namespaces=True) == [{"namespace": "default", "name": "counter"}]
    assert len(marline.nodes()) == 1
    assert marline.cluster_resources() == {"CPU": 1.0}
"""


def surroundings(folder: Path) -> dict[str, str]:
    """Returns an environment whose clusters keep all their files in this folder."""
    for name in ("run", "tmp", "meeting"):
        (folder / name).mkdir()
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "TMPDIR": str(folder / "tmp"),
        "MEETING": str(folder / "meeting"),
    }


def leftover_files(folder: Path) -> list[str]:
    """Returns the names of the files that clusters left behind."""
    places = [folder / "run" / "marline", folder / "tmp"]
    entries = [entry for place in places if place.is_dir() for entry in place.iterdir()]
    return [entry.name for entry in entries if not entry.name.startswith("pytest-of-")]


def test_workers_of_pytest_xdist_have_a_cluster_each(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    environment = surroundings(tmp_path)
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "pytest.ini").write_text("[pytest]\n")
    (suite / "conftest.py").write_text(FIXTURES)
    (suite / "test_it.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider", str(suite)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and "12 passed" in done.stdout, done.stdout + done.stderr
    met = [entry.name.split("-") for entry in (tmp_path / "meeting").iterdir()]
    assert sorted(worker for worker, _ in met) == ["gw0", "gw1", "gw2"]
    wait_until("their actors have ended", lambda: not any(is_alive(int(pid)) for _, pid in met))
    wait_until("no file of a cluster is left", lambda: leftover_files(tmp_path) == [])


def test_the_death_of_one_driver_does_not_disturb_the_cluster_of_another(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, sys
        import marline

        @marline.remote
        class Keeper:
            def __init__(self, value):
                self.value = value
            def get(self):
                return self.value

        marline.init(num_cpus=1)
        keeper = Keeper.options(name="keeper", lifetime="detached").remote(sys.argv[1])
        print(marline.get(keeper.get.remote()), flush=True)
        for line in sys.stdin:
            found = marline.get_actor("keeper")
            print(marline.get([found.get.remote(), marline.remote(os.getppid).remote()])[0], flush=True)
        """
    )
    environment = surroundings(tmp_path)
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", script, value],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in ("one", "two")
    ]
    try:

        def ask(driver: subprocess.Popen[str]) -> str:
            assert driver.stdin is not None and driver.stdout is not None
            driver.stdin.write("\n")
            driver.stdin.flush()
            return driver.stdout.readline().strip()

        assert [driver.stdout.readline() for driver in drivers if driver.stdout] == ["one\n", "two\n"]
        assert [ask(driver) for driver in drivers] == ["one", "two"]
        drivers[0].kill()
        drivers[0].wait()
        assert ask(drivers[1]) == "two"
        _, errors = drivers[1].communicate(timeout=PATIENCE)
        assert drivers[1].returncode == 0, errors
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()
    wait_until("no file of a cluster is left", lambda: leftover_files(tmp_path) == [])


MAIN = """
import dataclasses
import marline
from {package} import FACTOR

@dataclasses.dataclass
class Point:
    x: int

class Odd(Exception):
    pass

@marline.remote
def double(point):
    if point.x < 0:
        raise Odd(point)
    return Point(point.x * FACTOR)

@marline.remote
class Pen:
    def __init__(self, point):
        self.point = point
    def move(self, by):
        self.point = Point(self.point.x + by)
        return self.point

if __name__ == "__main__":
    with marline.init(num_cpus=2):
        assert marline.get(double.remote(Point(2))) == Point(4)
        assert marline.get(Pen.remote(Point(1)).move.remote(2)) == Point(3)
        assert list(marline.map(lambda point: point.x, [Point(5)])) == [5]
        try:
            marline.get(double.remote(Point(-1)))
        except Odd as error:
            assert error.args == (Point(-1),)
            print("all arrived as themselves")
"""


@pytest.mark.parametrize("how", ["file", "module", "input"])
def test_definitions_of_the_main_module_travel_however_it_is_run(how: str, tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("FACTOR = 2\n")
    source = MAIN.format(package="pack")
    (package / "run.py").write_text(source)
    words = {"file": [str(package / "run.py")], "module": ["-m", "pack.run"], "input": ["-"]}[how]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, *words],
        input=source,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (ran.returncode, ran.stdout) == (0, "all arrived as themselves\n"), ran.stderr
