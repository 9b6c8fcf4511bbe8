"""Sensor profiles: what the makers' documents say, typed in again here."""

import re

import numpy as np
import pytest

from flights.errors import Code, Refused
from flights.sensors import SensorProfile, find_profile, profiles


@pytest.mark.parametrize(
    ("slug", "count", "red", "nir"),
    [
        ("micasense-rededge-mx", 5, 3, 5),
        ("micasense-rededge-mx-raw", 5, 3, 4),
        ("micasense-altum", 6, 3, 5),
        ("micasense-altum-raw", 6, 3, 4),
        ("micasense-altum-pt", 7, 3, 5),
        ("micasense-rededge-p", 6, 3, 5),
        ("micasense-rededge-p-raw", 6, 3, 4),
        ("micasense-dual", 10, 6, 10),
        ("odm", 5, 1, 4),
        ("odm-no-blue", 4, 1, 3),
        ("parrot-sequoia", 4, 2, 4),
        ("dji-p4-multispectral", 5, 3, 5),
        ("dji-mavic-3m", 4, 2, 4),
        ("planetscope-4b", 4, 3, 4),
        ("planetscope-8b", 8, 6, 8),
        ("naip", 4, 1, 4),
    ],
)
def test_where_red_and_nir_are(slug: str, count: int, red: int, nir: int) -> None:
    profile = find_profile(slug)
    assert profile.layout == "bands"
    assert (len(profile.bands), profile.index_of("red"), profile.index_of("nir")) == (count, red, nir)


@pytest.mark.parametrize(
    ("slug", "dtype", "pixel", "reflectance"),
    [
        ("micasense-rededge-mx", "uint16", 32768, 1.0),
        ("micasense-rededge-mx", "uint16", 65536, 2.0),
        ("micasense-rededge-mx", "float32", 0.25, 0.25),
        ("micasense-dual", "uint16", 16384, 0.5),
        ("parrot-sequoia", "uint16", 32768, 1.0),
        ("sentinel-2-l2a", "uint16", 1000, 0.0),  # BOA_ADD_OFFSET is -1000, QUANTIFICATION_VALUE 10000
        ("sentinel-2-l2a", "uint16", 11000, 1.0),
        ("sentinel-2-l2a-harmonised", "uint16", 10000, 1.0),
        ("landsat-c2-l2", "uint16", 7273, 7273 * 0.0000275 - 0.2),
        ("planetscope-4b", "uint16", 10000, 1.0),
    ],
)
def test_reflectance_of_a_pixel(slug: str, dtype: str, pixel: float, reflectance: float) -> None:
    profile = find_profile(slug)
    assert pixel * profile.scale[dtype] + profile.offset[dtype] == pytest.approx(reflectance, abs=1e-12)


@pytest.mark.parametrize("slug", ["micasense-rededge-mx-raw", "dji-mavic-3m", "dji-p4-multispectral", "naip"])
def test_raw_numbers_have_no_known_scale(slug: str) -> None:
    assert not find_profile(slug).scale


@pytest.mark.parametrize(
    ("slug", "nodata"),
    [("sentinel-2-l2a", 0), ("landsat-c2-l2", 0), ("planetscope-8b", 0), ("naip", None), ("micasense-altum", None)],
)
def test_no_data_of_a_product(slug: str, nodata: float | None) -> None:
    assert find_profile(slug).nodata == nodata


@pytest.mark.parametrize("slug", ["sentinel-2-l2a", "sentinel-2-l2a-harmonised", "landsat-c2-l2"])
def test_satellites_deliver_a_file_a_band(slug: str) -> None:
    profile = find_profile(slug)
    assert profile.layout == "files"
    assert {"red", "nir"} <= set(profile.bands)


@pytest.mark.parametrize("slug", profiles())
def test_every_profile_is_sound(slug: str) -> None:
    profile = profiles()[slug]
    assert profile.slug == slug
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert profile.layout in ("bands", "files")
    assert {"red", "nir"} <= set(profile.bands)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,30}", band) for band in profile.bands)
    assert profile.title
    assert profile.source
    for dtype in profile.scale:
        assert np.dtype(dtype).name == dtype
        assert profile.scale[dtype] > 0
    for name, nanometres in zip(profile.bands, profile.wavelengths_nm, strict=True):
        if nanometres and name.split("-")[0] in ("red", "nir"):
            assert (600 <= nanometres <= 700) == (name.split("-")[0] == "red")
        told = re.fullmatch(r"\w+-([0-9]{3})", name)
        assert told is None or not nanometres or float(told[1]) == nanometres


def test_index_of_a_band_that_is_not_there() -> None:
    assert find_profile("naip").index_of("rededge") is None


@pytest.mark.parametrize(
    ("slug", "near"),
    [
        ("micasense-rededge-mxx", "micasense-rededge-mx"),
        ("micasense-rededge", "micasense-rededge-mx"),
        ("MicaSense-Altum", "micasense-altum"),
        ("sentinel2-l2a", "sentinel-2-l2a"),
        ("nap", "naip"),
        ("landsat-c2l2", "landsat-c2-l2"),
    ],
)
def test_a_misspelt_sensor_is_refused_with_the_nearest(slug: str, near: str) -> None:
    with pytest.raises(Refused) as refused:
        find_profile(slug)
    assert refused.value.code is Code.MANIFEST_INVALID
    assert repr(slug) in str(refused.value)
    assert near in str(refused.value)


@pytest.mark.parametrize("slug", ["", "zzzz", "../sensors", "\0"])
def test_a_sensor_like_no_other_is_refused(slug: str) -> None:
    with pytest.raises(Refused) as refused:
        find_profile(slug)
    assert repr(slug) in str(refused.value)
    assert "did you mean" not in str(refused.value)
    assert "sensors" in str(refused.value)


@pytest.mark.parametrize(
    ("bands", "wavelengths", "scale", "offset"),
    [
        (("red", "nir"), (1.0,), {}, {}),
        (("red", "red"), (1.0, 2.0), {}, {}),
        (("red", "nir"), (1.0, 2.0), {"uint16": 1.0}, {}),
        (("red", "nir"), (1.0, 2.0), {"uint16": 1.0}, {"uint8": 0.0}),
    ],
)
def test_a_profile_refuses_nonsense(
    bands: tuple[str, ...], wavelengths: tuple[float, ...], scale: dict[str, float], offset: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match="profile x"):
        SensorProfile("x", "x", "bands", bands, wavelengths, "x", scale, offset)
