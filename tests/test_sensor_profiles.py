"""Every sensor profile through a whole flight, held to the makers' public facts, typed in again here.

The oracle works from the reflectances that the stored numbers stand for; nothing of it is read from the product.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp

from flights.report import TileOutcome, TileState
from flights.sensors import profiles
from tests.inprocess import run_flight
from tests.processes import PROJECT, pixels
from tests.synthetic import manifest, write_tif

HEIGHT, WIDTH = 61, 83
B, G, R, RE, N = "blue", "green", "red", "rededge", "nir"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is published of a sensor's files."""

    order: tuple[str, ...]
    # of a stack; empty where each band is a file
    stored: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # by dtype: reflectance = number * scale + offset
    fill: float | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Where nobody knows a scale, raw numbers of 16 bits."""
        return tuple(self.stored) or ("uint16",)


METASHAPE = {"uint16": (1 / 32768, 0.0)}
PIX4D = {"float32": (1.0, 0.0)}
PLANET = {"uint16": (0.0001, 0.0)}
FACTS = {
    "micasense-rededge-mx": Facts((B, G, R, RE, N), METASHAPE | PIX4D),
    "micasense-rededge-mx-raw": Facts((B, G, R, N, RE)),
    "micasense-altum": Facts((B, G, R, RE, N, "lwir"), METASHAPE | PIX4D),
    "micasense-altum-raw": Facts((B, G, R, N, RE, "lwir")),
    "micasense-altum-pt": Facts((B, G, R, RE, N, "lwir", "pan"), METASHAPE),
    "micasense-rededge-p": Facts((B, G, R, RE, N, "pan"), METASHAPE),
    "micasense-rededge-p-raw": Facts((B, G, R, N, RE, "pan")),
    "micasense-dual": Facts(("b444", B, "g531", G, "r650", R, "re705", RE, "re740", N), METASHAPE),
    "odm": Facts((R, G, B, N, RE), PIX4D),
    "odm-no-blue": Facts((R, G, N, RE), PIX4D),
    "parrot-sequoia": Facts((G, R, RE, N), METASHAPE | PIX4D),
    "dji-p4-multispectral": Facts((B, G, R, RE, N)),
    "dji-mavic-3m": Facts((G, R, RE, N)),
    "sentinel-2-l2a": Facts((), {"uint16": (0.0001, -0.1)}, fill=0),
    "sentinel-2-l2a-harmonised": Facts((), {"uint16": (0.0001, 0.0)}, fill=0),
    "landsat-c2-l2": Facts((), {"uint16": (0.0000275, -0.2)}, fill=0),
    "planetscope-4b": Facts((B, G, R, N), PLANET, fill=0),
    "planetscope-8b": Facts(("coastal", B, "green_i", G, "yellow", R, RE, N), PLANET, fill=0),
    "naip": Facts((R, G, B, N)),
}
CASES = [
    *((slug, dtype) for slug, facts in FACTS.items() for dtype in facts.dtypes),
    *((slug, "uint8") for slug in ("naip", "odm", "odm-no-blue", "dji-mavic-3m")),
    *((slug, "uint16") for slug in ("odm", "odm-no-blue")),
]


def test_every_profile_is_covered() -> None:
    assert set(FACTS) == set(profiles())


# ---------------------------------------------------------------- every profile, every dtype


def draw(facts: Facts, dtype: str, seed: int) -> dict[str, NDArray[Any]]:
    """Numbers as a file stores them, of reflectances drawn at random; every band its own, with fill, 0 and both 0."""
    rng = np.random.default_rng(seed)
    scale, offset = facts.stored.get(dtype, (1 / 255 if dtype == "uint8" else 0.0001, 0.0))
    bands = {}
    for name in facts.order or (R, N):
        reflectance = rng.uniform(0.01, 0.95, (HEIGHT, WIDTH))
        number = (reflectance - offset) / scale
        bands[name] = (number if dtype == "float32" else np.rint(number)).astype(dtype)
    bands[R][3, :20] = 0
    bands[N][4, :20] = 0
    for values in bands.values():
        values[5, :20] = 0
    return bands


def expected_ndvi(bands: Mapping[str, NDArray[Any]], facts: Facts, dtype: str) -> NDArray[np.float64]:
    """NDVI of the reflectances that the numbers stand for, NaN where a band holds none."""
    scale, offset = facts.stored.get(dtype, (1.0, 0.0))
    r, n = (bands[name].astype(np.float64) * scale + offset for name in (R, N))
    empty = (bands[R] == 0) & (bands[N] == 0)
    if facts.fill is not None:
        empty |= (bands[R] == facts.fill) | (bands[N] == facts.fill)
    with np.errstate(all="ignore"):
        return np.where(empty, np.nan, (n - r) / (n + r))


def fly(folder: Path, source: object, **declared: Any) -> TileOutcome:
    """What becomes of a flight of one tile."""
    body = manifest("F", [{"tile_id": "t", "src_uri": source}], out_uri="out", **declared)
    return run_flight(body, folder, composite="never").outcomes[0]


def write_source(folder: Path, facts: Facts, bands: Mapping[str, NDArray[Any]], **options: Any) -> object:
    """The files of that layout; what `src_uri` says of them."""
    if facts.order:
        return str(write_tif(folder / "tile.tif", bands, photometric="MINISBLACK", **options))
    return {name: str(write_tif(folder / f"{name}.tif", [bands[name]], **options)) for name in (R, N)}


@pytest.mark.parametrize(("slug", "dtype"), CASES)
def test_a_profile_gives_the_ndvi_of_the_reflectances(slug: str, dtype: str, tmp_path: Path) -> None:
    facts = FACTS[slug]
    bands = draw(facts, dtype, seed=sorted(FACTS).index(slug))
    outcome = fly(tmp_path, write_source(tmp_path, facts, bands), sensor=slug)
    assert outcome.state is TileState.DONE, (outcome.error, outcome.review)
    expected = expected_ndvi(bands, facts, dtype)
    np.testing.assert_allclose(pixels(Path(outcome.dst_uri)), expected, rtol=0, atol=1e-6, equal_nan=True)
    assert outcome.bands is not None
    for role in (R, N):
        used = outcome.bands[role]
        assert used.band == (facts.order.index(role) + 1 if facts.order else 1)
        scale, offset = facts.stored.get(dtype, (1.0, 0.0))
        assert (used.scale, used.offset) == pytest.approx((scale, offset), rel=1e-12)
        assert used.calibrated_by == ("sensor" if dtype in facts.stored else "none")


@pytest.mark.parametrize(
    ("slug", "dtype"), [(slug, dtype) for slug, facts in FACTS.items() if facts.order for dtype in facts.dtypes]
)
def test_a_closing_alpha_band_is_not_counted_and_hides(slug: str, dtype: str, tmp_path: Path) -> None:
    facts = FACTS[slug]
    bands = draw(facts, dtype, seed=7)
    shown = np.random.default_rng(8).random((HEIGHT, WIDTH)) > 0.3
    opaque = 1 if dtype == "float32" else np.iinfo(dtype).max
    source = write_source(tmp_path, facts, bands | {"alpha": (shown * opaque).astype(dtype)}, alpha="UNSPECIFIED")
    with rasterio.open(str(source), "r+") as file:
        file.colorinterp = [*file.colorinterp[:-1], ColorInterp.alpha]
    outcome = fly(tmp_path, source, sensor=slug)
    assert outcome.state is TileState.DONE, (outcome.error, outcome.review)
    expected = np.where(shown, expected_ndvi(bands, facts, dtype), np.nan)
    np.testing.assert_allclose(pixels(Path(outcome.dst_uri)), expected, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("slug", [slug for slug, facts in FACTS.items() if facts.order])
@pytest.mark.parametrize("change", ["one band fewer", "one band more"])
def test_another_number_of_bands_is_refused(slug: str, change: str, tmp_path: Path) -> None:
    bands = draw(FACTS[slug], FACTS[slug].dtypes[0], seed=9)
    if change == "one band more":
        bands["spare"] = bands[R]
    else:
        bands.popitem()
    outcome = fly(tmp_path, write_source(tmp_path, FACTS[slug], bands), sensor=slug)
    assert outcome.error is not None
    assert outcome.error.code == "band_contradiction"
    assert f"{len(bands)} bands" in outcome.error.message
    assert f"{len(FACTS[slug].order)} bands" in outcome.error.message


def test_a_photograph_with_alpha_is_no_aerial_orthophoto(tmp_path: Path) -> None:
    """Writers label the fourth of four bytes alpha unasked: the profile cannot tell, `bands` can."""
    bands = draw(FACTS["naip"], "uint8", seed=10)
    source = str(write_tif(tmp_path / "rgba.tif", bands))
    with rasterio.open(source) as file:
        assert file.colorinterp[3] is ColorInterp.alpha
    refused = fly(tmp_path, source, sensor="naip")
    assert refused.error is not None
    assert refused.error.code == "band_contradiction"
    assert "alpha" in refused.error.message
    assert "`bands`" in refused.error.message
    outcome = fly(tmp_path, source, bands={"red": 1, "nir": 4})
    expected = expected_ndvi(bands, FACTS["naip"], "uint8")
    np.testing.assert_allclose(pixels(Path(outcome.dst_uri)), expected, rtol=0, atol=1e-6, equal_nan=True)


# ---------------------------------------------------------------- the mistakes of docs/sensors.md

CANOPY = {B: 0.03, G: 0.08, R: 0.04, RE: 0.25, N: 0.45}
TRUE_NDVI = 0.837
NANOMETRES = {B: 475.0, G: 560.0, R: 668.0, RE: 717.0, N: 842.0}
MAVIC_NM = {G: 560.0, R: 650.0, RE: 730.0, N: 860.0}
PLANET_NM = {B: 490.0, G: 565.0, R: 665.0, N: 865.0}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A file in one order, taken for another."""

    order: tuple[str, ...]
    declared: Mapping[str, Any]
    shows: float
    nanometres: Mapping[str, float] = field(default_factory=lambda: NANOMETRES)


