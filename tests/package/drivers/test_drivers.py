"""Several drivers share one cluster.

Their names do not mix, only detached actors outlive their driver, a driver needs the token, and
drivers survive a restart of the controller. How one driver starts and ends is tested in
`test_life.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import marline
import pytest
from harness.captured_output import CapturedOutput
from harness.clusters import RestartableCluster, SeparateCluster
from harness.processes import descendants, is_alive
from harness.scripts import Script
from harness.waiting import PATIENCE, wait_until


@pytest.fixture
def separate(tmp_path: Path) -> Iterator[SeparateCluster]:
    before = descendants(os.getpid())
    started = SeparateCluster(tmp_path / "run")
    try:
        started.worker("--cpus", "2")
        yield started
    finally:
        started.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))


Start = Callable[[str], Script]


@pytest.fixture
def driver(separate: SeparateCluster, scripts: list[Script]) -> Start:
    """A function that starts a script which joins the cluster."""

    def start(source: str) -> Script:
        joins = f"marline.init({separate.address!r}, token={separate.token!r})\n"
        scripts.append(Script(joins + textwrap.dedent(source)))
        return scripts[-1]

    return start


def test_names_of_two_namespaces_do_not_meet(driver: Start) -> None:
    source = """
        mine, other, start = {mine!r}, {other!r}, {start}
        counter = Counter.options(name="counter", namespace=mine).remote(start)
        marline.get(counter.add.remote())
        print_line("ready")
        wait_for_resume()
        print_line(marline.get(marline.get_actor("counter", namespace=mine).pid.remote()))
        print_line(marline.get(marline.get_actor("counter", namespace=other).pid.remote()))
        print_line(marline.get(marline.get_actor("counter", namespace=other).add.remote()))
        for where in ({{}}, {{"namespace": "neither"}}):
            try:
                print_line(marline.get_actor("counter", **where))
            except ValueError as error:
                print_line(type(error).__name__, "counter" in str(error))
        try:
            Counter.options(name="counter", namespace=other).remote()
        except marline.AlreadyExistsError:
            print_line("taken")
        named = marline.list_named_actors(all_namespaces=True)
        print_line(sorted((one["namespace"], one["name"]) for one in named))
        print_line(marline.list_named_actors())
        wait_for_resume()
        """
    first = driver(source.format(mine="a", other="b", start=100))
    second = driver(source.format(mine="b", other="a", start=200))
    assert [first.line(), second.line()] == ["ready", "ready"]
    first.resume()
    mine, others = first.line(), first.line()
    assert first.line() == "202", "the counter of the other driver"
    second.resume()
    assert (second.line(), second.line()) == (others, mine) and mine != others
    assert second.line() == "102"
    for script in (first, second):
        assert [script.line(), script.line()] == ["NotFoundError True"] * 2
        assert script.line() == "taken"
        assert script.line() == "[('a', 'counter'), ('b', 'counter')]"
        assert script.line() == "[]"
    for script in (first, second):
        script.resume()
        assert script.end()[0] == 0


@pytest.mark.parametrize("how", ["end", "kill"])
def test_only_what_is_detached_outlives_its_driver(
    separate: SeparateCluster, driver: Start, how: str
) -> None:
    script = driver(
        """
        detached = Counter.options(name="detached", lifetime="detached").remote()
        bound = Counter.options(name="bound").remote()
        print_line(marline.get([detached.add.remote(), bound.add.remote()]))
        print_line(marline.get(bound.pid.remote()))
        ref = nap.remote(600)
        wait_for_resume()
        """
    )
    assert script.line() == "[1, 1]"
    bound = int(script.line())
    if how == "end":
        script.resume()
        assert script.end()[0] == 0
    else:
        script.process.send_signal(signal.SIGKILL)
        script.process.wait()
    with marline.init(separate.address, token=separate.token):
        wait_until("the actor that is not detached has ended", lambda: not is_alive(bound))
        wait_until("the driver's task has ended", lambda: marline.available_resources()["CPU"] == 2.0)
        assert marline.list_named_actors() == ["detached"]
        detached = marline.get_actor("detached")
        assert marline.get(detached.add.remote()) == 2, "the actor is the same instance, called once before"
        pid = marline.get(detached.pid.remote())
        marline.kill(detached)
        wait_until("the detached actor has ended", lambda: not is_alive(pid))


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_actors_that_have_handles_to_each_other_end_with_their_driver(
    separate: SeparateCluster, driver: Start, how: str
) -> None:
    first = driver(
        """
        @marline.remote
        class Holder:
            def hold(self, *others):
                self.others = others
                return os.getpid()
            def make(self):
                self.made = Holder.options(name="made").remote()
                return marline.get(self.made.hold.remote(self.made))
        names = "narcissus", "one", "two"
        narcissus, one, two = (Holder.options(name=name, num_cpus=0).remote() for name in names)
        pids = marline.get([narcissus.hold.remote(narcissus), one.hold.remote(two), two.hold.remote(one)])
        print_line(*pids, marline.get(one.make.remote()))
        wait_for_resume()
        """
    )
    pids = [int(pid) for pid in first.line().split()]
    assert len(pids) == 4
    with marline.init(separate.address, token=separate.token):
        assert sorted(marline.list_named_actors()) == ["made", "narcissus", "one", "two"]
        if how == "ends":
            first.resume()
            assert first.end()[0] == 0
        else:
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        wait_until("no named actor is left", lambda: not marline.list_named_actors())
    wait_until("the actors' processes have ended", lambda: not any(is_alive(pid) for pid in pids))


def test_a_driver_that_is_killed_does_not_disturb_another(driver: Start) -> None:
    steady = driver(
        """
        counter = Counter.remote()
        while wait_for_resume().strip() == "":
            pids = marline.get([nap.remote(0.01), nap.remote(0.01)])
            print_line(pids[0] > 0, marline.get(counter.add.remote()))
        """
    )
    for round in range(1, 4):
        other = driver(
            """
            counter = Counter.remote()
            refs = [nap.remote(600) for _ in range(10)]
            print_line(marline.get(counter.add.remote()))
            wait_for_resume()
            """
        )
        assert other.line() == "1"
        other.process.kill()
        other.process.wait()
        steady.resume()
        assert steady.line() == f"True {round}"


def test_people_see_functions_and_classes_by_their_own_names(separate: SeparateCluster) -> None:
    @marline.remote
    def split() -> int:
        return 1

    @marline.remote(runtime_env={"env_vars": {"HUE": "blue"}})
    class Clerk:
        def work(self) -> int:
            return 2

    def shown(*words: str) -> str:
        binary = os.environ.get("MARLINE_BINARY", "marline")
        command = [binary, *words]
        return subprocess.run(
            command, env=separate.environment, capture_output=True, text=True, check=True
        ).stdout

    with marline.init(separate.address, token=separate.token):
        clerk = Clerk.remote()
        assert marline.get([split.remote(), clerk.work.remote()]) == [1, 2]
        assert {row.split()[1] for row in shown("tasks").splitlines()[1:]} >= {"split"}
        assert [row.split()[1] for row in shown("actors").splitlines()[1:]] == ["Clerk"]
        assert ".split#" in shown("tasks", "--json") and ".Clerk#" in shown("actors", "--json")


@pytest.mark.parametrize("token", ["not this", None, ""])
def test_a_driver_without_the_token_is_refused(
    separate: SeparateCluster, token: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With another runtime folder, `init` finds no token file of a cluster on this machine.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("MARLINE_TOKEN_FILE", raising=False)
    with pytest.raises(marline.DeniedError, match="token is missing or wrong: pass the one of") as caught:
        marline.init(separate.address, token=token)
    assert isinstance(caught.value, PermissionError)
    assert not marline.is_initialized()
    assert not token or token not in str(caught.value)
    with marline.init(separate.address, token=separate.token):
        assert marline.get(marline.remote(abs).remote(-1)) == 1


@marline.remote
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def answers() -> bool:
    """Returns whether a function that was never used before runs."""

    @marline.remote
    def fresh() -> int:
        return 1

    try:
        return bool(marline.get(fresh.remote(), timeout=PATIENCE) == 1)
    except marline.WorkerLostError:
        return False


def test_waits_fail_when_the_controller_dies(restartable_cluster: RestartableCluster) -> None:
    refs = [nap.remote(600) for _ in range(4)]
    restartable_cluster.restart()
    for ref in refs:
        with pytest.raises(marline.WorkerLostError, match="has ended") as caught:
            marline.get(ref, timeout=PATIENCE)
        assert caught.value.may_have_run
    wait_until("worker and driver are back", answers)


def test_a_session_after_the_controller_restarted_is_like_any_other(
    restartable_cluster: RestartableCluster,
) -> None:
    assert marline.get(nap.remote(0)) == 0
    restartable_cluster.restart()
    marline.shutdown()
    with marline.init(restartable_cluster.address, token=restartable_cluster.token):
        assert marline.get(nap.remote(0), timeout=PATIENCE) == 0


def test_a_function_that_was_used_before_the_controller_restarted_runs_again(
    restartable_cluster: RestartableCluster,
) -> None:
    assert marline.get(nap.remote(0)) == 0
    restartable_cluster.restart()
    wait_until("worker and driver are back", answers)
    assert marline.get(nap.remote(0), timeout=PATIENCE) == 0


def test_an_actor_ended_with_the_controller_that_it_was_created_at(
    restartable_cluster: RestartableCluster,
) -> None:
    @marline.remote
    class Counter:
        def count(self) -> int:
            return 1

    counter = Counter.remote()
    assert marline.get(counter.count.remote(), timeout=PATIENCE) == 1
    restartable_cluster.restart()
    wait_until("worker and driver are back", answers)
    with pytest.raises(marline.ActorDiedError, match="the controller was started again"):
        marline.get(counter.count.remote(), timeout=PATIENCE)


def loses_everything(cluster: RestartableCluster) -> None:
    """Restarts the controller, and replaces the worker by a new one.

    Both have forgotten everything.
    """
    worker = cluster.processes.pop(1)
    cluster.restart()
    worker.kill()
    worker.wait()
    cluster.worker("--cpus", "2", "--address", cluster.address)
    wait_until("worker and driver are back", answers)


def test_what_work_prints_is_shown_after_the_controller_restarted(
    restartable_cluster: RestartableCluster, captured_output: CapturedOutput
) -> None:
    @marline.remote
    def speak(text: str) -> None:
        print(text)

    for text in ("before", "after", "after that, too"):
        marline.get(speak.remote(text))
        captured_output.wait_until(f") {text}\n")
        restartable_cluster.restart()
        wait_until("worker and driver are back", answers)


def test_packages_of_the_driver_are_there_after_the_controller_restarted(
    restartable_cluster: RestartableCluster, tmp_path: Path
) -> None:
    marline.shutdown()
    folder, module = tmp_path / "project", tmp_path / "tools.py"
    folder.mkdir()
    (folder / "note").write_text("from the folder")
    module.write_text("ANSWER = 42")
    env = {"working_dir": folder, "py_modules": [module]}

    @marline.remote
    def used() -> tuple[str, int]:
        return Path("note").read_text(), __import__("tools").ANSWER

    @marline.remote(runtime_env={"env_vars": {"HUE": "blue"}})
    class Unused:
        def use(self) -> tuple[str, int]:
            return Path("note").read_text(), __import__("tools").ANSWER

    with marline.init(restartable_cluster.address, token=restartable_cluster.token, runtime_env=env):
        assert marline.get(used.remote()) == ("from the folder", 42)
        for _ in range(2):
            loses_everything(restartable_cluster)
            assert marline.get(used.remote(), timeout=PATIENCE) == ("from the folder", 42)
            assert marline.get(Unused.remote().use.remote(), timeout=PATIENCE) == ("from the folder", 42)
        (folder / "note").write_text("it changed")
        loses_everything(restartable_cluster)
        assert marline.get(used.remote(), timeout=PATIENCE) == ("it changed", 42)


def test_the_address_may_be_in_the_environment(
    separate: SeparateCluster, scripts: list[Script], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(separate.token)
    environment = {"MARLINE_ADDRESS": separate.address, "MARLINE_TOKEN_FILE": str(file)}
    look = "addresses = [node['NodeManagerAddress'][:5] for node in marline.nodes()]\n"
    look += "print_line(marline.get(nap.remote(0)) > 0, addresses)"
    for init in ("marline.init()", "", "marline.init('local', num_cpus=1)"):
        scripts.append(Script(f"{init}\n{look}", **environment))
    lines = [script.line() for script in scripts]
    assert lines == ["True ['127.0']", "True ['127.0']", "True ['unix:']"]


def test_a_token_file_that_is_not_there_is_named(
    separate: SeparateCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARLINE_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(marline.DeniedError, match=r"MARLINE_TOKEN_FILE names: .*none"):
        marline.init(separate.address)
    assert not marline.is_initialized()


@pytest.mark.parametrize("address", ["nonsense", "host:port", ":", "127.0.0.1:99999", "ray://host:1"])
def test_an_invalid_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address: expected HOST:PORT or unix:/path"):
        marline.init(address)
    assert not marline.is_initialized()
