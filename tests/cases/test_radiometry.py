"""From stored pixels to reflectance: scales, offsets, what lies below zero, and what of it may be published."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cases.scene import (
    FIELD,
    SIDE,
    Scene,
    box,
    expected,
    flat,
    one,
    put,
    reflectance,
    write_aux,
    write_source,
)
from tests.synthetic import field, oracle_ndvi, place

# Sentinel-2 since January 2022: reflectance = pixel / 10,000 - 0.1.
BASELINE_4: dict[str, Any] = {"scale": 1e-4, "offset": -0.1}
NEGATIVE = {(1, 1): (-0.01, 0.02), (2, 2): (-0.02, 0.02), (3, 3): (0.02, -0.01), (4, 4): (-0.02, -0.01)}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_slightly_negative_reflectance_is_kept_within_bounds(dtype: str, tmp_path: Path) -> None:
    """Element84/earth-search#71, sertit/eoreader#79: 3, -3 and infinity were published, and spoiled the mean."""
    bands = put(reflectance(), NEGATIVE)
    if dtype == "int16":
        bands = {name: np.round(band * 10_000).astype(dtype) for name, band in bands.items()}
    bands = {name: band.astype(dtype) for name, band in bands.items()}
    found = one(tmp_path, bands)
    values = found.tile("t").values
    assert (values[1, 1], values[3, 3]) == (1, -1)
    assert np.isnan(values[2, 2])
    assert np.isnan(values[4, 4])
    found.assert_tile("t", expected(bands))
    assert found.outcome("t").stats.mean == pytest.approx(FIELD, abs=0.003)  # type: ignore[union-attr]
    assert found.report.status == "complete"


def test_a_tile_that_is_mostly_negative_wants_a_look(tmp_path: Path) -> None:
    """uw-cryo/DeepDEM#10: values in bounds, and yet an offset must be wrong; said, not hidden."""
    bands = flat(900, 3000)
    found = one(tmp_path, bands, BASELINE_4)
    found.assert_tile("t", np.ones((SIDE, SIDE)))
    assert found.report.status == "review"
    assert found.report.complete
    assert found.outcome("t").review[0].code == "implausible_values"


def test_an_offset_does_not_cancel(tmp_path: Path) -> None:
    """Element84/earth-search#71: by the file, a note beside it, the manifest or the sensor: all the same."""
    bands = field(SIDE, SIDE, seed=4) | {"red": field(SIDE, SIDE)["red"] + np.uint16(1000)}
    bands["nir"] = bands["nir"] + np.uint16(1000)
    tags: dict[str, Any] = {"scales": [1e-4] * 4, "offsets": [-0.1] * 4}
    scene = Scene(tmp_path)
    scene.add("file", bands, **tags)
    write_aux(
        scene.add("beside", bands, transform=place(SIDE)), {i: {"Offset": -0.1, "Scale": 1e-4} for i in range(1, 5)}
    )
    scene.add("manifest", bands, BASELINE_4, transform=place(2 * SIDE))
    for role in ("red", "nir"):
        write_source(tmp_path / "src" / f"{role}.tif", [bands[role]], transform=place(3 * SIDE))
    scene.tile("sensor", {"red": "src/red.tif", "nir": "src/nir.tif"}, sensor="sentinel-2-l2a")
    found = scene.run()
    for tile in scene.tiles:
        found.assert_tile(tile["tile_id"], expected(bands, **BASELINE_4))
    assert found.mosaic.valid == 4 * SIDE * SIDE
    assert np.abs(found.tile("file").values - oracle_ndvi(bands["red"], bands["nir"])).mean() > 0.05


def test_every_band_has_a_scale_of_its_own(tmp_path: Path) -> None:
    """Those of red and NIR, not those of the first band, nor of the last."""
    bands = flat(500, 6000)
    scales, offsets = [1.0, 7.0, 2e-4, 5e-5], [9.0, 9.0, -0.02, 0.1]
    red, nir = 500 * 2e-4 - 0.02, 6000 * 5e-5 + 0.1
    scene = Scene(tmp_path)
    scene.add("file", bands, scales=scales, offsets=offsets)
    says = {"scale": {"red": 2e-4, "nir": 5e-5}, "offset": {"red": -0.02, "nir": 0.1}}
    scene.add("manifest", bands, says, transform=place(SIDE))
    scene.add("both", bands, says, transform=place(2 * SIDE), scales=[3.0] * 4, offsets=[1.0] * 4)
    found = scene.run(composite="never")
    for tile in scene.tiles:
        found.assert_tile(tile["tile_id"], np.full((SIDE, SIDE), (nir - red) / (nir + red)))


