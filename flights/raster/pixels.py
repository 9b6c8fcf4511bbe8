"""How a product keeps its values: as they are, or as whole numbers of ten-thousandths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """A product's pixels: value = pixel * scale, and the pixel that stands for no data."""

    dtype: str
    nodata: float
    scale: float
    predictor: int
    # of TIFF: 2 takes differences of whole numbers, 3 those of the bytes of floating-point ones

    def pack(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Pixels of values, NaN for no data; rounded to the nearest where the format has no fractions."""
        if self.dtype == "float32":
            return values
        scaled = np.rint(values / np.float32(self.scale))
        np.copyto(scaled, np.float32(self.nodata), where=np.isnan(values))
        pixels: NDArray[Any] = scaled.astype(self.dtype)
        return pixels

    def unpack(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """Values of pixels, NaN for no data."""
        if self.dtype == "float32":
            return pixels
        values = pixels.astype(np.float32) * np.float32(self.scale)
        np.copyto(values, np.float32(np.nan), where=pixels == self.nodata)
        return values


# By the manifest's word. An index lies within [-3, 3], so that ten-thousandths fit into 16 bits.
FORMATS: Mapping[str, PixelFormat] = {
    "float32": PixelFormat("float32", float("nan"), 1.0, predictor=3),
    "int16": PixelFormat("int16", -32768.0, 1e-4, predictor=2),
}
