"""A flight made by hand: sources as odd as a test wants them, run in this process, what came of it read back."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp
from rasterio.transform import Affine

from flights.pipeline import Tools
from flights.report import FlightReport, Stats, TileOutcome, TileState
from flights.runs import CompositeRule
from tests.inprocess import run_flight
from tests.processes import strict_json
from tests.synthetic import EPSG, manifest, oracle_ndvi, place

Bands = dict[str, NDArray[Any]]
Float64 = NDArray[np.float64]

SIDE = 32
RED, NIR = 800, 3200
FIELD = (NIR - RED) / (NIR + RED)  # 0.6
SOIL_RED, SOIL_NIR = 2000, 1000
SOIL = (SOIL_NIR - SOIL_RED) / (SOIL_NIR + SOIL_RED)  # -1/3
# float32 keeps seven digits.
TOLERANCE = 1e-6


def flat(
    red: float = RED, nir: float = NIR, shape: tuple[int, int] = (SIDE, SIDE), dtype: str = "uint16", **more: float
) -> Bands:
    """Blue, green, red and NIR, each of one value; blue and green are unlike red."""
    filler = {"blue": red / 4, "green": red / 2}
    values = {**filler, "red": red, "nir": nir, **more}
    return {name: np.full(shape, value, dtype=np.float64).astype(dtype) for name, value in values.items()}


def reflectance(red: float = 0.08, nir: float = 0.32, shape: tuple[int, int] = (SIDE, SIDE)) -> Bands:
    """The same field in float32."""
    return flat(red, nir, shape, "float32")


def put(bands: Bands, pixels: Mapping[tuple[int, int], tuple[float, float]]) -> Bands:
    """Set (red, NIR) of single pixels, in place."""
    for at, (red, nir) in pixels.items():
        bands["red"][at], bands["nir"][at] = red, nir
    return bands


def expected(bands: Bands, hidden: NDArray[np.bool_] | None = None, **how: Any) -> Float64:
    """NDVI of these bands in float64, NaN where something hides the pixel."""
    values = oracle_ndvi(bands["red"], bands["nir"], **how)
    if hidden is not None:
        values[hidden] = np.nan
    return values


def box(rows: slice, cols: slice, shape: tuple[int, int] = (SIDE, SIDE)) -> NDArray[np.bool_]:
    """True within a rectangle."""
    inside = np.zeros(shape, dtype=bool)
    inside[rows, cols] = True
    return inside


def write_source(
    path: Path,
    bands: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]],
    *,
    transform: Affine | None = None,
    placed: bool = True,
    crs: Any = f"EPSG:{EPSG}",
    nodata: float | None = None,
    colours: Sequence[ColorInterp] | None = None,
    descriptions: Sequence[str] | None = None,
    scales: Sequence[float] | None = None,
    offsets: Sequence[float] | None = None,
    shown: NDArray[np.bool_] | None = None,
    mask_inside: bool = True,
    tags: Mapping[str, str] | None = None,
    band_tags: Mapping[int, Mapping[str, str]] | None = None,
    **options: Any,
) -> Path:
    """A raster with whatever a file can say of its pixels; `shown` becomes a mask, in the file or beside it."""
    stack = np.stack(list(bands.values()) if isinstance(bands, Mapping) else list(bands))
    count, height, width = stack.shape
    profile: dict[str, Any] = {"driver": "GTiff", "count": count, "height": height, "width": width, "crs": crs}
    profile |= {"dtype": stack.dtype.name, "nodata": nodata} | options
    if placed:
        profile["transform"] = transform or place()
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=mask_inside), rasterio.open(path, "w", **profile) as out:
        if colours:
            out.colorinterp = colours
        out.write(stack)
        for name, said in (("descriptions", descriptions), ("scales", scales), ("offsets", offsets)):
            if said:
                setattr(out, name, tuple(said))
        if tags:
            out.update_tags(**tags)
        for index, words in (band_tags or {}).items():
            out.update_tags(index, **words)
        if shown is not None:
            out.write_mask(shown)
    return path


def retag_nodata(path: Path, before: str, after: str) -> None:
    """Spell a file's nodata tag otherwise, in place: what GDAL would not write, but others do."""
    content = path.read_bytes()
    old, new = before.encode() + b"\0", after.encode() + b"\0"
    assert content.count(old) == 1
    assert len(new) <= len(old)
    path.write_bytes(content.replace(old, new.ljust(len(old), b"\0")))


def write_aux(path: Path, bands: Mapping[int, Mapping[str, Any]]) -> None:
    """GDAL's metadata beside a raster: elements by band, such as NoDataValue, Scale, Offset."""
    inner = "".join(
        f'<PAMRasterBand band="{index}">' + "".join(f"<{k}>{v}</{k}>" for k, v in said.items()) + "</PAMRasterBand>"
        for index, said in bands.items()
    )
    Path(f"{path}.aux.xml").write_text(f"<PAMDataset>{inner}</PAMDataset>")


