"""What the work is done with, and how it is gone about."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tenacity

from flights.errors import Code, Transient, of_os_error
from flights.ledger import Ledger
from flights.quality import Limits
from flights.settings import Settings
from flights.store import Stores

T = TypeVar("T")
U = TypeVar("U")

# Scratch is a host's own; the name tells whose process a folder is, so that what a killed one left can be told.
_OWNER = f"work-{socket.gethostname()}-"


@dataclass(frozen=True, slots=True)
class Tools:
    """What the work is done with; made per process, after any fork."""

    settings: Settings
    stores: Stores
    ledger: Ledger

    @property
    def limits(self) -> Limits:
        """What products are judged by."""
        return limits_of(self.settings)


def limits_of(settings: Settings) -> Limits:
    """What products are judged by."""
    return Limits(settings.review_implausible_fraction, settings.review_saturated_fraction)


def retried(work: Callable[[], T], attempts: int) -> T:
    """Run `work` again while its errors are transient, with capped exponential back-off and full jitter."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=8),
        stop=tenacity.stop_after_attempt(attempts),
        reraise=True,
    )
    return retrying(work)


def together(one: Callable[[], T], other: Callable[[], U], *, in_turn: bool) -> tuple[T, U]:
    """What two questions to storage give, asked at once unless a thread costs more; the first one's error counts."""
    if in_turn:
        return one(), other()
    with ThreadPoolExecutor(1, thread_name_prefix="ask") as pool:
        asked = pool.submit(other)
        first = one()
        return first, asked.result()


def free_scratch_bytes(settings: Settings) -> int:
    """Free space where sources are mirrored and products are made."""
    folder = settings.scratch
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def has_room(settings: Settings) -> bool:
    """Whether this host may take a tile."""
    return free_scratch_bytes(settings) >= settings.min_free_bytes


@contextmanager
def scratch_folder(settings: Settings) -> Iterator[Path]:
    """A folder of one's own for one piece of work, gone afterwards."""
    try:
        settings.scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{_OWNER}{os.getpid()}-", dir=settings.scratch))
    except OSError as error:
        raise of_os_error(error, str(settings.scratch), Code.DISK_FULL) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_scratch(settings: Settings) -> None:
    """Remove what processes of this host left on scratch that are no more."""
    for folder in settings.scratch.glob(f"{_OWNER}*"):
        pid = folder.name.removeprefix(_OWNER).split("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:  # killed, and nobody has asked how it ended: where an orphan's new parent is slow
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return True
