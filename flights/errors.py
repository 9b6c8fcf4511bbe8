"""What goes wrong, split by what the caller should do about it.

    FlightsError
    ├── Refused               the input is wrong: trying again cannot help, a person must change something
    │   ├── ManifestRefused   a whole flight, before any work
    │   └── Superseded        a newer run has taken over: stop, and leave no trace
    └── Transient             trying again may help
        ├── SourceChanged     the source was replaced while it was read: start the tile over
        ├── PublishConflict   somebody else published at the destination meanwhile: look again
        └── Unreachable       broker or storage does not answer

Every error carries a `code` (stable, for programs) and a message (for people) that names the thing, what was found,
and what settles it.
"""

import errno
from enum import StrEnum


class Code(StrEnum):
    """Stable names of what can go wrong; reports carry them."""

    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_NOT_JSON = "manifest_not_json"
    MANIFEST_INVALID = "manifest_invalid"
    TILE_CLASH = "tile_clash"
    SOURCE_MISSING = "source_missing"
    SOURCE_FORBIDDEN = "source_forbidden"
    SOURCE_NOT_RASTER = "source_not_raster"
    SOURCE_CORRUPT = "source_corrupt"
    SOURCE_CHANGED = "source_changed"
    SOURCE_TOO_LARGE = "source_too_large"
    CRS_MISSING = "crs_missing"
    CRS_MISMATCH = "crs_mismatch"
    GEOREF_MISSING = "georef_missing"
    GRID_MISMATCH = "grid_mismatch"
    BAND_MISSING = "band_missing"
    BAND_CONTRADICTION = "band_contradiction"
    SCALE_UNKNOWN = "scale_unknown"
    DTYPE_UNSUPPORTED = "dtype_unsupported"
    DESTINATION_REFUSED = "destination_refused"
    PUBLISH_CONFLICT = "publish_conflict"
    PRODUCT_INVALID = "product_invalid"
    MOSAIC_REFUSED = "mosaic_refused"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    BROKER_UNAVAILABLE = "broker_unavailable"
    SETTINGS_INVALID = "settings_invalid"
    DISK_FULL = "disk_full"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    CALIBRATION_CONTRADICTION = "calibration_contradiction"
    SUPERSEDED = "superseded"
    ALREADY_RUNNING = "already_running"
    WORKER_LOST = "worker_lost"
    MISSING = "missing"
    INTERNAL = "internal"


class FlightsError(Exception):
    """Anything this package raises on purpose."""

    transient = False

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Refused(FlightsError):
    """The input is wrong; the message says what was found, what was expected and how to settle it."""


class ManifestRefused(Refused):
    """A flight that may not start; no work has been done for it."""

    def __init__(self, code: Code, message: str, flight_id: str = "") -> None:
        super().__init__(code, message)
        self.flight_id = flight_id


class Superseded(Refused):
    """A newer run has taken the flight over: what this one still has to say or to publish counts no more."""

    def __init__(self, flight_id: str, run_id: str) -> None:
        super().__init__(Code.SUPERSEDED, f"run {run_id} of flight {flight_id} has been superseded by a newer one")


class Transient(FlightsError):
    """The same call may succeed a little later."""

    transient = True


class SourceChanged(Transient):
    """The source is no longer the one that was looked at first."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.SOURCE_CHANGED, message)


class PublishConflict(Transient):
    """The destination is no longer what it was when the work began."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.PUBLISH_CONFLICT, message)


class Unreachable(Transient):
    """Broker or storage gave no answer, after every retry."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.EAGAIN)


def of_os_error(error: OSError, name: str, otherwise: Code) -> FlightsError:
    """The operating system's error as ours: a full disk and passing faults are Transient, the rest Refused."""
    if error.errno in _FULL:
        return Transient(Code.DISK_FULL, f"{name}: no space left on its disk")
    if error.errno in _PASSING:
        return Transient(Code.STORAGE_UNAVAILABLE, f"{name}: {error.strerror}")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return Refused(otherwise, f"{name}: a file lies where a folder of its path is needed")
    if error.errno == errno.ENOENT and otherwise is Code.DESTINATION_REFUSED:
        return Refused(otherwise, f"{name}: no folder can be made there")
    return Refused(otherwise, f"{name}: {error.strerror or error}")