@dataclass(frozen=True, slots=True)
class Raster:
    """A product as a reader finds it; NaN where there is no data."""

    values: Float64
    transform: Affine
    crs: Any
    bounds: tuple[float, float, float, float]

    @property
    def valid(self) -> int:
        return int(np.isfinite(self.values).sum())

    def at(self, x: float, y: float) -> float:
        """The pixel that holds a point, NaN outside the raster."""
        col, row = ~self.transform * (x, y)
        row, col = math.floor(row), math.floor(col)
        height, width = self.values.shape
        return float(self.values[row, col]) if 0 <= row < height and 0 <= col < width else math.nan


def read_raster(path: Path | str) -> Raster:
    """A product; it is float32, its nodata NaN, and its mask says the same as its pixels."""
    with rasterio.open(path) as product:
        assert (product.count, product.dtypes[0]) == (1, "float32")
        assert math.isnan(product.nodata)
        values = product.read(1).astype(np.float64)
        np.testing.assert_array_equal(product.read_masks(1) > 0, np.isfinite(values))
        return Raster(values, product.transform, product.crs, tuple(product.bounds))


class Result:
    """What came of a flight."""

    def __init__(self, report: FlightReport) -> None:
        self.report = report

    def outcome(self, tile_id: str) -> TileOutcome:
        (found,) = [o for o in self.report.outcomes if o.tile_id == tile_id]
        return found

    def tile(self, tile_id: str) -> Raster:
        """The product of a tile that was made."""
        outcome = self.outcome(tile_id)
        assert outcome.state in (TileState.DONE, TileState.REVIEW), outcome.error
        return read_raster(outcome.dst_uri)

    @property
    def mosaic(self) -> Raster:
        """The composite, whose statistics are those of its pixels."""
        assert self.report.mosaic, self.report.mosaic_error or self.report.status
        found = read_raster(self.report.mosaic.uri)
        assert_stats(self.report.mosaic.stats, found.values)
        return found

    def assert_tile(self, tile_id: str, wanted: Float64, tolerance: float = TOLERANCE) -> None:
        """A tile's pixels and its statistics are these."""
        found = self.tile(tile_id)
        np.testing.assert_allclose(found.values, wanted, rtol=0, atol=tolerance, equal_nan=True)
        assert_stats(self.outcome(tile_id).stats, wanted, tolerance)

    def refusal(self, tile_id: str, *words: str) -> str:
        """Why a tile has no product: at once, for good, in words that help, and with nothing left at its place."""
        outcome = self.outcome(tile_id)
        assert outcome.state is TileState.FAILED, outcome
        assert outcome.error
        assert (outcome.error.transient, outcome.attempts) == (False, 1)
        assert not Path(outcome.dst_uri).exists()
        message = outcome.error.message
        assert outcome.error.code != "internal", message
        for word in words:
            assert word.lower() in message.lower(), message
        assert "None" not in message
        return message

    def mosaic_refusal(self, *words: str) -> str:
        """Why there is no composite."""
        assert self.report.mosaic is None
        assert self.report.mosaic_error, self.report.status
        assert not self.report.mosaic_error.transient
        message = self.report.mosaic_error.message
        for word in words:
            assert word.lower() in message.lower(), message
        return message


def assert_stats(stats: Stats | None, values: Float64, tolerance: float = TOLERANCE) -> None:
    """Statistics are those of the valid pixels among `values`, null where there are none."""
    valid = values[np.isfinite(values)]
    assert stats
    assert (stats.pixels, stats.count) == (values.size, valid.size)
    found = (stats.min, stats.max, stats.mean, stats.std)
    if valid.size:
        np.testing.assert_allclose(
            np.array(found, dtype=np.float64), (valid.min(), valid.max(), valid.mean(), valid.std()), atol=tolerance
        )
    else:
        assert found == (None, None, None, None)


@dataclass
class Scene:
    """A folder with sources and, in time, a flight."""

    folder: Path
    tiles: list[dict[str, Any]] = field(default_factory=list)

    def tile(self, tile_id: str, src_uri: Any, **more: Any) -> None:
        """A tile of the manifest."""
        self.tiles.append({"tile_id": tile_id, "src_uri": src_uri, **more})

    def add(
        self,
        tile_id: str,
        bands: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]],
        says: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Path:
        """Write a source and name it in the manifest; `says` are further keys of the tile."""
        path = write_source(self.folder / "src" / f"{tile_id}.tif", bands, **how)
        self.tile(tile_id, f"src/{tile_id}.tif", **(says or {}))
        return path

    def run(self, tools: Tools | None = None, composite: CompositeRule = "complete", **more: Any) -> Result:
        """Run the flight. Its sources stay as they are, its folder clean, its report strict JSON."""
        before = _contents(self.folder / "src")
        more = {"out_uri": "out", **more}
        body = manifest(more.pop("flight_id", "F"), self.tiles, **more)
        report = run_flight(body, self.folder, tools, composite)
        assert _contents(self.folder / "src") == before
        assert [p for p in self.folder.rglob(".*") if p.is_file()] == []
        published = self.folder / "out" / f"{report.flight_id}.report.json"
        if published.exists():
            assert strict_json(published.read_text()) == report.model_dump(mode="json")
        return Result(report)


def _contents(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def one(folder: Path, bands: Bands, says: Mapping[str, Any] | None = None, **how: Any) -> Result:
    """A flight of one tile, `t`, without a composite."""
    scene = Scene(folder)
    scene.add("t", bands, says, **how)
    return scene.run(composite="never")
