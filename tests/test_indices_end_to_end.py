"""Every index through a whole flight, held to its formula as the literature gives it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from flights.errors import ManifestRefused
from flights.indices import INDICES
from flights.report import FlightReport, TileState
from tests.inprocess import run_flight
from tests.processes import pixels
from tests.synthetic import manifest, write_tif

Array = NDArray[np.float64]
BANDS = {"green": 1, "red": 2, "rededge": 3, "nir": 4}


def sqrt(values: Array) -> Array:
    return np.sqrt(values)


# By name: green, red, red edge and NIR in, the index out.
LITERATURE: Mapping[str, Callable[[Array, Array, Array, Array], Array]] = {
    # Rouse et al. 1974
    "ndvi": lambda g, r, e, n: (n - r) / (n + r),
    # Barnes et al. 2000
    "ndre": lambda g, r, e, n: (n - e) / (n + e),
    # Gitelson et al. 1996
    "gndvi": lambda g, r, e, n: (n - g) / (n + g),
    # McFeeters 1996
    "ndwi": lambda g, r, e, n: (g - n) / (g + n),
    # Huete 1988, eq. with L = 0.5
    "savi": lambda g, r, e, n: (n - r) / (n + r + 0.5) * (1 + 0.5),
    # Rondeaux et al. 1996, X = 0.16
    "osavi": lambda g, r, e, n: (n - r) / (n + r + 0.16),
    # Qi et al. 1994, written as the root of the quadratic
    "msavi2": lambda g, r, e, n: n + 0.5 - sqrt((n + 0.5) ** 2 - 2 * (n - r)),
    # Jiang et al. 2008
    "evi2": lambda g, r, e, n: 2.5 * (n - r) / (n + 2.4 * r + 1),
}
RATIOS = ("ndvi", "ndre", "gndvi", "ndwi")
OTHERS = ("savi", "osavi", "msavi2", "evi2")


def test_every_index_is_covered() -> None:
    assert set(LITERATURE) == set(INDICES) == {*RATIOS, *OTHERS}


def stored(scale: float, offset: float, dtype: str = "uint16", seed: int = 20) -> dict[str, NDArray[Any]]:
    """Green, red, red edge and NIR of reflectances 0.01 to 1.1, as numbers of that scale and offset."""
    rng = np.random.default_rng(seed)
    number = {name: (rng.uniform(0.01, 1.1, (47, 71)) - offset) / scale for name in BANDS}
    return {name: (np.rint(v) if np.dtype(dtype).kind in "iu" else v).astype(dtype) for name, v in number.items()}


def expected(index: str, bands: Mapping[str, NDArray[Any]], scale: float, offset: float) -> Array:
    return LITERATURE[index](*(bands[name].astype(np.float64) * scale + offset for name in BANDS))


def fly(folder: Path, source: Path, index: str, **declared: Any) -> FlightReport:
    body = manifest("F", [{"tile_id": "t 1", "src_uri": str(source)}], out_uri="out", index=index, **declared)
    return run_flight(body, folder)


def assert_index(report: FlightReport, index: str, values: Array, folder: Path) -> None:
    assert [o.error for o in report.outcomes] == [None]
    assert report.outcomes[0].state is TileState.DONE, report.outcomes[0].review
    product = folder / "out" / "tiles" / f"t 1.{index}.tif"
    assert report.outcomes[0].dst_uri == str(product)
    np.testing.assert_allclose(pixels(product), values, rtol=0, atol=1e-6, equal_nan=True)
    assert report.mosaic is not None
    assert report.mosaic.uri == str(folder / "out" / f"F.{index}.tif")
    np.testing.assert_allclose(pixels(report.mosaic.uri), values, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("how", ["declared", "declared by band", "tags of the file"])
@pytest.mark.parametrize(("scale", "offset"), [(0.0001, 0.0), (0.0001, -0.1), (0.0000275, -0.2), (1 / 32768, 0.05)])
@pytest.mark.parametrize("index", LITERATURE)
def test_an_index_of_reflectances(index: str, scale: float, offset: float, how: str, tmp_path: Path) -> None:
    bands = stored(scale, offset)
    source = write_tif(tmp_path / "x.tif", bands)
    declared: dict[str, Any] = {"scale": scale, "offset": offset}
    if how == "declared by band":
        declared = {key: dict.fromkeys(INDICES[index].roles, value) for key, value in declared.items()}
    elif how == "tags of the file":
        declared = {}
        with rasterio.open(source, "r+") as file:
            file.scales, file.offsets = (scale,) * len(BANDS), (offset,) * len(BANDS)
    report = fly(tmp_path, source, index, bands=BANDS, **declared)
    assert_index(report, index, expected(index, bands, scale, offset), tmp_path)


@pytest.mark.parametrize("index", LITERATURE)
def test_bands_with_a_calibration_each(index: str, tmp_path: Path) -> None:
    scales = {"green": 1e-4, "red": 2e-4, "rededge": 5e-5, "nir": 3e-4}
    offsets = {"green": 0.0, "red": -0.1, "rededge": 0.02, "nir": -0.2}
    parts = {name: stored(scales[name], offsets[name], seed=i)[name] for i, name in enumerate(BANDS)}
    source = write_tif(tmp_path / "x.tif", parts)
    report = fly(tmp_path, source, index, bands=BANDS, scale=scales, offset=offsets)
    reflectances = (parts[name].astype(np.float64) * scales[name] + offsets[name] for name in BANDS)
    assert_index(report, index, LITERATURE[index](*reflectances), tmp_path)


@pytest.mark.parametrize("index", LITERATURE)
def test_an_index_with_a_sensor_profile(index: str, tmp_path: Path) -> None:
    """In float32 reflectance maps the scale is one, and known."""
    bands = stored(1.0, 0.0, "float32")
    order = ["blue", "green", "red", "rededge", "nir"]
    source = write_tif(tmp_path / "x.tif", [bands.get(name, bands["red"] / 2) for name in order])
    report = fly(tmp_path, source, index, sensor="micasense-rededge-mx")
    assert_index(report, index, expected(index, bands, 1.0, 0.0), tmp_path)


@pytest.mark.parametrize("index", LITERATURE)
def test_an_index_of_a_file_a_band(index: str, tmp_path: Path) -> None:
    bands = stored(0.0001, -0.1)
    source = {name: str(write_tif(tmp_path / f"{name}.tif", [bands[name]])) for name in INDICES[index].roles}
    tile = {"tile_id": "t 1", "src_uri": source}
    declared = {"bands": dict.fromkeys(source, 1), "scale": 0.0001, "offset": -0.1}
    report = run_flight(manifest("F", [tile], out_uri="out", index=index, **declared), tmp_path)
    assert_index(report, index, expected(index, bands, 0.0001, -0.1), tmp_path)


# ---------------------------------------------------------------- reflectance that nobody knows


@pytest.mark.parametrize("index", RATIOS)
def test_a_ratio_needs_no_scale(index: str, tmp_path: Path) -> None:
    bands = stored(0.0001, 0.0)
    source = write_tif(tmp_path / "x.tif", bands)
    assert_index(fly(tmp_path, source, index, bands=BANDS), index, expected(index, bands, 1.0, 0.0), tmp_path)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize("index", OTHERS)
def test_an_index_with_a_constant_refuses_an_unknown_scale(index: str, dtype: str, tmp_path: Path) -> None:
    source = write_tif(tmp_path / "x.tif", stored(0.0001, 0.0, dtype))
    (outcome,) = fly(tmp_path, source, index, bands=BANDS).outcomes
    assert outcome.error is not None
    assert outcome.error.code == "scale_unknown"
    said = outcome.error.message
    assert [word for word in (str(source), index, "`scale`", "`sensor`", "red", "nir") if word not in said] == []
    assert not Path(outcome.dst_uri).exists()


@pytest.mark.parametrize("index", OTHERS)
@pytest.mark.parametrize("declared", [{"scale": 1}, {"scale": 1.0, "offset": 0}, {"offset": 0}])
def test_a_scale_of_one_is_a_known_scale(index: str, declared: dict[str, float], tmp_path: Path) -> None:
    bands = stored(1.0, 0.0, "float32")
    report = fly(tmp_path, write_tif(tmp_path / "x.tif", bands), index, bands=BANDS, **declared)
    assert_index(report, index, expected(index, bands, 1.0, 0.0), tmp_path)


@pytest.mark.parametrize("index", OTHERS)
@pytest.mark.parametrize("known", ["red", "nir"])
def test_a_scale_of_one_band_alone_is_not_enough(index: str, known: str, tmp_path: Path) -> None:
    source = write_tif(tmp_path / "x.tif", stored(0.0001, 0.0))
    (outcome,) = fly(tmp_path, source, index, bands=BANDS, scale={known: 0.0001}).outcomes
    assert outcome.error is not None
    assert outcome.error.code == "scale_unknown"
    assert f"pixels of {'nir' if known == 'red' else 'red'} have" in outcome.error.message


@pytest.mark.parametrize("how", ["declared", "tags of one file", "a dtype that the sensor does not know"])
def test_reflectance_is_never_mixed_with_raw_numbers(how: str, tmp_path: Path) -> None:
    """One band calibrated and the other on an unknown scale have no scale in common: their ratio means nothing."""
    bands = stored(0.0001, 0.0)
    if how == "a dtype that the sensor does not know":
        bands["nir"] = bands["nir"].astype("uint32")
    source = {name: str(write_tif(tmp_path / f"{name}.tif", [bands[name]])) for name in ("red", "nir")}
    declared: dict[str, Any] = {"bands": {"red": 1, "nir": 1}}
    if how == "declared":
        declared["scale"] = {"red": 0.0001}
    elif how == "tags of one file":
        with rasterio.open(source["red"], "r+") as file:
            file.scales = (0.0001,)
    else:
        declared = {"sensor": "sentinel-2-l2a-harmonised"}
    body = manifest("F", [{"tile_id": "t 1", "src_uri": source}], out_uri="out", **declared)
    (outcome,) = run_flight(body, tmp_path).outcomes
    assert outcome.state is TileState.FAILED, outcome.stats
    assert outcome.error is not None
    assert outcome.error.code == "scale_unknown"


# ---------------------------------------------------------------- names, tags, other indices


@pytest.mark.parametrize("index", LITERATURE)
def test_a_product_says_what_it_is(index: str, tmp_path: Path) -> None:
    report = fly(tmp_path, write_tif(tmp_path / "x.tif", stored(0.0001, 0.0)), index, bands=BANDS, scale=0.0001)
    with rasterio.open(report.outcomes[0].dst_uri) as product:
        assert product.descriptions == (index.upper(),)
        assert product.tags()["FORMULA"] == INDICES[index].formula
    assert report.outcomes[0].bands is not None
    assert {role: used.band for role, used in report.outcomes[0].bands.items()} == {
        role: BANDS[role] for role in INDICES[index].roles
    }


@pytest.mark.parametrize("index", LITERATURE)
def test_the_formula_that_is_recorded_is_the_one_that_is_computed(index: str) -> None:
    rng = np.random.default_rng(2)
    bands = {name: rng.uniform(0.01, 1.0, 50) for name in BANDS}
    recorded = eval(INDICES[index].formula.replace("^", "**"), {"sqrt": np.sqrt}, bands)
    np.testing.assert_allclose(recorded, LITERATURE[index](*bands.values()), rtol=1e-12)


def test_two_indices_of_a_flight_share_a_folder(tmp_path: Path) -> None:
    bands = stored(0.0001, 0.0)
    source = write_tif(tmp_path / "x.tif", bands)
    for index in LITERATURE:
        fly(tmp_path, source, index, bands=BANDS, scale=0.0001)
    for index in LITERATURE:
        report = fly(tmp_path, source, index, bands=BANDS, scale=0.0001)
        assert report.outcomes[0].cached
        assert_index(report, index, expected(index, bands, 0.0001, 0.0), tmp_path)


def test_an_index_of_a_band_that_the_sensor_lacks_is_refused(tmp_path: Path) -> None:
    source = write_tif(tmp_path / "x.tif", [np.full((9, 9), 100 * i, "uint16") for i in range(1, 5)])
    (outcome,) = fly(tmp_path, source, "ndre", sensor="naip").outcomes
    assert outcome.error is not None
    assert outcome.error.code == "band_missing"
    assert [word for word in ("naip", "rededge") if word not in outcome.error.message] == []


def test_declared_bands_that_lack_the_indexs_are_refused(tmp_path: Path) -> None:
    source = write_tif(tmp_path / "x.tif", stored(0.0001, 0.0))
    with pytest.raises(ManifestRefused, match="`bands` does not say which band is rededge"):
        fly(tmp_path, source, "ndre", bands={"red": 2, "nir": 4})


@pytest.mark.parametrize("index", ["NDVI", "evi", "", 1, None, ["ndvi"], {"ndvi": 1}])
def test_an_unknown_index_is_refused_with_the_known_ones(index: Any, tmp_path: Path) -> None:
    source = write_tif(tmp_path / "x.tif", stored(0.0001, 0.0))
    with pytest.raises(ManifestRefused) as refused:
        fly(tmp_path, source, index, bands=BANDS)
    assert refused.value.code == "manifest_invalid"
    assert all(name in str(refused.value) for name in LITERATURE)
