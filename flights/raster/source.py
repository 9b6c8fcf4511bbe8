"""Reading a tile: its header checked before anything is allocated, its bands read window by window."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import MaskFlags
from rasterio.errors import RasterioError, RasterioIOError
from rasterio.transform import Affine

from flights import crs
from flights.bands import BandFacts, choose_bands
from flights.errors import Code, Refused
from flights.manifest import Radiometry
from flights.radiometry import Calibration, both_zero, calibration
from flights.raster.environment import Grid, gdal
from flights.sensors import SensorProfile
from flights.windows import Window, strips

# What is opened at all, by its first bytes: no VRT (it follows other files), nothing that reaches the network.
DRIVERS = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",  # BigTIFF
    b"MM\0+": "GTiff",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JP2OpenJPEG",
}
# Pixels, then float64 per band and for the arithmetic between: an upper bound of what one pixel costs while it is
# worked on with two bands.
WORKING_BYTES_PER_PIXEL = 64


@dataclass(frozen=True, slots=True)
class _Band:
    dataset: Any
    index: int
    calibration: Calibration
    has_mask: bool
    # an internal mask or a .msk beside it
    alpha: int | None


@dataclass(frozen=True, slots=True)
class Strip:
    """One window of a tile's source."""

    bands: dict[str, NDArray[np.float64]]
    # reflectance by role, each (rows, cols)
    valid: NDArray[np.bool_]
    # every band in use holds a measurement there


class TileSource:
    """An open source: the bands in use and how to read them."""

    def __init__(self, grid: Grid, bands: Mapping[str, _Band], block: tuple[int, int]) -> None:
        self.grid, self.bands, self._block = grid, bands, block

    def windows(self, budget: int) -> Iterator[Window]:
        """The windows of the tile, within a byte budget."""
        return strips(self.grid.height, self.grid.width, *self._block, WORKING_BYTES_PER_PIXEL, budget)

    def read(self, window: Window) -> Strip:
        """One window; a pixel that is nodata, masked, transparent or not finite in any band in use is not valid."""
        pixels: dict[str, NDArray[np.generic]] = {}
        valid = np.ones((window.height, window.width), dtype=bool)
        for group in self._by_dataset():
            dataset, alpha = group[0][1].dataset, group[0][1].alpha
            indexes = [band.index for _, band in group] + ([alpha] if alpha else [])
            stack = dataset.read(indexes, window=window.slices)  # one call, so that each block is decoded once
            for (role, band), values in zip(group, stack, strict=False):
                pixels[role] = values
                valid &= band.calibration.is_measured(values)
            if alpha:
                valid &= stack[-1] > 0
            if group[0][1].has_mask:
                valid &= dataset.read_masks(group[0][1].index, window=window.slices) > 0
        valid &= ~both_zero(pixels)
        bands = {role: band.calibration.reflectance(pixels[role]) for role, band in self.bands.items()}
        return Strip(bands=bands, valid=valid)

    def _by_dataset(self) -> list[list[tuple[str, _Band]]]:
        groups: dict[int, list[tuple[str, _Band]]] = {}
        for role, band in self.bands.items():
            groups.setdefault(id(band.dataset), []).append((role, band))
        return list(groups.values())


@contextmanager
def open_tile(
    paths: Mapping[str, Path],
    names: Mapping[str, str],
    roles: Sequence[str],
    rule: Radiometry,
    profile: SensorProfile | None,
    epsg: int,
    max_pixels: int,
    max_block_bytes: int,
) -> Iterator[TileSource]:
    """Open a tile's source: one file ("" in `paths`) that holds every band, or a file a role.

    `names` are the URIs for messages. Everything a header can tell is checked here, before anything is allocated.
    """
    with gdal(), ExitStack() as stack:
        opened = {role: stack.enter_context(_open(paths[role], names[role])) for role in paths}
        for role, dataset in opened.items():
            _check_header(dataset, names[role], epsg, max_pixels, max_block_bytes)
        first = next(iter(opened.values()))
        for role, dataset in opened.items():
            _check_same_grid(first, dataset, names[role])
        if "" in opened:
            bands = _bands_of_one(opened[""], names[""], roles, rule, profile)
        else:
            bands = {role: _only_band(opened[role], names[role], role, rule, profile) for role in roles}
        block_height = max(dataset.block_shapes[0][0] for dataset in opened.values())
        block_width = max(dataset.block_shapes[0][1] for dataset in opened.values())
        yield TileSource(_grid(first), bands, (block_height, block_width))


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn GDAL's errors into ours: the bytes have arrived, so what cannot be decoded is corrupt."""
    try:
        yield
    except RasterioError as error:
        detail = str(error.__cause__ or error)
        raise Refused(Code.SOURCE_CORRUPT, f"{name}: corrupt, its pixels cannot be read ({detail})") from error


def _open(path: Path, name: str) -> Any:
    with path.open("rb") as raw:
        start = raw.read(40)
    driver = next((driver for magic, driver in DRIVERS.items() if start.startswith(magic)), None)
    if not start:
        raise Refused(Code.SOURCE_NOT_RASTER, f"{name} is empty (0 bytes)")
    if driver is None:
        raise Refused(Code.SOURCE_NOT_RASTER, f"{name} is not a GeoTIFF: it starts with {start!r}")
    try:
        return rasterio.open(path, driver=driver)
    except RasterioIOError as error:
        detail = str(error).replace(str(path), path.name)
        raise Refused(
            Code.SOURCE_CORRUPT, f"{name}: corrupt, a {driver} file that cannot be opened ({detail})"
        ) from error