MISTAKES = {
    "red edge for nir": Mistake((B, G, R, N, RE), {"sensor": "micasense-rededge-mx"}, 0.724),
    "red edge for nir, declared": Mistake((B, G, R, N, RE), {"bands": {"red": 3, "nir": 5}}, 0.724),
    "3 and 5 of an odm file": Mistake((R, G, B, N, RE), {"sensor": "micasense-rededge-mx"}, 0.786),
    "3 and 5 of an odm file, declared": Mistake((R, G, B, N, RE), {"bands": {"red": 3, "nir": 5}}, 0.786),
    "odm order of a rededge": Mistake((B, G, R, RE, N), {"sensor": "odm"}, 0.786),
    "1 and 4 of a rededge, declared": Mistake((B, G, R, RE, N), {"bands": {"red": 1, "nir": 4}}, 0.786),
    "naip order of planet": Mistake((B, G, R, N), {"sensor": "naip"}, 0.875, PLANET_NM),
    "1 and 4 of planet, declared": Mistake((B, G, R, N), {"bands": {"red": 1, "nir": 4}}, 0.875, PLANET_NM),
    "naip order of mavic": Mistake((G, R, RE, N), {"sensor": "naip"}, 0.698, MAVIC_NM),
    "1 and 4 of mavic, declared": Mistake((G, R, RE, N), {"bands": {"red": 1, "nir": 4}}, 0.698, MAVIC_NM),
    "exchanged": Mistake((B, G, N, RE, R), {"sensor": "micasense-rededge-mx"}, -0.837),
    "exchanged, declared": Mistake((B, G, R, RE, N), {"bands": {"red": 5, "nir": 3}}, -0.837),
}
WORDS = {
    "plain": {B: "Blue", G: "Green", R: "Red", RE: "Red edge", N: "NIR"},
    "maker's": {B: "Blue-475", G: "green 560 nm", R: "RED_668", RE: "RedEdge-717", N: "Near Infrared (842)"},
    "odm's": {B: "Blue", G: "Green", R: "Red", RE: "Rededge", N: "NIR"},
}


