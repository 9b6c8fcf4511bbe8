"""Reading a tile: its header checked before anything is allocated, its bands read window by window."""

import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import MaskFlags
from rasterio.errors import RasterioError
from rasterio.transform import Affine

from flights.bands import BandFacts, choose_bands, contradiction
from flights.errors import Code, Refused
from flights.manifest import MASK, Radiometry
from flights.radiometry import Calibration, both_zero, calibration, is_removed, is_saturated
from flights.raster.environment import CACHE_BYTES, Grid, gdal, plain_env
from flights.raster.header import block_bytes, check_header, check_same_grid, is_same_grid, open_raster
from flights.sensors import QualityMask, SensorProfile
from flights.windows import Window, strips

# Reflectance products may reach 2 by design (65535 of MicaSense's); well above that the scale is another one.
BRIGHT = 3.0
# Pixels, then float64 per band and for the arithmetic between: an upper bound of what one pixel costs while it is
# worked on with two bands.
WORKING_BYTES_PER_PIXEL = 64


@dataclass(frozen=True, slots=True)
class TileSpec:
    """What is to be read of a tile's source, and what it may claim."""

    names: Mapping[str, str]
    # URI by role, for messages; "" is one file that holds every band
    roles: Sequence[str]
    rule: Radiometry
    profile: SensorProfile | None
    epsg: int
    max_pixels: int
    max_block_bytes: int


@dataclass(frozen=True, slots=True)
class SourceBand:
    """A band in use: where its pixels are and what they mean."""

    dataset: Any
    facts: BandFacts
    calibration: Calibration
    mask_of: int | None
    # the band whose mask (inside the file, or a .msk beside it) is this one's; all bands may share one
    alpha: int | None