def test_half_a_calibration_is_not_filled_up_from_elsewhere(tmp_path: Path) -> None:
    """The file's offset was made for the file's scale: a declared scale alone is half a word, and refused."""
    found = one(tmp_path, flat(), {"scale": 3e-5}, scales=[1e-4] * 4, offsets=[-0.05] * 4)
    found.refusal("t", "offset", "declare both")


def test_a_common_scale_changes_nothing(tmp_path: Path) -> None:
    bands = field(SIDE, SIDE)
    scene = Scene(tmp_path)
    for i, scale in enumerate([1.0, 1e-4, 1 / 32768, 1e-12, 1e6]):
        scene.add(f"t{i}", bands, {"scale": scale}, transform=place(i * SIDE))
    found = scene.run(composite="never")
    for tile in scene.tiles:
        found.assert_tile(tile["tile_id"], oracle_ndvi(bands["red"], bands["nir"]))


def test_fill_is_a_stored_value_not_a_reflectance(tmp_path: Path) -> None:
    """A pixel of reflectance 0 is data where the fill is a stored 0; a stored fill is none, whatever it scales to."""
    bands = put(flat(2000, 4000), {(1, 1): (1000, 3000), (2, 2): (0, 4000), (3, 3): (2000, 0), (4, 4): (0, 0)})
    found = one(tmp_path, bands, nodata=0, scales=[1e-4] * 4, offsets=[-0.1] * 4)
    found.assert_tile("t", expected(bands, nodata=0, **BASELINE_4))
    values = found.tile("t").values
    assert (values[1, 1], values[0, 0]) == (1, pytest.approx(0.5, abs=1e-6))
    assert np.isnan(values[2, 2])

    other = put(flat(2000, 4000), {(1, 1): (1000, 3000)})
    scene = Scene(tmp_path / "other")
    scene.add("t", other, BASELINE_4, nodata=1000)
    scene.run(composite="never").assert_tile("t", expected(other, nodata=1000, **BASELINE_4))


def test_a_collar_of_stored_zeros_stays_empty_under_an_offset(tmp_path: Path) -> None:
    """0 and 0 become -0.1 and -0.1, or 0.1 and 0.1, and would be NDVI 0."""
    collar = box(slice(6), slice(None))
    bands = flat(2000, 4000)
    bands["red"][collar] = bands["nir"][collar] = 0
    scene = Scene(tmp_path)
    scene.add("minus", bands, BASELINE_4)
    scene.add("plus", bands, {"scale": 1e-4, "offset": 0.1}, transform=place(SIDE))
    found = scene.run(composite="never")
    found.assert_tile("minus", expected(bands, collar, **BASELINE_4))
    found.assert_tile("plus", expected(bands, collar, scale=1e-4, offset=0.1))


@pytest.mark.parametrize(
    ("sensor", "scale", "offset"),
    [
        ("sentinel-2-l2a", 1e-4, -0.1),
        ("sentinel-2-l2a-harmonised", 1e-4, 0.0),
        ("landsat-c2-l2", 2.75e-5, -0.2),
    ],
)
def test_a_sensor_brings_its_calibration_and_its_fill(sensor: str, scale: float, offset: float, tmp_path: Path) -> None:
    """GEO-BON/bon-in-a-box-pipelines#279, earthdaily/earthdaily-python-client#125."""
    bands = put(flat(9000, 16_000), {(0, 0): (0, 16_000), (0, 1): (9000, 0), (0, 2): (0, 0)})
    scene = Scene(tmp_path)
    for role in ("red", "nir"):
        write_source(tmp_path / "src" / f"{role}.tif", [bands[role]])
    scene.tile("t", {role: f"src/{role}.tif" for role in ("red", "nir")}, sensor=sensor)
    found = scene.run(composite="never")
    found.assert_tile("t", expected(bands, nodata=0, scale=scale, offset=offset))
    assert found.tile("t").valid == SIDE * SIDE - 3


def test_saturated_pixels_are_published_and_told(tmp_path: Path) -> None:
    bands = flat(60, 180, dtype="uint8")
    bands["nir"][:4] = 255
    found = one(tmp_path, bands)
    found.assert_tile("t", expected(bands))
    assert (found.report.status, found.outcome("t").review[0].code) == ("review", "saturated")