def canopy(
    folder: Path, order: Sequence[str], scale: float = 0.0001, descriptions: Sequence[str] | None = None
) -> Path:
    """A stack of the worked example's canopy, in that order."""
    bands = [np.full((16, 24), round(CANOPY[name] / scale), "uint16") for name in order]
    return write_tif(folder / "canopy.tif", bands, descriptions=descriptions)


def mean_of(outcome: TileOutcome) -> float:
    assert outcome.stats is not None, outcome.error
    assert outcome.stats.mean is not None, outcome.review
    return outcome.stats.mean


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_description_of_another_band_refuses(mistake: Mistake, words: str, tmp_path: Path) -> None:
    said = [WORDS[words][name] for name in mistake.order]
    source = canopy(tmp_path, mistake.order, descriptions=said)
    outcome = fly(tmp_path, str(source), **mistake.declared)
    assert outcome.state is TileState.FAILED
    assert outcome.error is not None
    assert outcome.error.code == "band_contradiction"
    assert str(source) in outcome.error.message
    assert not Path(outcome.dst_uri).exists()


@pytest.mark.parametrize("tag", ["GDAL's", "a stack's own"])
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_wavelength_of_another_band_refuses(mistake: Mistake, tag: str, tmp_path: Path) -> None:
    source = canopy(tmp_path, mistake.order)
    with rasterio.open(source, "r+") as file:
        for index, name in enumerate(mistake.order, start=1):
            centre = mistake.nanometres[name]
            if tag == "GDAL's":
                file.update_tags(index, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{centre / 1000:.3f}")
            else:
                file.update_tags(index, wavelength=f"{centre:g} nm")
    outcome = fly(tmp_path, str(source), **mistake.declared)
    assert outcome.state is TileState.FAILED
    assert outcome.error is not None
    assert outcome.error.code == "band_contradiction"
    assert " nm" in outcome.error.message


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_file_that_says_nothing_gives_the_number_of_the_page(mistake: Mistake, tmp_path: Path) -> None:
    source = canopy(tmp_path, mistake.order)
    outcome = fly(tmp_path, str(source), **mistake.declared)
    assert mean_of(outcome) == pytest.approx(mistake.shows, abs=5e-4)
    page = (PROJECT / "docs" / "sensors.md").read_text(encoding="utf-8")
    assert f"| {mistake.shows:.3f} |" in page


@pytest.mark.parametrize("said_by", [*WORDS, "wavelengths", "nobody"])
@pytest.mark.parametrize(
    ("order", "slug"),
    [
        ((B, G, R, RE, N), "micasense-rededge-mx"),
        ((B, G, R, N, RE), "micasense-rededge-mx-raw"),
        ((B, G, R, RE, N), "dji-p4-multispectral"),
        ((R, G, B, N, RE), "odm"),
        ((R, G, N, RE), "odm-no-blue"),
        ((G, R, RE, N), "dji-mavic-3m"),
        ((G, R, RE, N), "parrot-sequoia"),
        ((B, G, R, N), "planetscope-4b"),
        ((R, G, B, N), "naip"),
    ],
)
def test_the_right_profile_is_not_contradicted(order: tuple[str, ...], slug: str, said_by: str, tmp_path: Path) -> None:
    said = [WORDS[said_by][name] for name in order] if said_by in WORDS else None
    source = canopy(tmp_path, order, scale=1 / 32768, descriptions=said)
    if said_by == "wavelengths":
        with rasterio.open(source, "r+") as file:
            for index, name in enumerate(order, start=1):
                file.update_tags(index, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{NANOMETRES[name] / 1000}")
    outcome = fly(tmp_path, str(source), sensor=slug)
    assert outcome.state is TileState.DONE, outcome.error
    assert mean_of(outcome) == pytest.approx(TRUE_NDVI, abs=1e-3)


def test_wavelengths_as_the_profiles_give_them_do_not_contradict_their_own_profile(tmp_path: Path) -> None:
    for slug, profile in profiles().items():
        if profile.layout == "bands":
            bands = draw(FACTS[slug], "uint16", seed=3)
            source = write_tif(tmp_path / f"{slug}.tif", bands, descriptions=profile.bands)
            with rasterio.open(source, "r+") as file:
                for index, centre in enumerate(profile.wavelengths_nm, start=1):
                    if centre:
                        file.update_tags(index, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{centre / 1000}")
            outcome = fly(tmp_path, str(source), sensor=slug)
            assert outcome.state is TileState.DONE, outcome.error
            Path(outcome.dst_uri).unlink()


# ---------------------------------------------------------------- offsets


def satellite(folder: Path, stored: tuple[float, float], reflectances: Mapping[str, float] = CANOPY) -> dict[str, str]:
    """Red and NIR as a file each, stored with that scale and offset."""
    scale, offset = stored
    numbers = {name: round((reflectances[name] - offset) / scale) for name in (R, N)}
    return {
        name: str(write_tif(folder / f"{name}.tif", [np.full((16, 24), number, "uint16")]))
        for name, number in numbers.items()
    }


SENTINEL_2 = (0.0001, -0.1)
HARMONISED = (0.0001, 0.0)
LANDSAT = (0.0000275, -0.2)


@pytest.mark.parametrize(
    ("slug", "stored"),
    [("sentinel-2-l2a", SENTINEL_2), ("sentinel-2-l2a-harmonised", HARMONISED), ("landsat-c2-l2", LANDSAT)],
)
def test_a_satellites_offset_is_applied(slug: str, stored: tuple[float, float], tmp_path: Path) -> None:
    outcome = fly(tmp_path, satellite(tmp_path, stored), sensor=slug)
    assert outcome.state is TileState.DONE, outcome.error
    assert mean_of(outcome) == pytest.approx(TRUE_NDVI, abs=1e-3)


def test_an_offset_that_only_the_files_tags_tell_is_applied(tmp_path: Path) -> None:
    source = satellite(tmp_path, LANDSAT)
    for path in source.values():
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = LANDSAT[:1], LANDSAT[1:]
    outcome = fly(tmp_path, source, bands={"red": 1, "nir": 1})
    assert mean_of(outcome) == pytest.approx(TRUE_NDVI, abs=1e-3)
    assert outcome.bands is not None
    assert outcome.bands[N].calibrated_by == "file"


def test_a_profiles_offset_outranks_a_tag_that_claims_another(tmp_path: Path) -> None:
    """Copies whose offset is taken off may still be tagged -0.1."""
    source = satellite(tmp_path, HARMONISED)
    for path in source.values():
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = SENTINEL_2[:1], SENTINEL_2[1:]
    outcome = fly(tmp_path, source, sensor="sentinel-2-l2a-harmonised")
    assert outcome.state is TileState.DONE
    assert mean_of(outcome) == pytest.approx(TRUE_NDVI, abs=1e-3)


@pytest.mark.parametrize(("stored", "shows"), [(LANDSAT, 0.461), (SENTINEL_2, 0.594)])
def test_raw_numbers_with_an_offset_are_reported_as_uncalibrated(
    stored: tuple[float, float], shows: float, tmp_path: Path
) -> None:
    outcome = fly(tmp_path, satellite(tmp_path, stored), bands={"red": 1, "nir": 1})
    assert mean_of(outcome) == pytest.approx(shows, abs=1e-3)
    assert outcome.bands is not None
    assert {used.calibrated_by for used in outcome.bands.values()} == {"none"}


def test_pixels_with_an_offset_under_the_profile_without_show_the_number_of_the_page(tmp_path: Path) -> None:
    outcome = fly(tmp_path, satellite(tmp_path, SENTINEL_2), sensor="sentinel-2-l2a-harmonised")
    assert mean_of(outcome) == pytest.approx(0.594, abs=5e-4)


def test_an_offset_taken_off_twice_is_flagged(tmp_path: Path) -> None:
    outcome = fly(tmp_path, satellite(tmp_path, HARMONISED), sensor="sentinel-2-l2a")
    assert outcome.state is TileState.REVIEW
    assert [r.code for r in outcome.review] == ["implausible_values"]
    assert "offset" in outcome.review[0].message
    assert outcome.quality is not None
    assert outcome.quality.negative == outcome.quality.clipped == outcome.quality.measured == 16 * 24
    assert outcome.stats is not None
    assert (outcome.stats.min, outcome.stats.max) == (1.0, 1.0)  # 1.414, set to the range's end


def test_water_whose_offset_is_taken_off_twice_has_no_value_and_is_flagged(tmp_path: Path) -> None:
    source = satellite(tmp_path, HARMONISED, reflectances={R: 0.06, N: 0.03})
    outcome = fly(tmp_path, source, sensor="sentinel-2-l2a")
    assert outcome.state is TileState.REVIEW
    assert outcome.stats is not None
    assert outcome.stats.count == 0  # never the +0.273 that the formula gives


@pytest.mark.parametrize(("negative", "state"), [(10, TileState.DONE), (11, TileState.REVIEW)])
def test_one_percent_of_negative_reflectance_is_the_limit(negative: int, state: TileState, tmp_path: Path) -> None:
    red, nir = np.full((25, 40), 2000, "uint16"), np.full((25, 40), 5500, "uint16")
    red.flat[:negative] = 900
    source = {
        "red": str(write_tif(tmp_path / "red.tif", [red])),
        "nir": str(write_tif(tmp_path / "nir.tif", [nir])),
    }
    outcome = fly(tmp_path, source, sensor="sentinel-2-l2a")
    assert outcome.quality is not None
    assert (outcome.quality.negative, outcome.state) == (negative, state)


def test_red_and_nir_exchanged_as_files_is_refused_by_their_descriptions(tmp_path: Path) -> None:
    red = write_tif(tmp_path / "a.tif", [np.full((9, 9), 1400, "uint16")], descriptions=["Red"])
    nir = write_tif(tmp_path / "b.tif", [np.full((9, 9), 5500, "uint16")], descriptions=["NIR"])
    wrong = fly(tmp_path, {"red": str(nir), "nir": str(red)}, sensor="sentinel-2-l2a")
    assert wrong.error is not None
    assert wrong.error.code == "band_contradiction"
    assert str(nir) in wrong.error.message
    right = fly(tmp_path, {"red": str(red), "nir": str(nir)}, sensor="sentinel-2-l2a")
    assert mean_of(right) == pytest.approx(TRUE_NDVI, abs=1e-3)


def test_red_and_nir_exchanged_without_a_word_is_noted(tmp_path: Path) -> None:
    source = satellite(tmp_path, SENTINEL_2)
    body = manifest(
        "F", [{"tile_id": "t", "src_uri": {"red": source[N], "nir": source[R]}}], sensor="sentinel-2-l2a", out_uri="out"
    )
    report = run_flight(body, tmp_path, composite="never")
    assert any("red and NIR exchanged" in note for note in report.notes)
    assert mean_of(report.outcomes[0]) == pytest.approx(-TRUE_NDVI, abs=1e-3)


def test_nodata_of_the_file_that_the_manifest_overrules_is_noted(tmp_path: Path) -> None:
    pixels = [np.full((9, 9), value, "uint16") for value in (1400, 5500)]
    source = str(write_tif(tmp_path / "a.tif", pixels, nodata=65535))
    tile = {"tile_id": "t", "src_uri": source, "bands": {"red": 1, "nir": 2}}
    report = run_flight(manifest("F", [tile], nodata="nan", out_uri="out"), tmp_path, composite="never")
    assert report.notes == ("of the files' own tags were overruled: nodata 65535 by the manifest's nan",)
    assert run_flight(manifest("F", [tile], out_uri="out"), tmp_path, composite="never").notes == ()


# ---------------------------------------------------------------- the page


def test_the_page_is_made_from_the_profiles() -> None:
    spec = importlib.util.spec_from_file_location("make_sensors", PROJECT / "docs" / "make_sensors.py")
    assert spec is not None
    assert spec.loader is not None
    make_sensors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_sensors)
    page = make_sensors.PAGE.read_text(encoding="utf-8")
    made = make_sensors.updated(page, make_sensors.PROFILES.read_text(encoding="utf-8"))
    assert made == page, "run `python docs/make_sensors.py`"
