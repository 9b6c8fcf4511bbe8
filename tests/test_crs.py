"""Whether a file's CRS is the declared one: in every wording of the same, in none of a neighbour."""

import pytest
import rasterio.crs
from pyproj import CRS
from pyproj.enums import WktVersion

from flights.crs import is_epsg, is_same, name_of

WORDINGS = [WktVersion.WKT2_2019, WktVersion.WKT1_GDAL, WktVersion.WKT1_ESRI]


def wkt(crs: str, version: WktVersion = WktVersion.WKT2_2019) -> str:
    return CRS.from_user_input(crs).to_wkt(version)


@pytest.mark.parametrize("version", WORDINGS)
@pytest.mark.parametrize("epsg", [32615, 32715, 26915, 6344, 25832, 4326, 4269, 3857, 27700, 2154, 28992, 31370, 2264])
def test_a_crs_is_its_code_in_every_wording(epsg: int, version: WktVersion) -> None:
    assert is_epsg(wkt(f"EPSG:{epsg}", version), epsg)


@pytest.mark.parametrize("epsg", [32615, 26915, 25832, 4326, 3857, 27700, 28992, 31370])
def test_a_crs_is_its_code_as_rasterio_hands_it_over(epsg: int) -> None:
    assert is_epsg(rasterio.crs.CRS.from_epsg(epsg).to_wkt(), epsg)


@pytest.mark.parametrize(
    ("crs", "epsg"),
    [
        ("OGC:CRS84", 4326),  # longitude first
        ("+proj=longlat +datum=WGS84", 4326),
        ("+proj=utm +zone=15 +datum=WGS84", 32615),
        ("+proj=utm +zone=15 +ellps=WGS84", 32615),  # a bare ellipsoid
        ("+proj=utm +zone=15 +south +datum=WGS84", 32715),
        ("ESRI:102100", 3857),
        ("EPSG:32615+5773", 32615),  # with heights above EGM96
        ("EPSG:27700+5701", 27700),
        ("EPSG:7405", 27700),
        ("EPSG:7405", 7405),  # the compound itself
        ("EPSG:9518", 9518),
        ("EPSG:9518", 4326),
    ],
)
def test_the_same_system_in_other_words(crs: str, epsg: int) -> None:
    assert is_epsg(wkt(crs), epsg)


@pytest.mark.parametrize("version", WORDINGS)
@pytest.mark.parametrize(
    ("crs", "epsg"),
    [
        ("EPSG:32615", 32614),  # the next zone
        ("EPSG:32615", 32715),  # the other hemisphere
        ("EPSG:32615", 26915),  # another datum
        ("EPSG:26915", 32615),
        ("EPSG:26915", 26715),
        ("EPSG:26915", 6344),  # another realisation
        ("EPSG:25832", 32632),
        ("EPSG:32615", 4326),
        ("EPSG:4326", 4269),
        ("EPSG:4326", 3857),
        ("EPSG:3857", 3395),
        ("EPSG:3857", 4326),
        ("EPSG:2264", 32119),  # feet and metres
        ("+proj=utm +zone=15 +datum=WGS84 +units=us-ft", 32615),
        ("+proj=utm +zone=15 +ellps=GRS80", 32615),
        ("+proj=tmerc +lon_0=-93 +k=0.9996 +x_0=600000 +datum=WGS84", 32615),  # a shifted UTM
        ("EPSG:32615+5773", 32614),
    ],
)
def test_a_neighbour_is_refused(crs: str, epsg: int, version: WktVersion) -> None:
    assert not is_epsg(wkt(crs, version), epsg)


def test_a_name_does_not_make_a_crs() -> None:
    """An EPSG code or a name in the WKT is worth nothing where the parameters are others."""
    moved = wkt("EPSG:32615", WktVersion.WKT1_GDAL).replace('"central_meridian",-93', '"central_meridian",-92')
    assert moved != wkt("EPSG:32615", WktVersion.WKT1_GDAL)
    assert not is_epsg(moved, 32615)


@pytest.mark.parametrize("text", ["", "x", "PROJCS[", 'LOCAL_CS["site grid",UNIT["metre",1]]'])
def test_what_is_no_crs_is_no_epsg_code(text: str) -> None:
    assert not is_epsg(text, 32615)


@pytest.mark.parametrize("epsg", [0, 1, 99999, 999999, 5773])
def test_a_code_that_is_no_map_crs_is_nobodys(epsg: int) -> None:
    assert not is_epsg(wkt("EPSG:32615"), epsg)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (wkt("EPSG:32615"), wkt("EPSG:32615"), True),
        (wkt("EPSG:32615"), wkt("EPSG:32615", WktVersion.WKT1_GDAL), True),
        (wkt("EPSG:4326"), wkt("OGC:CRS84"), True),
        (wkt("EPSG:32615"), wkt("EPSG:32616"), False),
        (wkt("EPSG:32615"), wkt("EPSG:26915"), False),
        (wkt("EPSG:32615"), "", False),
        ("", wkt("EPSG:32615"), False),
    ],
)
def test_two_crs(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) is same


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (wkt("EPSG:32615"), ["EPSG:32615", "WGS 84 / UTM zone 15N"]),
        (wkt("EPSG:26915", WktVersion.WKT1_ESRI), ["EPSG:26915"]),
        (wkt("+proj=tmerc +lon_0=-93 +k=0.9996 +x_0=600000 +datum=WGS84"), ["unknown", "without an EPSG code"]),
        ("PROJCS[nonsense", ["PROJCS[nonsense"]),
    ],
)
def test_a_crs_in_a_few_words(text: str, named: list[str]) -> None:
    for part in named:
        assert part in name_of(text)
    assert len(name_of(text)) < 120
