"""Runtime environments: variables, folders and modules that travel with submitted work."""

from __future__ import annotations

import fcntl
import io
import os
import random
import signal
import subprocess
import sys
import textwrap
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marline
import pytest
from harness.clusters import SeparateCluster
from harness.processes import descendants
from harness.waiting import PATIENCE, wait_until
from marline._environment import environment, packing
from marline._environment.package_folder import PackageFolder
from marline._session import sessions


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeparateCluster]:
    """A cluster whose worker can import Marline, and has nothing else of the driver."""
    before = descendants(os.getpid())
    separate = SeparateCluster(tmp_path_factory.mktemp("run"))
    separate.environment["PYTHONPATH"] = str(Path(marline.__file__).parent.parent)
    separate.environment["TMPDIR"] = str(tmp_path_factory.mktemp("tmp"))
    separate.folder = tmp_path_factory.mktemp("empty")
    try:
        separate.worker("--cpus", "2")
        yield separate
    finally:
        marline.shutdown()
        separate.end()
    wait_until("every process of the cluster has ended", lambda: not (descendants(os.getpid()) - before))
    wait_until("every package folder is removed", lambda: not os.listdir(separate.environment["TMPDIR"]))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module, a package and data. The driver can import its modules."""
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "tools" / "__init__.py").write_text("from tools.words import WORD\n")
    (folder / "tools" / "words.py").write_text("WORD = 'word'\n")
    (folder / "data.txt").write_text("data")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("helper", "tools", "tools.words"):
        sys.modules.pop(name, None)


def doubling() -> Callable[[int], int]:
    """Returns a function that uses a module of the project folder."""
    import helper  # type: ignore[import-not-found]

    def double(x: int) -> int:
        result: int = helper.double(x)
        return result

    return double


def join(separate: SeparateCluster, **options: Any) -> None:
    marline.init(separate.address, token=separate.token, **options)


def test_a_module_that_workers_lack_can_travel_and_the_error_says_how(
    bare: SeparateCluster, project: Path
) -> None:
    import helper
    import tools  # type: ignore[import-not-found]

    join(bare)
    double = marline.remote(doubling())
    with pytest.raises(ModuleNotFoundError, match="No module named 'helper'") as caught:
        marline.get(double.remote(2))
    assert 'runtime_env={"working_dir": FOLDER}' in str(caught.value)
    for env in (
        {"working_dir": str(project)},
        {"working_dir": project},
        {"py_modules": [project / "helper.py"]},
        {"py_modules": [helper]},
    ):
        assert marline.get(double.options(runtime_env=env).remote(2)) == 4, env

    def word() -> str:
        import tools

        return str(tools.WORD)

    with pytest.raises(ModuleNotFoundError, match="runtime_env"):
        marline.get(marline.remote(word).remote())
    for module in (str(project / "tools"), tools, tools.words):
        remote = marline.remote(runtime_env={"py_modules": [helper, module]})(word)
        assert marline.get(remote.remote()) == "word", module


def test_a_script_sends_its_folder_along(bare: SeparateCluster, project: Path) -> None:
    (project / "work.py").write_text(
        textwrap.dedent(
            """
            import helper, marline

            class Wrong(Exception):
                pass

            @marline.remote
            def double(x):
                return helper.double(x)

            @marline.remote
            def fail():
                raise Wrong("it is")

            @marline.remote
            class Doubler:
                def double(self, x):
                    return marline.get(double.remote(x))
            """
        )
    )
    (project / "main.py").write_text(
        textwrap.dedent(
            """
            import marline, work
            marline.init(runtime_env={"working_dir": "."})
            doubler = work.Doubler.remote()
            print(marline.get(work.double.remote(2)), marline.get(doubler.double.remote(3)))
            try:
                marline.get(work.fail.remote())
            except work.Wrong as error:
                print(type(error).__name__)
            """
        )
    )
    environment = {**bare.environment, "MARLINE_ADDRESS": bare.address}
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.split() == ["4", "6", "Wrong"], done.stderr


def test_tasks_and_actors_run_in_a_folder_of_their_own(cluster: str, project: Path) -> None:
    def look() -> tuple[Any, ...]:
        ran = subprocess.run(["./run.sh"], capture_output=True, text=True)
        return os.getpid(), os.getcwd(), sys.path[0], open("data.txt").read(), ran.stdout, os.listdir("empty")

    class Looker:
        def look(self) -> tuple[Any, ...]:
            return look()

    env = {"working_dir": project}
    remote = marline.remote(runtime_env=env)
    actors = [remote(Looker).remote() for _ in range(2)]
    seen = marline.get([remote(look).remote(), *(actor.look.remote() for actor in actors)])
    pids, folders, paths, data, ran, empty = zip(*seen, strict=True)
    assert len(set(pids)) == 3
    assert len(set(folders)) == 1 and folders == paths, "all three share one folder"
    assert os.path.realpath(folders[0]) != os.path.realpath(project), "the folder is a copy"
    assert set(data) == {"data"} and set(ran) == {"ran\n"} and list(empty) == [[], [], []]


def test_variables_are_set_for_their_own_work_only(cluster: str) -> None:
    @marline.remote
    def colour() -> tuple[int, str | None]:
        return os.getpid(), os.environ.get("COLOUR")

    red, blue = ({"env_vars": {"COLOUR": name}} for name in ("red", "blue"))
    pids: dict[str | None, set[int]] = {}
    for _ in range(3):
        for env in (red, None, blue):
            pid, seen = marline.get(colour.options(runtime_env=env).remote())
            assert seen == (env and env["env_vars"]["COLOUR"])
            pids.setdefault(seen, set()).add(pid)
    assert len(pids["red"]) == len(pids["blue"]) == 1, "executors are used again"
    # Several executors without an environment were started ahead.
    assert not pids["red"] & pids["blue"] and not pids[None] & (pids["red"] | pids["blue"])


def test_an_actor_that_restarts_is_in_its_environment_again(cluster: str, project: Path) -> None:
    double = doubling()

    class Fragile:
        def use(self) -> tuple[int | None, str | None, int]:
            epoch = marline.get_runtime_context().actor_epoch
            if epoch == 1:
                os._exit(1)
            return epoch, os.environ.get("COLOUR"), double(2)

    env = {"env_vars": {"COLOUR": "red"}, "py_modules": [project / "helper.py"]}
    actor = marline.remote(max_restarts=1, max_task_retries=-1, runtime_env=env)(Fragile).remote()
    assert marline.get(actor.use.remote()) == (2, "red", 4)


def test_nested_work_inherits_the_environment_that_it_does_not_set_itself(
    cluster: str, project: Path
) -> None:
    def look() -> tuple[Any, ...]:
        return os.environ.get("COLOUR"), os.environ.get("SIZE"), os.path.exists("data.txt"), sys.path[0]

    class Looker:
        def look(self) -> tuple[Any, ...]:
            return look()

    def outer() -> list[Any]:
        inner = marline.remote(look)
        own = inner.options(runtime_env={"env_vars": {"COLOUR": "blue"}})
        actor = marline.remote(Looker).remote()
        refs = [inner.remote(), own.remote(), actor.look.remote()]
        return [os.getcwd(), *marline.get(refs)]

    env = {"working_dir": project, "env_vars": {"COLOUR": "red", "SIZE": "1"}}
    folder, *seen = marline.get(marline.remote(runtime_env=env)(outer).remote())
    inherited, merged = ("red", "1", True, folder), ("blue", "1", True, folder)
    assert seen == [inherited, merged, inherited]


def test_the_environment_of_init_is_the_default_of_all_work(bare: SeparateCluster, project: Path) -> None:
    env = {"working_dir": project, "env_vars": {"COLOUR": "red", "SIZE": "1"}}
    join(bare, runtime_env=env)

    @marline.remote
    def look() -> tuple[Any, ...]:
        return os.environ.get("COLOUR"), os.environ.get("SIZE"), os.path.exists("data.txt")

    assert marline.get(look.remote()) == ("red", "1", True)
    own = {"env_vars": {"SIZE": "2"}, "working_dir": project / "tools"}
    assert marline.get(look.options(runtime_env=own).remote()) == ("red", "2", False)
    assert list(marline.map(doubling(), [1, 2])) == [2, 4]
    marline.shutdown()
    join(bare)
    assert marline.get(look.remote()) == (None, None, False), "the default was for the earlier session"


def test_the_folder_is_packed_as_it_is_when_a_function_is_first_used(
    bare: SeparateCluster, project: Path
) -> None:
    join(bare)

    def read() -> str:
        return Path("data.txt").read_text()

    remote = marline.remote(runtime_env={"working_dir": project})(read)
    assert marline.get(remote.remote()) == "data"
    (project / "data.txt").write_text("changed")
    assert marline.get(remote.remote()) == "data"
    assert marline.get(remote.options(num_cpus=0.5).remote()) == "changed"


def test_the_same_folder_travels_once(bare: SeparateCluster, project: Path) -> None:
    size = 1 << 20
    (project / "noise").write_bytes(random.Random(1).randbytes(size))
    join(bare)
    for name in ("a", "b", "c"):
        env = {"working_dir": project, "env_vars": {"COLOUR": name}}
        colour = marline.remote(runtime_env=env)(lambda: os.environ["COLOUR"])
        assert marline.get(colour.remote()) == name
    kept = sessions.current().status().kept()[1]
    assert size < kept < 2 * size


def test_packages_live_as_long_as_the_actor_that_needs_them(
    bare: SeparateCluster, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    join(bare)
    double = doubling()

    class Doubler:
        def double(self, x: int) -> int:
            return double(x)

    options = {"max_restarts": -1, "max_task_retries": -1, "lifetime": "detached", "name": "doubler"}
    env = {"working_dir": project}
    made = marline.remote(**options, runtime_env=env)(Doubler).remote()
    assert marline.get(made.double.remote(2)) == 4
    marline.shutdown()
    # The driver that packed the folder is gone, and the next worker has never had the package.
    bare.processes[-1].kill()
    bare.worker("--cpus", "2")
    join(bare)
    assert marline.get(marline.get_actor("doubler").double.remote(3), timeout=PATIENCE) == 6
    marline.kill(marline.get_actor("doubler"))


def test_a_task_fails_if_its_environment_cannot_be_made(cluster: str) -> None:
    missing = environment.Package("0" * 32, str(uuid.uuid4()))
    env = environment.RuntimeEnv(working_dir=missing)
    remote = marline.remote(runtime_env=env)(os.getpid)
    for _ in range(2):
        with pytest.raises(marline.RuntimeEnvError) as caught:
            marline.get(remote.remote(), timeout=PATIENCE)
        assert isinstance(caught.value, marline.TaskError)
    with pytest.raises(marline.MarlineError, match="runtime_env"):
        actor = marline.remote(runtime_env=env)(type("Actor", (), {"use": len})).remote()
        marline.get(actor.use.remote(), timeout=PATIENCE)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"pip": ["torch"]},
            "'pip': install the packages in the Python that workers run .* keys are env_vars",
        ),
        ({"working_dirr": "."}, r"has no key 'working_dirr' \(is 'working_dir' meant\?\)"),
        ({"nonsense": 1}, "has no key 'nonsense'. Its keys are env_vars, excludes, py_modules, working_dir"),
        ({"env_vars": {"N": 1}}, "'N' is 1"),
        ({"env_vars": {"A=B": "1"}}, "cannot be in an environment"),
        ({"env_vars": ["A"]}, "env_vars must be a dict"),
        ({"working_dir": 1}, "path of a folder"),
        ({"py_modules": "helper.py"}, "py_modules must be a list"),
        ({"py_modules": [sys.executable]}, "neither a folder nor a .py file"),
        ({"py_modules": [sys]}, "sys is not one folder or one .py file"),
        ({"py_modules": [1]}, "1 is neither"),
        ({"excludes": [1]}, "excludes must be a list of strings"),
        ("working_dir", "must be a dict"),
    ],
)
def test_remote_options_and_init_reject_a_wrong_environment(env: Any, words: str) -> None:
    for give in (
        lambda: marline.remote(runtime_env=env)(os.getpid),
        lambda: marline.remote(os.getpid).options(runtime_env=env),
        lambda: marline.init(runtime_env=env),
    ):
        with pytest.raises(marline.InvalidError, match=words):
            give()
    assert not marline.is_initialized()


def test_a_missing_folder_or_module_is_refused_before_anything_is_submitted(
    cluster: str, project: Path
) -> None:
    use = marline.remote(os.getpid)
    for env, words in (
        ({"working_dir": project / "nothing"}, "no folder .*nothing on "),
        ({"working_dir": project / "helper.py"}, "no folder .*helper.py on "),
        ({"py_modules": [project / "nothing.py"]}, "no module .*nothing.py on "),
    ):
        with pytest.raises(marline.InvalidError, match=words):
            use.options(runtime_env=env).remote()


def packed(folder: Path, *excludes: str, prefix: str = "") -> bytes:
    source = packing.Source("working_dir", str(folder), prefix, excludes)
    return packing.pack(source, packing.entries(source))


def names(package: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(package)).namelist()


def test_the_same_content_makes_the_same_package(tmp_path: Path) -> None:
    packages = set()
    for number, order in enumerate(("abc", "cba")):
        folder = tmp_path / str(number)
        (folder / "inner").mkdir(parents=True)
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / f"{number}.pyc").write_text("")
        for name in order:
            (folder / "inner" / name).write_text(name)
            os.utime(folder / "inner" / name, (number, number))
        packages.add(packed(folder))
    assert len(packages) == 1
    assert names(packages.pop()) == ["inner/", "inner/a", "inner/b", "inner/c"]
    (folder / "inner" / "a").chmod(0o755)
    assert packed(folder) != packed(tmp_path / "0")


def test_excluded_files_are_not_packed(project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text("")
    everything = {
        "data.txt",
        "empty/",
        "helper.py",
        "run.sh",
        "tools/",
        "tools/__init__.py",
        "tools/words.py",
    }
    assert set(names(packed(project))) == everything
    assert set(names(packed(project, "*.py", "empty/"))) == {"data.txt", "run.sh", "tools/"}
    assert set(names(packed(project, "tools/w*", "*.txt"))) == everything - {"data.txt", "tools/words.py"}
    assert set(names(packed(project / "tools", prefix="tools/"))) == {
        "tools/",
        "tools/__init__.py",
        "tools/words.py",
    }


def test_links_are_followed_inside_and_refused_outside(project: Path, tmp_path: Path) -> None:
    (project / "again.txt").symlink_to("data.txt")
    (project / "more").symlink_to("tools")
    (project / "nowhere").symlink_to("does-not-exist")
    package = packed(project)
    assert {"again.txt", "more/words.py"} <= set(names(package)) and "nowhere" not in names(package)
    packing.unpack(package, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "again.txt").read_text() == "data"
    (project / "tools" / "round").symlink_to(project)
    with pytest.raises(marline.InvalidError, match="round is a link to a folder that it is in"):
        packed(project)
    assert packed(project, "round")
    (tmp_path / "secret").write_text("")
    (project / "tools" / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(marline.InvalidError, match="out is a link out of"):
        packed(project, "round")


def test_a_package_that_is_too_large_is_refused_with_its_largest_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "noise").write_bytes(random.Random(1).randbytes(3 << 20))
    monkeypatch.setattr(packing, "MAX_PACKAGE_BYTES", 1 << 20)
    with pytest.raises(
        marline.TooLargeError, match=r"3.0 MiB, .* 1.0 MiB .*are noise \(3.0 MiB\), "
    ) as caught:
        marline.init(num_cpus=1, runtime_env={"working_dir": project})
    assert "excludes" in str(caught.value) and not marline.is_initialized()
    assert packed(project, "noise")
    monkeypatch.setattr(packing, "MAX_FILES", 3)
    with pytest.raises(marline.TooLargeError, match="more than 3 files"):
        packed(project)


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_a_package_is_not_unpacked_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as package:
        package.writestr("fine", "")
        package.writestr(name, "")
    (tmp_path / "inner").mkdir()
    with pytest.raises(marline.RuntimeEnvError, match="outside of it"):
        packing.unpack(data.getvalue(), tmp_path / "inner" / "target")
    assert os.listdir(tmp_path) == ["inner"] and os.listdir(tmp_path / "inner") == []


def test_folders_whose_owner_was_killed_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, used, other = (tmp_path / f"marline-packages-{name}" for name in ("left", "used", "other"))
    for folder in (left, used, other):
        folder.mkdir()
    (left / "lock").write_text("")
    with open(used / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mine = PackageFolder()
        assert {Path(mine.path), used, other} == set(tmp_path.iterdir()), (
            "the next owner removes the folder when it starts"
        )
        left.mkdir()
        (left / "lock").write_text("")
        PackageFolder().remove()
        assert {Path(mine.path), used, other} == set(tmp_path.iterdir()), "and another owner when it ends"
    mine.remove()
    assert list(tmp_path.iterdir()) == [other]


def test_a_link_to_a_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    precious, link = tmp_path / "precious", tmp_path / "marline-packages-link"
    precious.mkdir()
    (precious / "lock").write_text("")
    link.symlink_to(precious)
    PackageFolder().remove()
    assert {precious, link} == set(tmp_path.iterdir())
    assert (precious / "lock").exists()


def test_the_package_folder_of_a_killed_fork_server_is_removed(tmp_path: Path) -> None:
    temporary, run = tmp_path / "t", tmp_path / "run"
    temporary.mkdir()
    run.mkdir()

    def folders() -> list[Path]:
        return list(temporary.glob("marline-packages-*"))

    @marline.remote
    def parent() -> int:
        return os.getppid()

    separate = SeparateCluster(run)
    separate.environment["TMPDIR"] = str(temporary)
    try:
        separate.worker("--cpus", "1")
        with marline.init(separate.address, token=separate.token):
            server = marline.get(parent.remote(), timeout=PATIENCE)
            assert len(folders()) == 1
            os.kill(server, signal.SIGKILL)
    finally:
        separate.end()
    wait_until("every package folder is removed", lambda: not folders())
