"""What is published: overviews that are not empty, statistics of what is valid, a COG that says what it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp as Colour
from rio_cogeo.cogeo import cog_validate

from tests.cases.scene import FIELD, SIDE, Scene, box, expected, flat, one, put, reflectance, write_aux
from tests.inprocess import tools_for
from tests.synthetic import field, oracle_ndvi, place

LARGE = (1024, 1024)


def overviews(path: str) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """Every overview of a product, finest first."""
    with rasterio.open(path) as product:
        levels = product.overviews(1)
    found = []
    for level in range(len(levels)):
        with rasterio.open(path, overview_level=level) as product:
            found.append(product.read(1).astype(np.float64))
    return found


@pytest.mark.parametrize("kept", ["three of four", "one of four", "every other row"])
def test_nodata_does_not_eat_the_overviews(kept: str, tmp_path: Path) -> None:
    """opera-adt/RTC#79, ASFHyP3/asf-tools PR#48: one empty pixel in four emptied every level."""
    bands = flat(shape=LARGE)
    bands["red"][:, 512:], bands["nir"][:, 512:] = 2000, 1000
    empty = np.zeros(LARGE, dtype=bool)
    if kept == "three of four":
        empty[::2, ::2] = True
    elif kept == "one of four":
        empty[:] = True
        empty[::2, ::2] = False
    else:
        empty[1::2] = True
    bands["red"][empty] = bands["nir"][empty] = 0
    found = one(tmp_path, bands, nodata=0, tiled=True, blockxsize=256, blockysize=256, compress="deflate")
    found.assert_tile("t", expected(bands, empty))
    levels = overviews(found.outcome("t").dst_uri)
    assert levels
    for level in levels:
        half = level.shape[1] // 2
        assert np.isfinite(level).all()
        np.testing.assert_allclose(level[:, :half], FIELD, atol=1e-6)
        np.testing.assert_allclose(level[:, half:], -1 / 3, atol=1e-6)


def test_an_overview_is_the_mean_of_what_is_valid_below_it(tmp_path: Path) -> None:
    """Neither a nearest pixel nor a mean with nodata in it."""
    bands = field(*LARGE, seed=9)
    empty = np.random.default_rng(10).random(LARGE) < 0.4
    empty[:64, :64] = True
    bands["red"][empty] = 0
    found = one(tmp_path, bands, nodata=0, tiled=True)
    wanted = expected(bands, empty)
    found.assert_tile("t", wanted)
    quads = wanted.reshape(512, 2, 512, 2).transpose(0, 2, 1, 3).reshape(512, 512, 4)
    valid = np.isfinite(quads).any(axis=2)
    mean = np.full((512, 512), np.nan)
    mean[valid] = np.nanmean(quads[valid], axis=1)
    np.testing.assert_allclose(overviews(found.outcome("t").dst_uri)[0], mean, atol=1e-5, equal_nan=True)


