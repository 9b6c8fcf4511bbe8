"""Quality bands through a whole flight: only ground that was seen remains, and a mask that does not fit is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from flights.errors import ManifestRefused
from flights.report import FlightReport, TileOutcome, TileState
from tests.inprocess import run_flight, tools_for
from tests.processes import pixels
from tests.synthetic import manifest, place, write_tif

HEIGHT, WIDTH = 65, 97
Array = NDArray[Any]

# What the agencies publish of each, typed in again: bits of QA_PIXEL, values of SCL, bands of UDM2.
QA_PIXEL = {"fill": 0, "dilated_cloud": 1, "cirrus": 2, "cloud": 3, "cloud_shadow": 4, "snow": 5, "water": 7}
SCL = {
    "fill": {0}, "defective": {1}, "dark": {2}, "cloud_shadow": {3}, "water": {6}, "cloud": {8, 9}, "cirrus": {10},
    "snow": {11},
}  # fmt: skip
UDM2 = {"snow": 2, "cloud_shadow": 3, "light_haze": 4, "heavy_haze": 5, "cloud": 6, "unusable": 8}
KEPT_BY_DEFAULT = {"water", "dark"}

# Of Landsat 8 scenes as they are: most pixels have one of these. A cloud of middling confidence has no bit of its own.
QA_SEEN = {
    1: "fill", 21824: "", 21890: "dilated_cloud", 21952: "water", 22080: "", 22144: "water", 22280: "cloud",
    23888: "cloud_shadow", 23952: "cloud_shadow", 30048: "snow", 54596: "cirrus",
}  # fmt: skip


# ---------------------------------------------------------------- flights of one tile


def bands_of(shape: tuple[int, int], seed: int = 4, low: int = 8000) -> dict[str, Array]:
    """Red and NIR whose reflectance is positive under every offset there is."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(low, 30_000, shape).astype("uint16") for name in ("red", "nir")}


def expected_ndvi(bands: Mapping[str, Array], scale: float, offset: float, removed: Array) -> NDArray[np.float64]:
    r, n = (bands[name].astype(np.float64) * scale + offset for name in ("red", "nir"))
    empty = removed | (bands["red"] == 0) | (bands["nir"] == 0)
    return np.where(empty, np.nan, (n - r) / (n + r))


