"""What is timed: something that makes a product of a source, and an oracle that says whether it did."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from benchmarks.measure import Times, in_turn

RED, NIR = 3, 5
# float32 arithmetic is within 1e-6 of float64's, over the range of NDVI
TOLERANCE = 1e-5
ROWS = 1024

Make = Callable[[str, str], object]


def time_in_turn(contenders: Mapping[str, Make], source: Path, rounds: int) -> Times:
    """Each contender once a round, to a file of its own beside the source that is not there when it begins.

    They have been warmed up by making the products that were checked.
    """

    def making(make: Make, product: Path) -> Callable[[], None]:
        def once() -> None:
            product.unlink(missing_ok=True)
            make(str(source), str(product))

        return once

    work = {name: making(make, product_of(source, name)) for name, make in contenders.items()}
    return in_turn(work, rounds, warm_up=0)


def product_of(source: Path, name: str) -> Path:
    """Where a contender's product goes."""
    return source.with_name(f"{source.stem}.{''.join(c if c.isalnum() else '-' for c in name)}.ndvi.tif")


class WrongProduct(Exception):
    """A contender's pixels are not those of the oracle: its time would mean nothing."""


def check(source: Path, product: Path) -> str:
    """Hold a product to the oracle, float64 numpy over both files: "" where it is right in every pixel.

    Right in every valid pixel, but not in what is no data, is said so: a number where nothing was measured, or a valid
    value that is the file's own nodata value. WrongProduct for all else.
    """
    forgiven = 0
    with rasterio.open(source) as src, rasterio.open(product) as out:
        if (out.count, out.dtypes[0], out.shape, out.block_shapes[0]) != (1, "float32", src.shape, (512, 512)):
            raise WrongProduct(f"{product.name} is {out.profile}")
        if not out.overviews(1):
            raise WrongProduct(f"{product.name} has no overviews")
        for row in range(0, src.height, ROWS):
            window = ((row, min(row + ROWS, src.height)), (0, src.width))
            wanted = _oracle(src.read([RED, NIR], window=window), src.nodata)
            valid, raw = ~np.isnan(wanted), out.read(1, window=window).astype(np.float64)
            with np.errstate(invalid="ignore"):
                wrong = valid & ~(np.abs(raw - wanted) <= TOLERANCE)
            if wrong.any():
                raise WrongProduct(f"{product.name}: {wrong.sum()} valid pixels of rows {window[0]} are wrong")
            missing = np.isnan(raw) | (raw == (np.nan if out.nodata is None else out.nodata))
            forgiven += int((missing == valid).sum())
    return "right in valid pixels only" if forgiven else ""


def _oracle(bands: NDArray[Any], nodata: float | None) -> NDArray[np.float64]:
    red, nir = bands.astype(np.float64)
    ndvi = np.full(red.shape, np.nan)
    measured = (red != nodata) & (nir != nodata)
    np.divide(nir - red, nir + red, out=ndvi, where=measured)
    return ndvi