def test_overviews_of_a_composite(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for i in range(2):
        bands = flat(shape=(600, 600))
        bands["red"][::2, ::2] = 0
        scene.add(f"t{i}", bands, nodata=0, transform=place(600 * i), compress="deflate")
    found = scene.run()
    assert found.report.mosaic
    for level in overviews(found.report.mosaic.uri):
        np.testing.assert_allclose(level, FIELD, atol=1e-6)
    assert cog_validate(found.report.mosaic.uri, strict=True, quiet=True)[:2] == (True, [])


def test_statistics_are_of_valid_pixels(tmp_path: Path) -> None:
    """cogeotiff/rio-tiler#579, NASA-DEVELOP/dnppy#43, ubarsc/rios#191: a constant tile has no spread, and no crash."""
    half = flat()
    half["nir"][:8] = half["red"][0, 0]
    half["red"][16:] = half["nir"][16:] = 0
    scene = Scene(tmp_path)
    scene.add("half", half, nodata=0)
    scene.add("constant", flat(), transform=place(SIDE))
    scene.add("single", put(flat(0, 0), {(3, 3): (1, 3)}), transform=place(2 * SIDE))
    found = scene.run()
    found.assert_tile("half", expected(half, box(slice(16, None), slice(None))))
    stats = {o.tile_id: o.stats for o in found.report.outcomes if o.stats}
    assert stats["half"].count == 512
    assert (stats["half"].mean, stats["half"].std) == pytest.approx((0.3, 0.3), abs=1e-6)
    assert stats["constant"].count == 1024
    assert stats["constant"].std == pytest.approx(0, abs=1e-9)
    assert (stats["single"].count, stats["single"].mean, stats["single"].std) == (1, 0.5, 0)
    everything = (256 * 0 + (256 + 1024) * 0.6 + 0.5) / 1537
    assert found.mosaic.valid == 1537
    assert found.report.mosaic
    assert found.report.stats
    for pooled in (found.report.mosaic.stats, found.report.stats):
        assert pooled.count == 1537
        assert pooled.mean == pytest.approx(everything, abs=1e-6)


def test_statistics_do_not_depend_on_the_windows(tmp_path: Path) -> None:
    """A constant in many windows has no spread either; a mean of means would be wrong where some are nearly empty."""
    bands = field(400, 700, seed=11)
    bands["red"][20:380] = 0
    scene = Scene(tmp_path)
    scene.add("uneven", bands, nodata=0, tiled=True, blockxsize=64, blockysize=64)
    scene.add("constant", flat(shape=(400, 700)), tiled=True, blockxsize=64, blockysize=64)
    found = scene.run(tools_for(tmp_path / "state", window_bytes=2**20), "never")
    found.assert_tile("uneven", oracle_ndvi(bands["red"], bands["nir"], nodata=0))
    constant = found.outcome("constant").stats
    assert constant
    assert constant.std == pytest.approx(0, abs=1e-9)


def test_the_product_says_what_it_is_and_nothing_of_what_its_source_was(tmp_path: Path) -> None:
    """ubarsc/pyshepseg PR#21: statistics, scales and colours copied from the source describe other pixels."""
    bands = reflectance()
    bands["red"][:4] = 0.2
    scene = Scene(tmp_path)
    path = scene.add(
        "t",
        bands,
        descriptions=("Blue", "Green", "Red", "NIR"),
        scales=[2.0] * 4,
        offsets=[0.0] * 4,
        tags={"AREA_OR_POINT": "Point", "TIFFTAG_SOFTWARE": "somebody's", "NOTE": "a source"},
        band_tags={i: {"STATISTICS_MEAN": "7", "STATISTICS_MAXIMUM": "9"} for i in range(1, 5)},
        colours=[Colour.blue, Colour.green, Colour.red, Colour.undefined],
    )
    write_aux(path, {i: {"UnitType": "kelvin"} for i in range(1, 5)})
    found = scene.run(composite="never")
    found.assert_tile("t", expected(bands))
    uri = found.outcome("t").dst_uri
    assert cog_validate(uri, strict=True, quiet=True)[:2] == (True, [])
    with rasterio.open(uri) as product:
        assert (product.scales, product.offsets, product.units) == ((1.0,), (0.0,), (None,))
        assert (product.descriptions, product.colorinterp) == (("NDVI",), (Colour.gray,))
        tags, band = product.tags(), product.tags(1)
        values = product.read(1).astype(np.float64)
    assert "NOTE" not in tags
    assert tags["AREA_OR_POINT"] == "Area"
    assert tags["TIFFTAG_SOFTWARE"].startswith("flights")
    assert float(band["STATISTICS_MEAN"]) == pytest.approx(values.mean())
    assert float(band["STATISTICS_MAXIMUM"]) == pytest.approx(values.max())
    assert [p.name for p in Path(uri).parent.iterdir()] == [Path(uri).name]


def test_a_product_without_a_valid_pixel_has_no_statistics(tmp_path: Path) -> None:
    found = one(tmp_path, flat(0, 0))
    with rasterio.open(found.outcome("t").dst_uri) as product:
        assert not [key for key in product.tags(1) if key.startswith("STATISTICS")]
    assert cog_validate(found.outcome("t").dst_uri, strict=True, quiet=True)[:2] == (True, [])