def refine(coarse: Array, factor: int, shape: tuple[int, int]) -> Array:
    """The coarse pixel that each fine one lies in."""
    rows, cols = (np.arange(size) // factor for size in shape)
    fine: Array = coarse[np.ix_(rows, cols)]
    return fine


def files(folder: Path, bands: Mapping[str, Array], mask: Path | str, **options: Any) -> dict[str, str]:
    """Red and NIR as a file each, and a mask beside them."""
    paths = {name: str(write_tif(folder / f"{name}.tif", [values], **options)) for name, values in bands.items()}
    return paths | {"mask": str(mask)}


def fly(
    folder: Path, source: object, sensor: str | None = "sentinel-2-l2a", window_bytes: int = 2**26, **declared: Any
) -> FlightReport:
    declared |= {"sensor": sensor} if sensor else {}
    body = manifest("F", [{"tile_id": "t", "src_uri": source}], out_uri="out", **declared)
    return run_flight(body, folder, tools_for(folder / "state", window_bytes=window_bytes), composite="never")


def assert_ndvi(report: FlightReport, expected: NDArray[np.float64]) -> None:
    (outcome,) = report.outcomes
    assert outcome.state in (TileState.DONE, TileState.REVIEW), outcome.error
    np.testing.assert_allclose(pixels(outcome.dst_uri), expected, rtol=0, atol=1e-6, equal_nan=True)
    assert outcome.stats is not None
    assert outcome.stats.count == int(np.isfinite(expected).sum())


def scl_like(shape: tuple[int, int], seed: int = 6) -> Array:
    return np.random.default_rng(seed).integers(0, 12, shape).astype("uint8")


def half(shape: tuple[int, int], factor: int = 2) -> tuple[int, int]:
    return -(-shape[0] // factor), -(-shape[1] // factor)


def coarser(factor: float) -> Affine:
    return place() @ Affine.scale(factor)


# ---------------------------------------------------------------- Landsat: bits


@pytest.mark.parametrize("kept", [None, [], ["cloud"], ["cloud", "cloud_shadow"], ["water"], ["fill", "snow"]])
def test_bits_of_qa_pixel(kept: list[str] | None, tmp_path: Path) -> None:
    bands = bands_of((HEIGHT, WIDTH))
    qa = np.random.default_rng(5).integers(0, 2**16, (HEIGHT, WIDTH)).astype("uint16")
    mask = write_tif(tmp_path / "qa.tif", [qa])
    declared: dict[str, Any] = {} if kept is None else {"mask_classes": kept}
    report = fly(tmp_path, files(tmp_path, bands, mask), "landsat-c2-l2", **declared)
    classes = [c for c in QA_PIXEL if c not in KEPT_BY_DEFAULT] if kept is None else kept
    removed = np.zeros(qa.shape, bool)
    for name in classes:
        removed |= (qa >> QA_PIXEL[name]) % 2 == 1
    assert_ndvi(report, expected_ndvi(bands, 0.0000275, -0.2, removed))


def test_only_clear_ground_and_water_remain_of_a_landsat_scene(tmp_path: Path) -> None:
    qa = np.array([list(QA_SEEN)], "uint16")
    bands = bands_of(qa.shape)
    mask = write_tif(tmp_path / "qa.tif", [qa])
    report = fly(tmp_path, files(tmp_path, bands, mask), "landsat-c2-l2")
    remains = np.isfinite(pixels(report.outcomes[0].dst_uri))[0].tolist()
    assert dict(zip(QA_SEEN, remains, strict=True)) == {value: name in ("", "water") for value, name in QA_SEEN.items()}


# ---------------------------------------------------------------- Sentinel-2: values, coarser than the bands


@pytest.mark.parametrize("shape", [(64, 96), (65, 97), (64, 97), (65, 96), (1, 1), (2, 1), (1, 97)])
@pytest.mark.parametrize("factor", [1, 2, 3, 6])
def test_scl_on_a_coarser_grid(shape: tuple[int, int], factor: int, tmp_path: Path) -> None:
    bands, scl = bands_of(shape), scl_like(half(shape, factor))
    mask = write_tif(tmp_path / "scl.tif", [scl], transform=coarser(factor))
    report = fly(tmp_path, files(tmp_path, bands, mask))
    gone = set().union(*(values for name, values in SCL.items() if name not in KEPT_BY_DEFAULT))
    removed = refine(np.isin(scl, list(gone)), factor, shape)
    assert_ndvi(report, expected_ndvi(bands, 0.0001, -0.1, removed))


@pytest.mark.parametrize("kept", [[], *([name] for name in SCL), ["cloud", "water"]])
@pytest.mark.parametrize("sensor", ["sentinel-2-l2a", "sentinel-2-l2a-harmonised"])
def test_classes_of_scl_by_name(sensor: str, kept: list[str], tmp_path: Path) -> None:
    shape = (HEIGHT, WIDTH)
    bands, scl = bands_of(shape), scl_like(half(shape))
    mask = write_tif(tmp_path / "scl.tif", [scl], transform=coarser(2))
    report = fly(tmp_path, files(tmp_path, bands, mask), sensor, mask_classes=kept)
    removed = refine(np.isin(scl, [v for name in kept for v in SCL[name]]), 2, shape)
    assert_ndvi(report, expected_ndvi(bands, 0.0001, -0.1 if sensor == "sentinel-2-l2a" else 0.0, removed))


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize(
    "layout",
    [
        {"blockysize": 7},  # strips of windows that begin at odd rows
        {"blockysize": 1},
        {"tiled": True, "blockxsize": 272, "blockysize": 208},  # windows that begin within a coarse column, too
        {"tiled": True, "blockxsize": 16, "blockysize": 16},
    ],
)
def test_windows_that_begin_within_a_coarse_pixel(layout: dict[str, Any], factor: int, tmp_path: Path) -> None:
    shape = (431, 613)
    bands, scl = bands_of(shape), scl_like(half(shape, factor))
    mask = write_tif(tmp_path / "scl.tif", [scl], transform=coarser(factor))
    report = fly(tmp_path, files(tmp_path, bands, mask, **layout), window_bytes=2**20, mask_classes=["cloud", "dark"])
    removed = refine(np.isin(scl, [8, 9, 2]), factor, shape)
    assert_ndvi(report, expected_ndvi(bands, 0.0001, -0.1, removed))


# ---------------------------------------------------------------- Planet: bands


@pytest.mark.parametrize("kept", [None, [], ["cloud"], ["light_haze", "unusable"]])
@pytest.mark.parametrize(("sensor", "count", "red", "nir"), [("planetscope-4b", 4, 3, 4), ("planetscope-8b", 8, 6, 8)])
def test_bands_of_udm2(sensor: str, count: int, red: int, nir: int, kept: list[str] | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    shape = (HEIGHT, WIDTH)
    stack = list(rng.integers(100, 9000, (count, *shape)).astype("uint16"))
    stack[red - 1][:2] = 0
    # clear, snow, shadow, light haze, heavy haze, cloud are 0 or 1; then a confidence in per cent, and UDM1's bits
    udm = (rng.random((8, *shape)) < 0.1).astype("uint8")
    udm[6] = rng.integers(0, 101, shape)
    udm[7] = np.where(rng.random(shape) < 0.1, rng.integers(1, 256, shape), 0)
    image, mask = write_tif(tmp_path / "x.tif", stack), write_tif(tmp_path / "x_udm2.tif", list(udm))
    source = {"red": str(image), "nir": str(image), "mask": str(mask)}
    declared: dict[str, Any] = {} if kept is None else {"mask_classes": kept}
    report = fly(tmp_path, source, sensor, **declared)
    removed = np.zeros(shape, bool)
    for name in UDM2 if kept is None else kept:
        removed |= udm[UDM2[name] - 1] != 0
    bands = {"red": stack[red - 1], "nir": stack[nir - 1]}
    assert_ndvi(report, expected_ndvi(bands, 0.0001, 0.0, removed))


# ---------------------------------------------------------------- what is declared


def test_a_tiles_classes_win_over_its_flights(tmp_path: Path) -> None:
    shape = (HEIGHT, WIDTH)
    bands, scl = bands_of(shape), scl_like(shape)
    source = files(tmp_path, bands, write_tif(tmp_path / "scl.tif", [scl]))
    tiles = [{"tile_id": "a", "src_uri": source}, {"tile_id": "b", "src_uri": source, "mask_classes": ["snow"]}]
    body = manifest("F", tiles, sensor="sentinel-2-l2a", mask_classes=["cloud"], out_uri="out")
    report = run_flight(body, tmp_path, composite="never")
    for outcome, gone in zip(report.outcomes, [{8, 9}, {11}], strict=True):
        expected = expected_ndvi(bands, 0.0001, -0.1, np.isin(scl, list(gone)))
        np.testing.assert_allclose(pixels(outcome.dst_uri), expected, rtol=0, atol=1e-6, equal_nan=True)


def test_other_classes_make_a_product_stale(tmp_path: Path) -> None:
    bands, scl = bands_of((9, 9)), scl_like((9, 9))
    source = files(tmp_path, bands, write_tif(tmp_path / "scl.tif", [scl]))
    first = fly(tmp_path, source, mask_classes=["cloud"]).outcomes[0]
    again = fly(tmp_path, source, mask_classes=["cloud"]).outcomes[0]
    other = fly(tmp_path, source, mask_classes=["snow"]).outcomes[0]
    assert [o.cached for o in (first, again, other)] == [False, True, False]
    write_tif(tmp_path / "scl.tif", [scl + 1])
    assert not fly(tmp_path, source, mask_classes=["snow"]).outcomes[0].cached


@pytest.mark.parametrize(
    ("sensor", "classes", "with_mask", "words"),
    [
        ("sentinel-2-l2a", ["clouds"], True, ["clouds", "cloud_shadow", "sentinel-2-l2a"]),
        ("sentinel-2-l2a", ["dilated_cloud"], True, ["dilated_cloud", "cirrus"]),
        ("landsat-c2-l2", ["cloud", "haze"], True, ["haze", "dilated_cloud"]),
        ("sentinel-2-l2a", ["cloud"], False, ['"mask"', "src_uri"]),
        ("micasense-altum", None, True, ["micasense-altum", "has none"]),
        (None, None, True, ["sensor"]),
        (None, ["cloud"], True, ["sensor"]),
    ],
)
def test_what_no_mask_can_mean_is_refused_before_any_work(
    sensor: str | None, classes: list[str] | None, with_mask: bool, words: list[str], tmp_path: Path
) -> None:
    source = files(tmp_path, bands_of((9, 9)), write_tif(tmp_path / "m.tif", [scl_like((9, 9))]))
    if not with_mask:
        del source["mask"]
    declared: dict[str, Any] = {} if classes is None else {"mask_classes": classes}
    with pytest.raises(ManifestRefused) as refused:
        fly(tmp_path, source, sensor, **declared)
    assert refused.value.code == "manifest_invalid"
    assert [word for word in ["'t'", *words] if word not in str(refused.value)] == []
    assert not (tmp_path / "out").exists()


def test_classes_for_one_file_are_refused(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "x.tif", list(bands_of((9, 9)).values()) * 2)
    with pytest.raises(ManifestRefused, match="mask_classes"):
        fly(tmp_path, str(path), "planetscope-4b", mask_classes=["cloud"])


# ---------------------------------------------------------------- masks that do not fit

Change = Callable[[Path, Array], Path]


def _at(transform: Affine, **options: Any) -> Change:
    return lambda folder, scl: write_tif(folder / "m.tif", [scl], transform=transform, **options)


def _cut(rows: int, cols: int) -> Change:
    def change(folder: Path, scl: Array) -> Path:
        cut = np.pad(scl, ((0, max(rows, 0)), (0, max(cols, 0))))
        return write_tif(folder / "m.tif", [cut[: rows or None, : cols or None] if min(rows, cols) < 0 else cut])

    return change


MISFITS: dict[str, tuple[Change, str]] = {
    "half a pixel east": (_at(place() @ Affine.translation(0.5, 0)), "grid_mismatch"),
    "a pixel south": (_at(place(0, 1)), "grid_mismatch"),
    "a fiftieth of a pixel south": (_at(place() @ Affine.translation(0, 0.02)), "grid_mismatch"),
    "pixels a thousandth larger": (_at(coarser(1.001)), "grid_mismatch"),
    "pixels half as large again": (_at(coarser(1.5)), "grid_mismatch"),
    "finer": (_at(coarser(0.5)), "grid_mismatch"),
    "upside down": (_at(place(0, HEIGHT) @ Affine.scale(1, -1)), "grid_mismatch"),
    "a row fewer": (_cut(-1, 0), "grid_mismatch"),
    "a column more": (_cut(0, 1), "grid_mismatch"),
    "another zone": (_at(place(), crs="EPSG:32616"), "crs_mismatch"),
    "no CRS": (_at(place(), crs=None), "crs_missing"),
    "floats": (lambda folder, scl: write_tif(folder / "m.tif", [scl.astype("float32")]), "band_contradiction"),
    "not a raster": (lambda folder, scl: _text(folder / "m.tif"), "source_not_raster"),
    "not there": (lambda folder, scl: folder / "m.tif", "source_missing"),
}


def _text(path: Path) -> Path:
    path.write_text("<html>404</html>")
    return path


@pytest.mark.parametrize(("change", "code"), MISFITS.values(), ids=MISFITS)
def test_a_mask_that_does_not_fit_is_refused(change: Change, code: str, tmp_path: Path) -> None:
    shape = (HEIGHT, WIDTH)
    mask = change(tmp_path, scl_like(shape))
    outcome = fly(tmp_path, files(tmp_path, bands_of(shape), mask)).outcomes[0]
    assert_failed(outcome, code, str(mask))


def assert_failed(outcome: TileOutcome, code: str, uri: str) -> None:
    assert outcome.state is TileState.FAILED, outcome.stats
    assert outcome.error is not None
    assert outcome.error.code == code, outcome.error.message
    assert uri in outcome.error.message
    assert not Path(outcome.dst_uri).exists()


@pytest.mark.parametrize("size", [(32, 48), (33, 48), (34, 49), (33, 50)])
def test_a_coarser_mask_of_the_wrong_size_is_refused(size: tuple[int, int], tmp_path: Path) -> None:
    mask = write_tif(tmp_path / "m.tif", [scl_like(size)], transform=coarser(2))
    outcome = fly(tmp_path, files(tmp_path, bands_of((HEIGHT, WIDTH)), mask)).outcomes[0]
    assert_failed(outcome, "grid_mismatch", str(mask))


def test_a_mask_coarser_in_one_direction_only_is_refused(tmp_path: Path) -> None:
    mask = write_tif(tmp_path / "m.tif", [scl_like((33, 97))], transform=place() @ Affine.scale(1, 2))
    outcome = fly(tmp_path, files(tmp_path, bands_of((HEIGHT, WIDTH)), mask)).outcomes[0]
    assert_failed(outcome, "grid_mismatch", str(mask))


DEGREES = Affine(2e-7, 0, -93.0, 0, -2e-7, 42.0)  # about 2 cm


@pytest.mark.parametrize(
    "wrong",
    [DEGREES @ Affine.scale(1.05), DEGREES @ Affine.scale(1.9), DEGREES @ Affine.translation(4, 4)],
    ids=["pixels a twentieth larger", "pixels almost twice as large", "four pixels south-east"],
)
def test_a_misfit_is_measured_in_pixels_not_in_degrees(wrong: Affine, tmp_path: Path) -> None:
    size = (HEIGHT, WIDTH)
    placed = {"crs": "EPSG:4326", "transform": DEGREES}
    wrong_size = half(size) if wrong.a > 1.5 * DEGREES.a else size
    mask = write_tif(tmp_path / "m.tif", [scl_like(wrong_size)], crs="EPSG:4326", transform=wrong)
    source = files(tmp_path, bands_of(size), mask, **placed)
    body = manifest("F", [{"tile_id": "t", "src_uri": source, "epsg": 4326}], sensor="sentinel-2-l2a", out_uri="out")
    assert_failed(run_flight(body, tmp_path, composite="never").outcomes[0], "grid_mismatch", str(mask))


def test_a_mask_with_too_few_bands_is_refused(tmp_path: Path) -> None:
    """UDM, the first generation, is one band of bits."""
    image = write_tif(tmp_path / "x.tif", list(bands_of((9, 9)).values()) * 2)
    mask = write_tif(tmp_path / "x_udm.tif", [np.zeros((9, 9), "uint8")])
    source = {"red": str(image), "nir": str(image), "mask": str(mask)}
    outcome = fly(tmp_path, source, "planetscope-4b").outcomes[0]
    assert_failed(outcome, "band_contradiction", str(mask))


def test_a_corrupt_mask_is_refused(tmp_path: Path) -> None:
    mask = write_tif(tmp_path / "m.tif", [scl_like((HEIGHT, WIDTH))], compress="deflate")
    raw = bytearray(mask.read_bytes())
    with rasterio.open(mask) as file:
        start = int(file.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1))
    raw[start : start + 200] = b"\xff" * 200
    mask.write_bytes(raw)
    outcome = fly(tmp_path, files(tmp_path, bands_of((HEIGHT, WIDTH)), mask)).outcomes[0]
    assert_failed(outcome, "source_corrupt", str(mask))


# ---------------------------------------------------------------- what is left


def test_a_tile_all_under_cloud_is_an_honest_empty_product(tmp_path: Path) -> None:
    mask = write_tif(tmp_path / "m.tif", [np.full((HEIGHT, WIDTH), 9, "uint8")])
    report = fly(tmp_path, files(tmp_path, bands_of((HEIGHT, WIDTH)), mask))
    (outcome,) = report.outcomes
    assert outcome.state is TileState.DONE
    assert outcome.stats is not None
    assert (outcome.stats.count, outcome.stats.mean) == (0, None)
    assert any("no valid pixel" in note for note in report.notes)


def test_what_lies_under_cloud_is_not_judged(tmp_path: Path) -> None:
    """Masked pixels are neither implausible nor saturated: nobody uses them."""
    bands = bands_of((HEIGHT, WIDTH))
    scl = np.full((HEIGHT, WIDTH), 4, "uint8")
    scl[:, 40:] = 9
    bands["red"][:, 40:60], bands["nir"][:, 60:] = 10, 65535
    mask = write_tif(tmp_path / "m.tif", [scl])
    (outcome,) = fly(tmp_path, files(tmp_path, bands, mask)).outcomes
    assert outcome.state is TileState.DONE, outcome.review
    assert outcome.quality is not None
    assert (outcome.quality.negative, outcome.quality.saturated) == (0, 0)
    assert outcome.quality.measured == HEIGHT * 40