def _check_header(dataset: Any, name: str, epsg: int, max_pixels: int, max_block_bytes: int) -> None:
    if dataset.width * dataset.height > max_pixels:
        raise Refused(
            Code.SOURCE_TOO_LARGE,
            f"{name} claims {dataset.width} x {dataset.height} pixels; FLIGHTS_MAX_PIXELS allows {max_pixels}",
        )
    if dataset.count == 0:
        raise Refused(Code.SOURCE_NOT_RASTER, f"{name} has no bands (a container of subdatasets?)")
    for dtype in dataset.dtypes:
        if dtype.startswith("complex"):
            raise Refused(Code.DTYPE_UNSUPPORTED, f"{name} holds complex numbers ({dtype}), which have no reflectance")
    block_height, block_width = dataset.block_shapes[0]
    bands = dataset.count if dataset.interleaving and dataset.interleaving.name == "pixel" else 1
    block_bytes = block_height * block_width * np.dtype(dataset.dtypes[0]).itemsize * bands
    if block_bytes > max_block_bytes:
        raise Refused(
            Code.SOURCE_TOO_LARGE,
            f"{name}: one block is {block_width} x {block_height} pixels, {block_bytes} bytes decoded; "
            f"FLIGHTS_MAX_BLOCK_BYTES allows {max_block_bytes}. Re-tile it (gdal_translate -co TILED=YES).",
        )
    _check_place(dataset, name, epsg)


def _check_place(dataset: Any, name: str, epsg: int) -> None:
    if dataset.crs is None:
        only = "only ground control points" if dataset.gcps[0] else "only RPCs" if dataset.rpcs else "none"
        raise Refused(
            Code.CRS_MISSING,
            f"{name} has no CRS (georeference: {only}); the manifest says EPSG:{epsg}. Rectify it, or assign the CRS.",
        )
    wkt = dataset.crs.to_wkt()
    if not crs.is_epsg(wkt, epsg):
        raise Refused(
            Code.CRS_MISMATCH, f"{name} is in {crs.name_of(wkt)}, the manifest says EPSG:{epsg}; one of them is wrong"
        )
    if dataset.transform == Affine.identity():
        raise Refused(
            Code.GEOREF_MISSING, f"{name} has a CRS but no transform (georeference): its pixels have no place"
        )


def _check_same_grid(first: Any, other: Any, name: str) -> None:
    same = first.shape == other.shape and first.transform.almost_equals(other.transform, precision=1e-6)
    if not same or not crs.is_same(first.crs.to_wkt(), other.crs.to_wkt()):
        raise Refused(
            Code.GRID_MISMATCH,
            f"{name} is {other.width} x {other.height} at {tuple(other.transform)[:6]}, another band of the tile "
            f"{first.width} x {first.height} at {tuple(first.transform)[:6]}; bands of a tile must share one grid",
        )


def _grid(dataset: Any) -> Grid:
    return Grid(height=dataset.height, width=dataset.width, transform=dataset.transform, crs=dataset.crs)


def _facts(dataset: Any) -> list[BandFacts]:
    return [
        BandFacts(
            index=i + 1,
            dtype=dataset.dtypes[i],
            description=dataset.descriptions[i] or "",
            colour_interpretation=dataset.colorinterp[i].name,
            scale=dataset.scales[i],
            offset=dataset.offsets[i],
            nodata=dataset.nodatavals[i],
        )
        for i in range(dataset.count)
    ]


def _bands_of_one(
    dataset: Any, name: str, roles: Sequence[str], rule: Radiometry, profile: SensorProfile | None
) -> dict[str, _Band]:
    facts = _facts(dataset)
    chosen = choose_bands(roles, facts, rule.bands, profile, name)
    return {role: _band(dataset, chosen, role, facts, rule, profile) for role in roles}


def _only_band(dataset: Any, name: str, role: str, rule: Radiometry, profile: SensorProfile | None) -> _Band:
    facts = _facts(dataset)
    measured = [f for f in facts if not f.is_alpha]
    if len(measured) != 1:
        raise Refused(Code.BAND_CONTRADICTION, f"{name} is given as the {role} band alone, but has {len(facts)} bands")
    return _band(dataset, {role: measured[0].index}, role, facts, rule, profile)


def _band(
    dataset: Any,
    chosen: Mapping[str, int],
    role: str,
    facts: Sequence[BandFacts],
    rule: Radiometry,
    profile: SensorProfile | None,
) -> _Band:
    index = chosen[role]
    flags = dataset.mask_flag_enums[index - 1]
    # GDAL's own mask lets a band labelled alpha outrank nodata, also where that band is the NIR: alpha is read here.
    alphas = [f.index for f in facts if f.is_alpha and f.index not in chosen.values()]
    return _Band(
        dataset=dataset,
        index=index,
        calibration=calibration(
            role,
            facts[index - 1],
            profile,
            rule.declared("scale", role),
            rule.declared("offset", role),
            rule.declared("nodata", role),
        ),
        has_mask=MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags,
        alpha=alphas[0] if alphas else None,
    )
