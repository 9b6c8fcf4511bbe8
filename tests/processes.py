"""The product as real processes: commands run, flights on disk for them to work on, and what is left running.

Looking for processes reads /proc, so it is Linux only.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import rasterio
from numpy.typing import NDArray

from tests.synthetic import field, manifest, oracle_ndvi, place, write_tif

PROJECT = Path(__file__).resolve().parent.parent
HEIGHT, WIDTH = 64, 96
# Every wait of a test ends: a hang fails, and slowness does not.
COMMAND_S = 150.0
T = TypeVar("T")


# ---------------------------------------------------------------- commands


def environment(state: Path, **more: str) -> dict[str, str]:
    """An environment with no setting and no credential of this machine, for what outlives one test."""
    ours = ("FLIGHTS_", "CELERY_", "AWS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"FLIGHTS_STATE_DIR": str(state), "AWS_EC2_METADATA_DISABLED": "true"} | more


def command(*arguments: str | Path, project: Path = PROJECT) -> list[str]:
    """The command line that runs `run_batch.py` of a checkout."""
    return [sys.executable, str(project / "run_batch.py"), *map(str, arguments)]


def run_batch(
    *arguments: str | Path, env: Mapping[str, str] | None = None, project: Path = PROJECT
) -> subprocess.CompletedProcess[str]:
    """`run_batch.py` to its end, its output piped."""
    done = subprocess.run(
        command(*arguments, project=project),
        cwd=project,
        env=dict(os.environ if env is None else env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def start_batch(*arguments: str | Path) -> subprocess.Popen[str]:
    """`run_batch.py`, under way."""
    return subprocess.Popen(
        command(*arguments),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def strict_json(text: str) -> Any:
    """A JSON value; NaN and Infinity are none."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def json_lines(text: str) -> list[Any]:
    """The values of strict JSON lines; every line is one."""
    return [strict_json(line) for line in text.splitlines()]


def await_(what: str, look: Callable[[], T], within_s: float = 60) -> T:
    """The first answer of `look` that is true, within a generous time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {what}")


def closed_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------- flights


@dataclass(frozen=True, slots=True)
class Made:
    """A flight on disk and what its tiles must become."""

    manifest: Path
    expected: dict[str, NDArray[np.float64]]

    def product(self, tile_id: str) -> Path:
        """Where a tile's product goes by default."""
        return self.manifest.parent / "out" / "tiles" / f"{tile_id}.ndvi.tif"

    @property
    def products(self) -> list[Path]:
        """What lies in the folder of products, hidden names too."""
        folder = self.manifest.parent / "out" / "tiles"
        return sorted(folder.iterdir()) if folder.is_dir() else []


def write_tile(path: Path, seed: int, col: int = 0) -> NDArray[np.float64]:
    """A small four-band tile, so many columns east; its NDVI."""
    bands = field(HEIGHT, WIDTH, seed)
    write_tif(path, bands, transform=place(col))
    return oracle_ndvi(bands["red"], bands["nir"])


def make_flight(folder: Path, flight_id: str, tile_ids: Sequence[str], **more: Any) -> Made:
    """A flight of small tiles side by side, with relative paths, in a folder of its own."""
    expected = {
        tile_id: write_tile(folder / "src" / f"{tile_id}.tif", zlib.crc32(f"{flight_id} {tile_id}".encode()), i * WIDTH)
        for i, tile_id in enumerate(tile_ids)
    }
    return Made(write_manifest(folder, flight_id, tile_ids, **more), expected)


def write_manifest(folder: Path, flight_id: str, tile_ids: Sequence[str], **more: Any) -> Path:
    """A manifest of the tiles `src/{tile_id}.tif`."""
    folder.mkdir(parents=True, exist_ok=True)
    body = manifest(flight_id, [{"tile_id": t, "src_uri": f"src/{t}.tif"} for t in tile_ids], out_uri="out", **more)
    path = folder / f"{flight_id}.json"
    path.write_text(json.dumps(body))
    return path


def pixels(path: Path | str) -> NDArray[np.float32]:
    """The pixels of a product."""
    with rasterio.open(path) as product:
        values: NDArray[np.float32] = product.read(1)
        return values


def assert_pixels(path: Path | str, expected: NDArray[np.float64]) -> None:
    """The pixels of a product are the oracle's."""
    found = pixels(path)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, equal_nan=True)


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file and folder below one: when it was changed, what it holds."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }


def hidden(folder: Path) -> list[Path]:
    """Names below a folder that begin with a dot: temporary files that somebody left behind."""
    return list(folder.rglob(".*"))


# ---------------------------------------------------------------- what is running


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    parent: int
    command: str

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def processes_of(folder: Path) -> list[Process]:
    """The processes that work in a folder: it is in their environment, in their command line or above their cwd."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            line = (entry / "cmdline").read_bytes()
            # The server overwrites its environment with its title, so its working folder gives it away.
            traces = (entry / "environ").read_bytes() + line + os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            continue
        if state != "Z" and os.fsencode(folder) in traces and int(entry.name) != os.getpid():
            found.append(Process(int(entry.name), int(parent), line.replace(b"\0", b" ").decode(errors="replace")))
    return found


def supervisors(folder: Path) -> list[Process]:
    """The supervisors of embedded fleets in a state folder; a fork that is yet to run its own program is none."""
    mine = [p for p in processes_of(folder) if "flights.embedded" in p.command]
    return [p for p in mine if p.parent not in {other.pid for other in mine}]


def worker(folder: Path) -> Process:
    """The embedded worker, parent of the pool."""
    mine = [p for p in processes_of(folder) if "celery" in p.command]
    (found,) = [p for p in mine if p.parent not in {other.pid for other in mine}]
    return found


def pool(folder: Path) -> list[Process]:
    """The processes of the embedded worker in which tiles are made."""
    return [p for p in processes_of(folder) if p.parent == worker(folder).pid]


def server(folder: Path) -> Process:
    """The embedded server."""
    (found,) = [p for p in processes_of(folder) if "valkey-server" in p.command or "redis-server" in p.command]
    return found


def broker_url(folder: Path) -> str:
    """The URL of the embedded server, from the note of its supervisor."""
    (note,) = folder.glob("embedded/*/supervisor.json")
    return str(json.loads(note.read_text())["broker_url"])


def await_nobody(folder: Path) -> None:
    """Wait until no process works in a folder."""
    try:
        await_("no process left", lambda: not processes_of(folder), 45)
    except AssertionError:
        raise AssertionError(f"still running: {processes_of(folder)}") from None