@dataclass(frozen=True, slots=True)
class _Mask:
    """A quality band on a grid that is `factor` times coarser than the tile's."""

    dataset: Any
    meaning: QualityMask
    classes: Sequence[str]
    factor: int

    def removed(self, window: Window) -> NDArray[np.bool_]:
        """True where the pixels of a window belong to a class that is to be removed."""
        rows, cols = ((start // self.factor, -(-stop // self.factor)) for start, stop in window.slices)
        coarse = is_removed(self.dataset.read(window=(rows, cols)), self.meaning, self.classes)
        fine = coarse.repeat(self.factor, axis=0).repeat(self.factor, axis=1)
        top, left = window.row_off - rows[0] * self.factor, window.col_off - cols[0] * self.factor
        return fine[top : top + window.height, left : left + window.width]


@dataclass(frozen=True, slots=True)
class Strip:
    """One window of a tile's source."""

    bands: dict[str, NDArray[np.float64]]
    # reflectance by role, each (rows, cols)
    valid: NDArray[np.bool_]
    # every band in use holds a measurement there
    some_data: int
    # pixels where at least one band in use holds a measurement that is not masked
    saturated: int
    # valid pixels at the top of their range in a band in use
    bright: int
    # valid pixels of a reflectance above BRIGHT in a band in use, where the scale is known


class TileSource:
    """An open source: the bands in use and how to read them."""

    def __init__(self, grid: Grid, bands: Mapping[str, SourceBand], block: tuple[int, int], mask: _Mask | None) -> None:
        self.grid, self.bands, self._block, self._mask = grid, bands, block, mask

    @property
    def file_bands(self) -> set[int]:
        """The bands (from 1) of the one file that holds them all, whose pixels are read."""
        return {index for b in self.bands.values() for index in (b.facts.index, b.alpha) if index}

    @property
    def rows_at_once(self) -> int:
        """How many rows its windows may leave unfinished: a row of blocks."""
        return self._block[0]

    def windows(self, budget: int) -> Iterator[Window]:
        """The windows of the tile, within a byte budget."""
        return strips(self.grid.height, self.grid.width, *self._block, WORKING_BYTES_PER_PIXEL, budget)

    def strips(self, budget: int) -> Iterator[tuple[Window, Strip]]:
        """Every window with its pixels; while one is worked on, a second thread reads the next.

        Decoding is half of a tile: where the other core is free, a tile takes a third less time.
        """
        windows = self.windows(budget // 2)  # two of them are in memory at once
        window, *more = itertools.islice(windows, 2)
        if not more:
            yield window, self.read(window)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            strip = reader.submit(self._read_in_thread, window)
            for following in itertools.chain(more, windows):
                current, strip = strip, reader.submit(self._read_in_thread, following)
                yield window, current.result()
                window = following
            yield window, strip.result()

    def _read_in_thread(self, window: Window) -> Strip:
        with plain_env():
            return self.read(window)

    def read(self, window: Window) -> Strip:
        """One window; a pixel that is nodata, masked, transparent or not finite in any band in use is not valid."""
        pixels: dict[str, NDArray[Any]] = {}
        hidden = np.zeros((window.height, window.width), dtype=bool)
        for group in self._by_dataset():
            band = group[0][1]
            indexes = [b.facts.index for _, b in group] + ([band.alpha] if band.alpha else [])
            stack = band.dataset.read(indexes, window=window.slices)  # one call: each block is decoded once
            pixels |= {role: values for (role, _), values in zip(group, stack, strict=False)}
            if band.alpha:
                hidden |= stack[-1] <= 0
            for index in {b.mask_of for _, b in group if b.mask_of}:
                hidden |= band.dataset.read_masks(index, window=window.slices) == 0
        if self._mask:
            hidden |= self._mask.removed(window)
        hidden |= both_zero(pixels)
        measured = [band.calibration.is_measured(pixels[role]) for role, band in self.bands.items()]
        some = functools.reduce(np.logical_or, measured) & ~hidden
        valid = functools.reduce(np.logical_and, measured) & some
        bands = {role: band.calibration.reflectance(pixels[role]) for role, band in self.bands.items()}
        # Most windows hold nothing bright or saturated, which their maximum tells sooner than a look at every pixel.
        bright = [
            bands[role] > BRIGHT
            for role, band in self.bands.items()
            if band.calibration.is_known and not bands[role].max() <= BRIGHT
        ]
        saturated = [
            at_top
            for role, band in self.bands.items()
            if (at_top := is_saturated(pixels[role], band.facts.bits)) is not None
        ]
        return Strip(
            bands=bands,
            valid=valid,
            bright=_count(valid, bright),
            some_data=int(np.count_nonzero(some)),
            saturated=_count(valid, saturated),
        )

    def _by_dataset(self) -> list[list[tuple[str, SourceBand]]]:
        groups: dict[int, list[tuple[str, SourceBand]]] = {}
        for role, band in self.bands.items():
            groups.setdefault(id(band.dataset), []).append((role, band))
        return list(groups.values())


def _count(valid: NDArray[np.bool_], each: Sequence[NDArray[np.bool_]]) -> int:
    """Valid pixels at which any of these holds."""
    return int(np.count_nonzero(valid & functools.reduce(np.logical_or, each))) if each else 0


@contextmanager
def open_tile(paths: Mapping[str, Path], spec: TileSpec) -> Iterator[TileSource]:
    """Open a tile's source: one file ("" in `paths`) that holds every band, or a file a role.

    Everything that a header can tell is checked here, before anything is allocated.
    """
    with gdal(), ExitStack() as stack:
        opened = {role: stack.enter_context(open_raster(path, spec.names[role])) for role, path in paths.items()}
        for role, dataset in opened.items():
            check_header(dataset, spec.names[role], spec.epsg, spec.max_pixels, spec.max_block_bytes)
        mask = _mask_of(opened, spec)
        files = {role: dataset for role, dataset in opened.items() if role != MASK}
        first = next(iter(files.values()))
        for role, dataset in files.items():
            check_same_grid(first, dataset, spec.names[role])
        bands = _bands_of_one(files[""], spec) if "" in files else _bands_of_many(files, spec)
        block = tuple(max(dataset.block_shapes[0][axis] for dataset in files.values()) for axis in (0, 1))
        # A block that is larger than the windows it is read in has to stay decoded between them.
        stack.enter_context(gdal(max(CACHE_BYTES, 2 * sum(block_bytes(d) for d in files.values()))))
        yield TileSource(_grid(first), bands, (block[0], block[1]), mask)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn GDAL's errors into ours: the bytes have arrived, so what cannot be decoded is corrupt."""
    try:
        yield
    except RasterioError as error:
        detail = re.sub(r"^\w+\.tif, ", "", str(error.__cause__ or error))  # a scratch name, which nobody knows
        block = re.search(r"IReadBlock failed at X offset (\d+), Y offset (\d+)", detail)
        where = f"the block in column {block[1]}, row {block[2]} of blocks cannot be decoded" if block else detail
        raise Refused(
            Code.SOURCE_CORRUPT, f"{name}: corrupt or cut short, its pixels cannot be read: {where}; copy it again"
        ) from error


def _mask_of(opened: Mapping[str, Any], spec: TileSpec) -> _Mask | None:
    """The tile's quality band, None where it has none; it may be coarser by a whole factor (SCL: 20 m beside 10 m)."""
    if MASK not in opened:
        return None
    if spec.profile is None or spec.profile.mask is None:
        raise Refused(Code.BAND_CONTRADICTION, f"{spec.names[MASK]}: no sensor profile says what this mask means")
    dataset, meaning = opened[MASK], spec.profile.mask
    first = next(d for role, d in opened.items() if role != MASK)
    factor = max(1, round(dataset.transform.a / first.transform.a))
    fits = dataset.shape == (-(-first.height // factor), -(-first.width // factor))
    coarser = first.transform @ Affine.scale(factor)
    if not fits or not is_same_grid(coarser, dataset.transform, dataset.width, dataset.height):
        raise Refused(
            Code.GRID_MISMATCH,
            f"{spec.names[MASK]} is {dataset.width} x {dataset.height} at {tuple(dataset.transform)[:6]}; a mask must "
            f"lie on the tile's grid ({first.width} x {first.height} at {tuple(first.transform)[:6]}), "
            "or be coarser by a whole factor",
        )
    needed = max(n for numbers in meaning.classes.values() for n in numbers) if meaning.kind == "bands" else 1
    if dataset.count < needed or np.dtype(dataset.dtypes[0]).kind not in "iu":
        raise Refused(
            Code.BAND_CONTRADICTION,
            f"{spec.names[MASK]} has {dataset.count} bands of {dataset.dtypes[0]}; the mask of {spec.profile.slug} "
            f"has {needed} of integers",
        )
    return _Mask(dataset, meaning, meaning.remove if spec.rule.mask_classes is None else spec.rule.mask_classes, factor)


def _grid(dataset: Any) -> Grid:
    return Grid(height=dataset.height, width=dataset.width, transform=dataset.transform, crs=dataset.crs)


def _facts(dataset: Any) -> list[BandFacts]:
    return [
        BandFacts(
            index=i + 1,
            dtype=dataset.dtypes[i],
            description=dataset.descriptions[i] or "",
            colour_interpretation=dataset.colorinterp[i].name,
            wavelength_nm=_wavelength_nm({**dataset.tags(i + 1), **dataset.tags(i + 1, ns="IMAGERY")}),
            bits=_bits(dataset.tags(i + 1, ns="IMAGE_STRUCTURE").get("NBITS")),
            scale=dataset.scales[i],
            offset=dataset.offsets[i],
            nodata=dataset.nodatavals[i],
        )
        for i in range(dataset.count)
    ]


def _wavelength_nm(tags: Mapping[str, str]) -> float | None:
    """The centre wavelength among a band's tags: GDAL's CENTRAL_WAVELENGTH_UM, or what others call much the same."""
    for key, text in tags.items():
        name = key.lower().replace("_", "").replace(" ", "")
        if name in ("centralwavelengthum", "centralwavelength", "centerwavelength", "wavelength", "wavelengthnm"):
            found = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)", text)
            if found and 0 < (value := float(found[1])) < 100_000:
                return value * 1000 if value < 100 else value  # micrometres below, nanometres above
    return None


def _bits(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None


def _bands_of_one(dataset: Any, spec: TileSpec) -> dict[str, SourceBand]:
    facts = _facts(dataset)
    chosen = choose_bands(spec.roles, facts, spec.rule.bands, spec.profile, spec.names[""])
    return {role: _band(dataset, chosen, role, facts, spec) for role in spec.roles}


def _bands_of_many(files: Mapping[str, Any], spec: TileSpec) -> dict[str, SourceBand]:
    """A file a role: its only band, or, of a file that holds several, the one that `bands` or the sensor names."""
    bands = {}
    for role in spec.roles:
        dataset, name, facts = files[role], spec.names[role], _facts(files[role])
        measured = [f for f in facts if not f.is_alpha]
        if len(measured) == 1:
            against = contradiction(measured[0], role, declared=True)
            if against:
                raise Refused(Code.BAND_CONTRADICTION, f"{name} is given as the {role} band, but {against}")
            chosen = {role: measured[0].index}
        elif spec.rule.bands or (spec.profile and spec.profile.layout == "bands"):
            chosen = choose_bands([role], facts, spec.rule.bands, spec.profile, name)
        else:
            message = f"{name} is given as the {role} band alone, but has {len(facts)} bands; `bands` can say which"
            raise Refused(Code.BAND_CONTRADICTION, message)
        bands[role] = _band(dataset, chosen, role, facts, spec)
    _check_distinct(bands, spec)
    return bands


def _check_distinct(bands: Mapping[str, SourceBand], spec: TileSpec) -> None:
    taken: dict[tuple[str, int], str] = {}
    for role, band in bands.items():
        # A local source is a link, so that two spellings of one file meet here; an S3 object has one spelling.
        file = os.path.realpath(band.dataset.name) if os.path.islink(band.dataset.name) else spec.names[role]
        place = (file, band.facts.index)
        if place in taken:
            first = f"{spec.names[taken[place]]} ({taken[place]})"
            message = (
                f"{first} and {spec.names[role]} ({role}) are one file: {taken[place]} and {role} would both be taken "
                f"from band {place[1]} of it"
            )
            raise Refused(Code.BAND_CONTRADICTION, message)
        taken[place] = role


def _mask_source(flags: Sequence[MaskFlags], fact: BandFacts) -> int | None:
    """The band whose GDAL mask says more of a band than its nodata value and an alpha band do, which are read here."""
    if MaskFlags.all_valid in flags or MaskFlags.alpha in flags:
        return None
    if MaskFlags.per_dataset in flags:
        return 1  # one mask for all bands
    # Without any flag the mask is the band's own; a nodata value that no double holds (int64) is GDAL's alone to know.
    return None if MaskFlags.nodata in flags and fact.nodata is not None else fact.index


def _calibration(name: str, fact: BandFacts, spec: TileSpec, role: str) -> Calibration:
    rule = spec.rule
    scale, offset, nodata = (rule.declared(key, role) for key in ("scale", "offset", "nodata"))
    try:
        return calibration(fact, spec.profile, scale, offset, nodata)
    except Refused as refused:
        raise Refused(refused.code, f"{name}, {role}: {refused}") from refused


def _band(dataset: Any, chosen: Mapping[str, int], role: str, facts: Sequence[BandFacts], spec: TileSpec) -> SourceBand:
    fact = facts[chosen[role] - 1]
    flags = dataset.mask_flag_enums[fact.index - 1]
    # GDAL's own mask lets a band labelled alpha outrank nodata, also where that band is the NIR: alpha is read here.
    alphas = [f.index for f in facts if f.is_alpha and f.index not in chosen.values()]
    return SourceBand(
        dataset=dataset,
        facts=fact,
        calibration=_calibration(spec.names.get(role) or spec.names[""], fact, spec, role),
        mask_of=_mask_source(flags, fact),
        alpha=alphas[0] if alphas else None,
    )
