"""Whatever a pixel is stored as, NDVI is worked out in float64: nothing wraps round, nothing overflows."""

from pathlib import Path

import numpy as np
import pytest

from tests.cases.scene import Scene, expected, flat, one, put, reflectance
from tests.inprocess import tools_for
from tests.synthetic import field, oracle_ndvi

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_promoted_before_they_are_subtracted(dtype: str, tmp_path: Path) -> None:
    """xarray-contrib/xarray-spatial#726, kadyb/raster-benchmark#20, awesome-spectral-indices/spyndex#14."""
    top = int(np.iinfo(dtype).max)
    pairs = [
        (top // 2 + 1, top // 3),  # NIR below red: an unsigned difference wraps
        (top // 2 + 2, top // 2 + 2),  # their sum does not fit
        (top // 3 * 2, top - 1),
        (top - 1, top - 1),
        (top, 1),
        (1, top),
        (top, 0),
        (0, top),
        (2, 1),
    ]
    bands = put(flat(20, 80, dtype=dtype), {(i, i): pair for i, pair in enumerate(pairs)})
    found = one(tmp_path, bands)
    found.assert_tile("t", expected(bands))
    assert found.tile("t").valid == bands["red"].size

    with np.errstate(all="ignore"):
        red, nir = bands["red"], bands["nir"]
        wrapped = np.nan_to_num((nir - red) / (nir + red)) != np.nan_to_num(
            (nir.astype(float) - red) / (nir + 0.0 + red)
        )
    assert wrapped.any(), "the pixels are to be such as go wrong in their own type"
    assert found.report.status == "complete"


@pytest.mark.parametrize(
    ("red", "nir", "wrong"),
    [(1652, 1462, 65346 / 3114), (40_000, 50_000, 10_000 / 24_464), (65_535, 1, 2 / 1), (60_000, 60_000, 0 / 54_464)],
)
def test_water_and_bright_soil_in_uint16(red: int, nir: int, wrong: float, tmp_path: Path) -> None:
    """digitalearthafrica/deafrica-sandbox-notebooks#322: water came out green, or far beyond 1."""
    bands = put(flat(), {(5, 7): (red, nir)})
    value = one(tmp_path, bands).tile("t").values[5, 7]
    assert value == pytest.approx((nir - red) / (nir + red), abs=1e-6)
    assert red == nir or value != pytest.approx(wrong, abs=1e-3)


def test_water_in_a_photo_of_eight_bits(tmp_path: Path) -> None:
    """syamkakarla98/Satellite_Imagery_Analysis#2: sums above 255 overflow, differences below 0 wrap."""
    bands = put(flat(60, 180, dtype="uint8"), {(1, 1): (200, 10), (2, 2): (120, 250), (3, 3): (255, 255)})
    values = one(tmp_path, bands).tile("t").values
    found = [values[1, 1], values[2, 2], values[3, 3], values[9, 9]]
    np.testing.assert_allclose(found, [-190 / 210, 130 / 370, 0, 0.5], atol=1e-6)


@pytest.mark.parametrize(("dtype", "fill"), [("int8", -128), ("int16", -32768), ("int32", -(2**31)), ("int8", -1)])
def test_a_negative_fill_of_a_signed_raster(dtype: str, fill: int, tmp_path: Path) -> None:
    """rasterio#2180, rasterio#1927: read as unsigned, -128 is 128 and no longer the fill."""
    top = np.iinfo(dtype).max
    bands = put(flat(20, 80, dtype=dtype), {(1, 1): (top - 27, top - 7), (3, 3): (fill, fill), (4, 4): (20, fill)})
    hidden = np.isin(bands["nir"], [fill])
    assert hidden.sum() == 2
    one(tmp_path, bands, nodata=fill).assert_tile("t", expected(bands, hidden))


@pytest.mark.parametrize(
    ("dtype", "red", "nir"),
    [
        ("float32", 3e38, 3e38),  # their sum is beyond float32
        ("float32", 1e38, 3e38),
        ("float32", 0.3, 0.3000001),  # differ in the last bit
        ("float32", 1e-45, 3e-45),  # the smallest there are
        ("float32", 1e-30, 1.0),
        ("float64", 1e300, 3e300),
        ("float64", 1 / 3, 1 / 3 + 1e-15),
        ("float64", 1e-300, 2e-300),
        ("float64", 3e38, 4e38),  # beyond float32, which the product is in
    ],
)
def test_reals_at_the_ends_of_their_range(dtype: str, red: float, nir: float, tmp_path: Path) -> None:
    bands = put(flat(0.08, 0.32, dtype=dtype), {(2, 2): (red, nir)})
    found = one(tmp_path, bands)
    stored = [float(bands[name][2, 2]) for name in ("red", "nir")]
    assert found.tile("t").values[2, 2] == pytest.approx((stored[1] - stored[0]) / sum(stored), abs=1e-7)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float32", "float64"])
def test_all_windows_of_a_tile_meet_the_same_arithmetic(dtype: str, tmp_path: Path) -> None:
    """A tile that is read in many windows, split at block columns too, is the tile that numpy makes of it at once."""
    bands = {name: (band % 250).astype(dtype) for name, band in field(300, 700, seed=3).items()}
    scene = Scene(tmp_path)
    scene.add("t", bands, tiled=True, blockxsize=64, blockysize=128, compress="deflate")
    found = scene.run(tools_for(tmp_path / "state", window_bytes=2**20), "never")
    found.assert_tile("t", oracle_ndvi(bands["red"], bands["nir"]))


@pytest.mark.parametrize("interleave", ["band", "pixel"])
@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_the_order_of_bytes_and_bands_changes_nothing(interleave: str, endian: str, tmp_path: Path) -> None:
    bands = field(33, 31)
    found = one(tmp_path, bands, interleave=interleave, ENDIANNESS=endian)
    found.assert_tile("t", oracle_ndvi(bands["red"], bands["nir"]))


def test_a_band_that_is_zero_where_the_other_is_not(tmp_path: Path) -> None:
    bands = put(reflectance(), {(5, 5): (0, 0.5), (6, 6): (0.5, 0)})
    values = one(tmp_path, bands).tile("t").values
    assert (values[5, 5], values[6, 6]) == (1, -1)
