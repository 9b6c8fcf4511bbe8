"""Making tiles from a storage that goes wrong, in this process, and saying what came of it."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.io import MemoryFile

from flights.intake import load_flight
from flights.manifest import Tile
from flights.pipeline import Tools, write_tile
from flights.report import TileOutcome, TileState
from flights.runs import Job, Run, record_uri, save_run
from flights.store import open_stores
from tests.faults.proxy import Control
from tests.inprocess import tools_for
from tests.synthetic import field, manifest, oracle_ndvi, write_tif

SOURCE, PRODUCT = "t.tif", "F/t.tif"
SHAPE = (32, 48)


@dataclass(frozen=True)
class Bench:
    """A storage behind a proxy, and room for a run."""

    server: Any
    # a boto3 client that goes around the proxy
    proxy: Control
    folder: Path

    def source(self, seed: int = 1, **options: Any) -> tuple[bytes, NDArray[np.float64]]:
        """A two-band source (red, NIR) and the NDVI that it makes; `options` are GDAL's."""
        bands = {role: values for role, values in field(*SHAPE, seed=seed).items() if role in ("red", "nir")}
        path = write_tif(self.folder / f"{seed}.tif", bands, **options)
        return path.read_bytes(), oracle_ndvi(bands["red"], bands["nir"])

    def put_source(self, seed: int = 1, **options: Any) -> NDArray[np.float64]:
        """Put such a source, and give the NDVI that it makes."""
        content, wanted = self.source(seed, **options)
        self.server.put_object(Bucket="raw", Key=SOURCE, Body=content)
        return wanted

    def tools(self, **settings: Any) -> Tools:
        return tools_for(self.folder / "state", **settings)

    def job(self) -> tuple[Job, Tile]:
        """A run of a flight of one tile."""
        tiles = [{"tile_id": "t", "src_uri": f"s3://raw/{SOURCE}", "dst_uri": f"s3://ndvi/{PRODUCT}"}]
        path = self.folder / "manifest.json"
        path.write_text(json.dumps(manifest("F", tiles, bands={"red": 1, "nir": 2}, out_uri="s3://ndvi/F")))
        flight = load_flight(open_stores(), str(path))
        records = record_uri(str(self.folder / "state" / "runs"), "F")
        run = Run(run_id="run-1", flight_id="F", record_uri=records, started=datetime.now(UTC))
        save_run(open_stores(), run, flight)
        return Job(run=run, flight=flight), flight.tiles[0]

    def make(self, tools: Tools | None = None) -> TileOutcome:
        """Make the tile, as a worker does."""
        return write_tile(*self.job(), tools or self.tools())

    def pixels(self) -> NDArray[np.float64] | None:
        """The pixels at the destination, as the server gives them without the proxy; None where nothing lies there."""
        try:
            content = self.server.get_object(Bucket="ndvi", Key=PRODUCT)["Body"].read()
        except self.server.exceptions.NoSuchKey:
            return None
        with MemoryFile(content) as memory, memory.open() as product:
            return np.asarray(product.read(1), np.float64)

    def clear(self) -> None:
        """Take the product away."""
        self.server.delete_object(Bucket="ndvi", Key=PRODUCT)

    def unfinished(self) -> int:
        """Uploads that were begun and neither completed nor aborted."""
        return len(self.server.list_multipart_uploads(Bucket="ndvi").get("Uploads", ()))

    def puts(self) -> int:
        """How many products the server took in, each by a PUT or by completing an upload."""
        taken = [p for p in self.proxy.passed() if p.upstream == 200 and p.target.startswith("/ndvi/F/")]
        uploads = {p.target for p in taken if p.method == "POST" and "uploadId=" in p.target}
        return len(uploads) + sum(p.method == "PUT" and "?" not in p.target for p in taken)


def is_made(outcome: TileOutcome) -> bool:
    """Whether a tile ended with a product; `review` is a product too."""
    return outcome.state in (TileState.DONE, TileState.REVIEW)


def is_same(pixels: NDArray[np.float64] | None, wanted: NDArray[np.float64]) -> bool:
    """Whether pixels are the oracle's."""
    return pixels is not None and pixels.shape == wanted.shape and np.allclose(pixels, wanted, 0, 1e-6, equal_nan=True)
