"""What makes two tile products the same: what was read, what was asked for, and how it is computed.

Output bytes are no identity: they differ between GDAL builds. Two products with equal fingerprints hold equal pixels.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache

from flights.manifest import Flight, Tile
from flights.sensors import find_profile

# Raised whenever the pixels of a product change for the same source and the same declarations (see CHANGELOG.md).
ALGORITHM = 1
# What a sensor profile only tells people.
_WORDS = ("title", "source", "notes")


def tile_fingerprint(flight: Flight, tile: Tile, source: Mapping[str, str]) -> str:
    """The fingerprint of a tile's product.

    `source` is the identity of every file that is read, by role and sidecar (S3: ETag and size; local: path, size
    and mtime_ns). The sensor profile enters with its numbers, so a corrected profile makes its products stale.
    """
    declared = flight.radiometry(tile)
    return _digest(
        {
            "algorithm": ALGORITHM,
            "source": source,
            "index": flight.index,
            "epsg": tile.epsg,
            "declared": declared.model_dump(mode="json"),
            "profile": _numbers_of(declared.sensor) if declared.sensor else None,
        }
        | ({} if flight.dtype == "float32" else {"dtype": flight.dtype})
    )


@cache
def _numbers_of(sensor: str) -> dict[str, object]:
    return {k: v for k, v in asdict(find_profile(sensor)).items() if k not in _WORDS}


def mosaic_fingerprint(flight: Flight, tiles: Mapping[str, str], complete: bool) -> str:
    """The fingerprint of a flight's mosaic: its tiles' fingerprints, in the order in which they are laid."""
    return _digest({"algorithm": ALGORITHM, "index": flight.index, "tiles": list(tiles.items()), "complete": complete})


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
