"""A cluster for tests that kill and freeze its processes, and clients that connect without a token.

- `FaultCluster` starts the processes, and finds them by a mark in their environment.
- `Nemesis` kills and freezes them. A seed makes its choices.
- `Ledger` reads how the work of a driver ended. The driver itself is `faults_driver.py`.
- `ResourceUsage` measures what a cluster takes of the system, to compare before and after.
- `UnauthenticatedClients` holds connections without a token open at each port.

The tests are in `faults/test_faults.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from harness.clusters import SeparateCluster
from harness.processes import is_alive
from harness.store import MIB, descriptors, private_bytes
from harness.waiting import PATIENCE, wait_until

HERE = Path(__file__).parent
BINARY = os.environ.get("MARLINE_BINARY", "marline")
# The files that a worker has open for each executor: pipes, sockets, and one that becomes readable
# when the executor ends. An executor whose own code uses large values also has connections to the
# store.
FILES_OF_EXECUTOR, FILES_OF_EXECUTOR_WITH_STORE = 7, 9
# A worker keeps at most this many executors that are idle.
MAX_IDLE_EXECUTORS = 8


class FaultCluster(SeparateCluster):
    """A controller, workers and drivers. All their files are in one folder."""

    def __init__(self, folder: Path, lease: str, workers: int = 0, cpus: int = 2) -> None:
        self.top, self.cpus = folder, cpus
        self.run, self.temporary, self.logs = (folder / name for name in ("run", "tmp", "logs"))
        for subfolder in (self.temporary, self.logs):
            subfolder.mkdir()
        # The processes that the test killed: `check_nobody_ended` accepts their end.
        self.killed: set[int] = set()
        self.drivers: dict[str, subprocess.Popen[str]] = {}
        self.started = 0
        super().__init__(self.run, "controller", "--lease", lease)
        self.token_file = self.run / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(self.token)
        for _ in range(workers):
            self.worker("--cpus", str(cpus))

    def open(self, name: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a process. Its standard error goes to the log `NUMBER-name.err`."""
        self.started += 1
        self.environment["TMPDIR"] = str(self.temporary)
        with open(self.logs / f"{self.started}-{name}.err", "w") as errors:
            return subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**self.environment, **environment},
            )

    def start(self, *words: str) -> dict[str, Any]:
        process = self.launch(*words)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{words[0]} ended: {self.log_tails()}"
        announced: dict[str, Any] = json.loads(line)
        return announced

    def launch(self, *words: str) -> subprocess.Popen[str]:
        """Starts a `marline` process without waiting until it is ready."""
        process = self.open(words[0], BINARY, "--json", *words)
        self.processes.append(process)
        return process

    def replace(self, worker: subprocess.Popen[str]) -> None:
        """Starts a worker in place of one that was killed."""
        self.processes.remove(worker)
        self.launch("worker", "--quiet", "--python", sys.executable, "--cpus", str(self.cpus))

    def leave(self, worker: subprocess.Popen[str]) -> None:
        """Ends a worker with SIGTERM, and checks that it exits with code 0."""
        worker.terminate()
        assert worker.wait(PATIENCE) == 0, self.log_tails()
        self.processes.remove(worker)

    def driver(self, seed: int, pieces: int = 0) -> str:
        """Starts a driver that writes a ledger. Returns the driver's name."""
        name = f"driver-{len(self.drivers)}"
        self.drivers[name] = self.open(
            name,
            sys.executable,
            str(HERE / "faults_driver.py"),
            name,
            str(seed),
            str(pieces),
            str(self.logs),
            MARLINE_ADDRESS=self.address,
            MARLINE_TOKEN_FILE=str(self.token_file),
        )
        return name

    def ask(self, *words: str) -> str:
        """Runs a `marline` command over TCP, as from another machine, and returns its output."""
        command = [BINARY, "--address", self.address, "--token-file", str(self.token_file), *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def controller(self) -> subprocess.Popen[str]:
        return self.processes[0]

    @property
    def workers(self) -> list[subprocess.Popen[str]]:
        return self.processes[1:]

    def live_processes(self) -> dict[int, tuple[int, list[str]]]:
        """Returns all live processes of the cluster and its drivers: id, parent, command line."""
        mark = f"XDG_RUNTIME_DIR={self.run}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if is_alive(int(entry.name)):
                found[int(entry.name)] = parent, words
        return found

    def fork_servers(self) -> list[int]:
        workers = {worker.pid for worker in self.workers}
        return sorted(pid for pid, (parent, words) in self.forked().items() if parent in workers)

    def executors(self) -> list[int]:
        """Returns the processes that run user code, also those whose fork server was killed."""
        workers = {worker.pid for worker in self.workers}
        return sorted(pid for pid, (parent, words) in self.forked().items() if parent not in workers)

    def forked(self) -> dict[int, tuple[int, list[str]]]:
        return {
            pid: found
            for pid, found in self.live_processes().items()
            if "marline._executor.forkserver" in found[1]
        }

    def log_tails(self) -> str:
        """Returns the last 1,000 characters of every log that is not empty."""
        logs = {log.name: log.read_text(errors="replace")[-1000:] for log in sorted(self.logs.glob("*.err"))}
        return "\n".join(f"{name}: {text}" for name, text in logs.items() if text)

    def check_nobody_ended(self) -> None:
        """Checks that no process of the cluster ended except those that the test killed.

        A driver may also exit with code 0.
        """
        for process in [*self.processes, *self.drivers.values()]:
            code = process.poll()
            by_itself = process in self.processes and process.pid not in self.killed
            is_right = not code or process.pid in self.killed
            assert is_right, f"{process.args!r} ended with {code}\n{self.log_tails()}"
            assert code is None or not by_itself, f"{process.args!r} ended by itself\n{self.log_tails()}"


@contextlib.contextmanager
def cluster(folder: Path, lease: str, workers: int = 0, cpus: int = 2) -> Iterator[FaultCluster]:
    """Starts a cluster. At the end checks that no process, file or shared memory of it is left."""
    shared = shared_memory()
    started = FaultCluster(folder, lease, workers, cpus)
    try:
        yield started
    finally:
        for driver in started.drivers.values():
            if driver.poll() is None:
                driver.kill()
            driver.communicate()
        started.token_file.unlink()
        started.end()
    wait_until(
        lambda: f"every process has ended: {started.live_processes()}", lambda: not started.live_processes()
    )
    wait_until(lambda: f"no file is left: {files_in(started.run)}", lambda: not files_in(started.run))
    wait_until(
        lambda: f"no temporary file is left: {os.listdir(started.temporary)}",
        lambda: not os.listdir(started.temporary),
    )
    wait_until(
        lambda: f"no shared memory is left: {shared_memory() - shared}",
        lambda: not shared_memory() - shared,
    )


def shared_memory() -> set[str]:
    """Returns the names of the shared memory of every Marline cluster on this machine.

    Shared memory of other programs is left out.
    """
    return {name for name in os.listdir("/dev/shm") if "marline" in name}


def files_in(folder: Path) -> list[str]:
    """Returns the files and sockets in a folder and its subfolders, by relative path."""
    return sorted(str(entry.relative_to(folder)) for entry in folder.rglob("*") if not entry.is_dir())


class Nemesis:
    """Kills and freezes processes of a cluster at random, except its controller.

    `choice` decides which process, how and when.
    """

    # The faults, with the weight of each in the random choice.
    FAULTS = {  # noqa: RUF012
        ("executor", "kill"): 4,
        ("executor", "freeze"): 3,
        ("fork server", "kill"): 2,
        ("fork server", "freeze"): 2,
        ("worker", "kill"): 2,
        ("worker", "freeze"): 3,
        ("driver", "kill"): 1,
        ("driver", "freeze"): 2,
    }
    # The most processes that are frozen at a time.
    MAX_FROZEN = 3

    def __init__(self, cluster: FaultCluster, choice: random.Random, lease: float) -> None:
        self.cluster, self.choice, self.lease = cluster, choice, lease
        # By process id: when a frozen process is to go on, and when an earlier freeze was to end.
        self.frozen: dict[int, float] = {}
        self.thawed: dict[int, float] = {}
        self.drivers: list[str] = []
        # The drivers that were frozen past their lease. Their sessions may be over: their pieces
        # must end, but may fail.
        self.overslept: set[str] = set()
        self.counts: Counter[str] = Counter()

    def start_driver(self) -> None:
        self.drivers.append(self.cluster.driver(self.choice.randrange(2**32)))

    def rage(self, seconds: float) -> None:
        """Injects faults for a while. At the end lets every frozen process go on."""
        end = time.monotonic() + seconds
        try:
            while (now := time.monotonic()) < end:
                self.cluster.check_nobody_ended()
                self.hurt()
                until_next = now + self.choice.uniform(0.1, 1.2)
                while (now := time.monotonic()) < until_next:
                    self.thaw(now)
                    time.sleep(0.02)
        finally:
            self.thaw(float("inf"))

    def thaw(self, now: float) -> None:
        for pid in [pid for pid, due in self.frozen.items() if due <= now]:
            self.thawed[pid] = self.frozen.pop(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def hurt(self) -> None:
        (victim, how) = self.choice.choices(list(self.FAULTS), list(self.FAULTS.values()))[0]
        # All three are drawn even if they are not used, so that runs with one seed differ little.
        which, is_long, share = self.choice.random(), self.choice.random() < 0.4, self.choice.random()
        found = self.find(victim)
        if not found or (how == "freeze" and len(self.frozen) >= self.MAX_FROZEN):
            return
        pid = found[int(which * len(found))]
        if how == "kill":
            self.kill(victim, pid)
        elif pid not in self.frozen:
            # A driver survives a silence of four fifths of its lease, but not two such silences in
            # a row. Half of that limit is left for delays of a busy machine.
            most = 0.4 if victim == "driver" else 1.0
            if victim == "driver" and time.monotonic() < self.thawed.get(pid, 0) + self.lease:
                return
            times = 1.2 + share if is_long else share * most
            self.freeze(victim, pid, times * self.lease, is_long)

    def find(self, victim: str) -> list[int]:
        if victim == "executor":
            return self.cluster.executors()
        if victim == "fork server":
            return self.cluster.fork_servers()
        if victim == "worker":
            return [worker.pid for worker in self.cluster.workers]
        return [self.cluster.drivers[name].pid for name in self.drivers]

    def kill(self, victim: str, pid: int) -> None:
        self.counts[f"{victim} killed"] += 1
        self.cluster.killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if victim == "worker":
            worker = next(worker for worker in self.cluster.workers if worker.pid == pid)
            worker.wait(PATIENCE)
            self.cluster.replace(worker)
        elif victim == "driver":
            name = self.name_of(pid)
            self.cluster.drivers[name].wait(PATIENCE)
            self.drivers.remove(name)
            self.start_driver()

    def freeze(self, victim: str, pid: int, seconds: float, is_long: bool) -> None:
        self.counts[f"{victim} frozen {'past' if is_long else 'within'} the lease"] += 1
        if victim == "driver" and is_long:
            self.overslept.add(self.name_of(pid))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.frozen[pid] = time.monotonic() + seconds

    def name_of(self, pid: int) -> str:
        return next(name for name, driver in self.cluster.drivers.items() if driver.pid == pid)


@dataclasses.dataclass
class Ledger:
    """How the pieces of work of a driver ended, as the driver wrote it to its ledger file."""

    name: str
    submitted: dict[int, str]
    ended: dict[int, list[dict[str, Any]]]

    @classmethod
    def read(cls, cluster: FaultCluster, name: str) -> Ledger:
        ledger = cls(name, {}, {})
        file = cluster.logs / f"{name}.ledger"
        lines = file.read_text().splitlines() if file.exists() else []
        for number, text in enumerate(lines):
            try:
                line = json.loads(text)
            except ValueError:
                assert number == len(lines) - 1, f"{name}: only the last line may be cut: {text}"
                continue
            if line["event"] == "submit":
                assert line["number"] not in ledger.submitted, f"{name}: {text}"
                ledger.submitted[line["number"]] = line["kind"]
            else:
                ledger.ended.setdefault(line["number"], []).append(line)
        return ledger

    def violations(
        self,
        is_killed: bool = False,
        has_overslept: bool = False,
        may_fail: Collection[tuple[str, str]] = (),
    ) -> list[str]:
        """Returns each piece that never ended, ended twice, failed or had a wrong value.

        `may_fail` holds the kinds of work that may fail, each with its error. A killed driver may
        leave pieces that have not ended. Pieces of a driver that was frozen past its lease may
        fail, since its session is over.
        """
        found = []
        for number, kind in self.submitted.items():
            ends = self.ended.get(number, [])
            if len(ends) != 1 and not (is_killed and not ends):
                found.append(f"{self.name}: {kind} {number} ended {len(ends)} times: {ends}")
            for end in ends:
                error = end.get("error")
                is_over = has_overslept and error not in ("wrong", "GetTimeoutError")
                if error is not None and (kind, error) not in may_fail and not is_over:
                    found.append(f"{self.name}: {end}")
        return found

    def tally(self) -> Counter[str]:
        ends = (end for ends in self.ended.values() for end in ends)
        return Counter(f"{end['kind']}: {end.get('error', 'right')}" for end in ends)


def attempts_that_ran_twice(cluster: FaultCluster, name: str) -> list[str]:
    """Returns a line for each attempt that ran more than once, as `faults_driver.note` wrote it."""
    file = cluster.logs / f"{name}.ran"
    lines = file.read_text().splitlines() if file.exists() else []
    return [f"{name} ran twice: {line}" for line, count in Counter(lines).items() if count > 1]


@dataclasses.dataclass
class ResourceUsage:
    """The resources of the system that an idle cluster uses."""

    processes: dict[str, int]
    files: Counter[str]
    # Open files except those for executors. For a worker, a lower bound: each executor counts with
    # the most files that it may have.
    descriptors: dict[str, int]
    # For a worker, an upper bound on the same files: each executor counts with the fewest files.
    most_of_worker: int
    memory: dict[str, int]
    shared_memory: set[str]
    packages: int
    # The names of the open files of each process, for the message of a failing test.
    details: dict[int, dict[str, int]]

    # How many bytes of memory a process may grow by for good. The controller remembers the latest
    # tasks that have ended. Controller and worker keep the code of functions. An allocator gives
    # back less than it got.
    ALLOWANCE = 24 * MIB

    @classmethod
    def of(cls, cluster: FaultCluster) -> ResourceUsage:
        family, executors, servers = cluster.live_processes(), cluster.executors(), cluster.fork_servers()
        # The executors of each worker. Those whose fork server was killed may belong to any worker:
        # key 0.
        under: Counter[int] = Counter()
        # The connections of executors to each port, which come and go with the executors.
        calls: Counter[int] = Counter()
        for pid in executors:
            server = family.get(pid, (0, []))[0]
            under[family[server][0] if server in servers and server in family else 0] += 1
            calls += connections(pid)
        files = {}
        for process in cluster.processes:
            ports = [
                int(address.rsplit(":")[-1])
                for address in listening(process.pid, cluster.run)
                if "/" not in address
            ]
            files[process.pid] = descriptors(process.pid) - sum(calls[port] for port in ports)
        forks = {worker.pid: under[worker.pid] + under[0] for worker in cluster.workers}
        return cls(
            processes={
                "workers": len(cluster.workers),
                "fork servers": len(servers),
                # Each worker may keep idle ones.
                "executors": max(len(executors), MAX_IDLE_EXECUTORS * len(cluster.workers)),
                "others": len(family) - len(cluster.workers) - len(servers) - len(executors),
            },
            files=Counter(Path(name).suffix or name for name in files_in(cluster.run)),
            descriptors={
                "controller": files[cluster.controller.pid],
                "worker": max(
                    files[pid] - FILES_OF_EXECUTOR_WITH_STORE * count for pid, count in forks.items()
                ),
            },
            most_of_worker=max(files[pid] - FILES_OF_EXECUTOR * count for pid, count in forks.items()),
            memory={
                "controller": private_bytes(cluster.controller.pid),
                "worker": max(private_bytes(worker.pid) for worker in cluster.workers),
            },
            shared_memory=shared_memory(),
            packages=len(unused_packages(cluster)),
            details={process.pid: kinds_of_files(process.pid) for process in cluster.processes},
        )

    def excess(self, base: ResourceUsage) -> list[str]:
        """Returns a line for each resource of which this cluster uses more than in `base`."""
        found = []
        for what, now, before, more in (
            ("processes", self.processes, base.processes, 0),
            ("files", self.files, base.files, 0),
            ("open files", self.descriptors, {**base.descriptors, "worker": base.most_of_worker}, 0),
            ("memory", self.memory, base.memory, self.ALLOWANCE),
        ):
            for name, count in now.items():
                if count > before.get(name, 0) + more:
                    found.append(f"{what}: {name} {count}, not {before.get(name, 0)}")
        if self.shared_memory - base.shared_memory:
            found.append(f"shared memory: {self.shared_memory - base.shared_memory}")
        if found:
            found.append(f"open files: {self.details}, not {base.details}")
        if self.packages:
            found.append(f"{self.packages} folders of packages that no process uses")
        return found


def unused_packages(cluster: FaultCluster) -> list[Path]:
    """Returns the folders of unpacked packages that no live process has locked."""
    found = []
    for folder in cluster.temporary.glob("marline-packages-*"):
        with contextlib.suppress(FileNotFoundError), open(folder / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            found.append(folder)
    return found


def connections(pid: int) -> Counter[int]:
    """Returns how many TCP connections a process has to each port."""
    sockets = sockets_of(pid)
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = [words for words in lines if f"socket:[{words[9]}]" in sockets]
    return Counter(int(words[2].split(":")[1], 16) for words in mine)


def kinds_of_files(pid: int) -> dict[str, int]:
    """Counts the open files of a process by name, digits left out."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(entry))
    return dict(Counter("".join(letter for letter in link if not letter.isdigit())[-40:] for link in links))


def sockets_of(pid: int) -> set[str]:
    """Returns the link targets of the descriptors of a process.

    The target of a socket is `socket:[INODE]`.
    """
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(entry))
    return found


def listening(pid: int, folder: Path) -> list[str]:
    """Returns the addresses at which a process listens: HOST:PORT or unix:/path.

    The process has its Unix sockets in `folder`.
    """
    sockets = sockets_of(pid)
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            host, port = words[1].split(":")
            address = socket.inet_ntoa(bytes.fromhex(host)[::-1])
            found.append(f"{address}:{int(port, 16)}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & 0x10000 and len(words) > 7 and f"socket:[{words[6]}]" in sockets:
            # A path too long for a socket address is bound through /proc/self/fd/N: only its name
            # is known.
            found += [f"unix:{path}" for path in folder.rglob(Path(words[7]).name)]
    return sorted(found)


# The first bytes that unauthenticated clients send: nothing, one byte, the start of a handshake,
# garbage, or the preface of HTTP/2, whole or cut.
WORDS = [
    b"",
    b"M",
    b"P",
    b"\0",
    b"MRLN\x02\x01" + bytes(16),
    b"MRLN\x02\x02" + bytes(32),
    b"MRLN\x02\x05" + bytes(32),
    random.Random(0).randbytes(4096),
    b"PRI * HTTP/2.0",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"DATA\0\0\x10\0",
]


class UnauthenticatedClients:
    """Keeps `count` connections without a token open to each address.

    Replaces connections that the other side has closed.
    """

    def __init__(self, addresses: list[str], count: int) -> None:
        self.addresses, self.count = addresses, count
        self.selector = selectors.DefaultSelector()
        # By address: connections that are open, that were made, and that the other side closed.
        self.here: Counter[str] = Counter()
        self.came: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.stay)

    def __enter__(self) -> UnauthenticatedClients:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def stay(self) -> None:
        try:
            while not self.over.is_set():
                for address in self.addresses:
                    while self.here[address] < self.count and self.connect(address):
                        pass
                # Closed connections are replaced a few times a second, not at once. A process that
                # joins has the same user as these clients, so both compete for the places of that
                # user.
                end = time.monotonic() + 0.25
                while (left := end - time.monotonic()) > 0 and not self.over.is_set():
                    for key, _ in self.selector.select(min(left, 0.05)):
                        self.hear(key)
        finally:
            for key in list(self.selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
            self.selector.close()

    def connect(self, address: str) -> bool:
        """Makes one more connection. Returns whether the listener had room for it."""
        if address.startswith("unix:"):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            path = Path(address.removeprefix("unix:"))
            # The path may be too long for a socket address.
            folder = os.open(path.parent, os.O_PATH)
            code = client.connect_ex(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
        else:
            host, port = address.rsplit(":", 1)
            client = socket.socket()
            client.setblocking(False)
            code = client.connect_ex((host, int(port)))
        if code not in (0, errno.EINPROGRESS):
            client.close()
            return False
        with contextlib.suppress(OSError):
            client.send(WORDS[self.came[address] % len(WORDS)])
        self.came[address] += 1
        self.here[address] += 1
        self.selector.register(client, selectors.EVENT_READ, address)
        return True

    def hear(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)
        try:
            goes_on = key.fileobj.recv(65536) != b""
        except BlockingIOError:
            return
        except OSError:
            goes_on = False
        if not goes_on:
            self.selector.unregister(key.fileobj)
            key.fileobj.close()
            self.here[key.data] -= 1
            self.closed[key.data] += 1
