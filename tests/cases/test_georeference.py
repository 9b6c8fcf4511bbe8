"""Where a tile lies: CRS in other words, no CRS, rotated, upside down, by points, across the equator."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.rpc import RPC
from rasterio.transform import Affine, from_origin

from flights.report import TileState
from tests.cases.scene import FIELD, SIDE, SOIL, SOIL_NIR, SOIL_RED, Scene, expected, flat, put, reflectance
from tests.synthetic import EPSG, NORTH, PIXEL_M, WEST, place

# One pixel of soil, off centre in both axes, shows where a tile has gone.
MARK_ROW, MARK_COL = 4, 20


def marked() -> Any:
    return put(flat(), {(MARK_ROW, MARK_COL): (SOIL_RED, SOIL_NIR)})


def utm(
    name: str = "WGS 84 / UTM zone 15N",
    geographic: str = "WGS 84",
    datum: str = "WGS_1984",
    spheroid: str = '"WGS 84",6378137,298.257223563',
    meridian: float = -93,
    scale: float = 0.9996,
    easting: float = 500_000,
    unit: str = '"metre",1',
) -> CRS:
    """A transverse Mercator in WKT without any code."""
    return CRS.from_wkt(
        f'PROJCS["{name}",GEOGCS["{geographic}",DATUM["{datum}",SPHEROID[{spheroid}]],PRIMEM["Greenwich",0],'
        f'UNIT["degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],'
        f'PARAMETER["central_meridian",{meridian}],PARAMETER["scale_factor",{scale}],'
        f'PARAMETER["false_easting",{easting}],PARAMETER["false_northing",0],UNIT[{unit}]]'
    )


# ---------------------------------------------------------------- CRS


def test_the_same_crs_in_other_words(tmp_path: Path) -> None:
    """rasterio#2600, conda-forge/rasterio-feedstock#181, developmentseed/rio-stac#40: no code is no reason."""
    worded: dict[str, tuple[Any, int]] = {
        "esri": (utm("WGS_1984_UTM_Zone_15N", "GCS_WGS_1984", "D_WGS_1984"), 32615),
        "unnamed-projection": (utm("field coordinates"), 32615),
        "ellipsoid": (CRS.from_string("+proj=utm +zone=15 +ellps=WGS84 +units=m +no_defs"), 32615),
        "datum": (CRS.from_string("+proj=utm +zone=15 +datum=WGS84 +units=m +no_defs"), 32615),
        "south": (CRS.from_string("+proj=utm +zone=20 +south +datum=WGS84 +units=m +no_defs"), 32720),
        "esri-code": (CRS.from_string("ESRI:102100"), 3857),
        "with-heights": (CRS.from_string("EPSG:32615+5703"), 32615),
        "crs84": (CRS.from_string("OGC:CRS84"), 4326),
        "nad83": (CRS.from_string("+proj=utm +zone=15 +datum=NAD83 +units=m +no_defs"), 26915),
    }
    scene = Scene(tmp_path)
    for tile_id, (crs, epsg) in worded.items():
        at = from_origin(-93.6, 42, 1e-5, 1e-5) if epsg == 4326 else None
        scene.add(tile_id, flat(), {"epsg": epsg}, crs=crs, transform=at)
    found = scene.run(composite="never")
    for tile_id, (_, epsg) in worded.items():
        found.assert_tile(tile_id, np.full((SIDE, SIDE), FIELD))
        assert found.tile(tile_id).crs is not None, epsg


def test_tiles_of_one_crs_in_several_words_make_one_mosaic(tmp_path: Path) -> None:
    """uw-cryo/lidar_tools#35: == on two wordings says no."""
    scene = Scene(tmp_path)
    words = [f"EPSG:{EPSG}", utm("WGS_1984_UTM_Zone_15N", "GCS_WGS_1984", "D_WGS_1984"), utm("field coordinates")]
    for i, crs in enumerate(words):
        scene.add(f"t{i}", flat(), crs=crs, transform=place(i * SIDE))
    assert scene.run().mosaic.valid == 3 * SIDE * SIDE


def test_a_datum_with_another_name_is_named_or_accepted(tmp_path: Path) -> None:
    """NOAA-OWP/ras2fim#102, pyproj4/pyproj#1279: a refusal says what was found, and a product stays in place."""
    kinds = {
        "unnamed": utm(
            "UTM Zone 15, Northern Hemisphere", "Unknown datum based upon the WGS 84 ellipsoid", "Not_specified"
        ),
        "dated": utm("Local UTM 15N", "WGS 84 (G2139)", "World Geodetic System 1984 (G2139)"),
        "shifted": CRS.from_string("+proj=utm +zone=15 +ellps=WGS84 +towgs84=0,0,0 +units=m +no_defs"),
    }
    scene = Scene(tmp_path)
    for tile_id, crs in kinds.items():
        scene.add(tile_id, flat(), crs=crs)
    found = scene.run(composite="never")
    for tile_id in kinds:
        if found.outcome(tile_id).state is TileState.FAILED:
            message = found.refusal(tile_id, f"EPSG:{EPSG}")
            assert "UTM" in message or "unknown" in message
        else:
            found.assert_tile(tile_id, np.full((SIDE, SIDE), FIELD))
            assert found.tile(tile_id).transform == place()


def test_a_crs_that_is_nearly_the_declared_one_is_another(tmp_path: Path) -> None:
    """Hundreds of metres, or one: what differs in a parameter is refused, whatever it is called."""
    nearly: dict[str, Any] = {
        "neighbour": "EPSG:32616",
        "south": "EPSG:32715",
        "nad83": "EPSG:26915",
        "nad27": "EPSG:26715",
        "geographic": "EPSG:4326",
        "web": "EPSG:3857",
        "meridian": utm(meridian=-92.9),
        "zone-16-named-15": utm(meridian=-87),
        "easting": utm(easting=500_001),
        "scale": utm(scale=1),
        "feet": utm(unit='"US survey foot",0.304800609601219'),
        "clarke": utm(spheroid='"Clarke 1866",6378206.4,294.978698213898', datum="North_American_Datum_1927"),
        "engineering": CRS.from_wkt('LOCAL_CS["WGS 84 / UTM zone 15N",UNIT["metre",1]]'),
    }
    scene = Scene(tmp_path)
    for tile_id, crs in nearly.items():
        scene.add(tile_id, flat(), crs=crs)
    found = scene.run(composite="never")
    for tile_id in nearly:
        found.refusal(tile_id, f"EPSG:{EPSG}")


def test_a_tile_without_a_place_is_refused(tmp_path: Path) -> None:
    """raster-foundry/raster-foundry PR#1932, GeoNode/geonode#864, posm/posm#237: it would land nowhere."""
    points = [GroundControlPoint(r, c, WEST + c, NORTH - r) for r, c in ((0, 0), (0, 32), (32, 0), (32, 32))]
    zeros = [0.0] * 20
    rpcs = RPC(
        0, 1, 42, 1, [1.0, *zeros[1:]], zeros, 0, 1, -93, 1, [1.0, *zeros[1:]], zeros, 0, 1, err_bias=0, err_rand=0
    )
    scene = Scene(tmp_path)
    scene.add("no-crs", flat(), crs=None)
    scene.add("nothing", flat(), crs=None, placed=False)
    scene.add("crs-only", flat(), placed=False)
    scene.add("points", flat(), crs=f"EPSG:{EPSG}", placed=False, gcps=points)
    scene.add("model", flat(), crs=None, placed=False, rpcs=rpcs)
    found = scene.run(composite="never")
    found.refusal("no-crs", "CRS", f"EPSG:{EPSG}")
    found.refusal("nothing", "CRS")
    found.refusal("crs-only", "transform")
    found.refusal("points", "control points")
    found.refusal("model", "RPC")


def test_a_crs_beside_the_file_counts(tmp_path: Path) -> None:
    """serapeum-org/pyramids#358: GDAL keeps what a format cannot hold in .aux.xml."""
    scene = Scene(tmp_path)
    path = scene.add("t", marked(), crs=None, placed=False)
    numbers = ", ".join(f"{v!r}" for v in place().to_gdal())
    Path(f"{path}.aux.xml").write_text(
        f"<PAMDataset><SRS>EPSG:{EPSG}</SRS><GeoTransform>{numbers}</GeoTransform></PAMDataset>"
    )
    found = scene.run(composite="never")
    found.assert_tile("t", expected(marked()))
    assert found.tile("t").transform == place()


# ---------------------------------------------------------------- transforms

ROTATED = Affine.translation(WEST, NORTH) * Affine.rotation(30) * Affine.scale(PIXEL_M, -PIXEL_M)
SHEARED = Affine.translation(WEST, NORTH) * Affine.shear(10, 0) * Affine.scale(PIXEL_M, -PIXEL_M)
SOUTH_UP = Affine(PIXEL_M, 0, WEST, 0, PIXEL_M, NORTH - SIDE * PIXEL_M)
MIRRORED = Affine(-PIXEL_M, 0, WEST + SIDE * PIXEL_M, 0, -PIXEL_M, NORTH)
QUARTER = Affine(0, PIXEL_M, WEST, PIXEL_M, 0, NORTH - SIDE * PIXEL_M)


@pytest.mark.parametrize(
    "transform",
    [ROTATED, SHEARED, SOUTH_UP, MIRRORED, QUARTER, Affine(0.5, 0, WEST, 0, -0.25, NORTH)],
    ids=["rotated", "sheared", "south up", "mirrored", "quarter turn", "oblong"],
)
def test_a_tile_keeps_its_place_whichever_way_it_lies(transform: Affine, tmp_path: Path) -> None:
    """rasterio#3066, rasterio#1240: code that takes north-up for granted moves the pixels.

    The composite with a plain neighbour has every pixel in its place, or is refused with the reason.
    """
    scene = Scene(tmp_path)
    scene.add("odd", marked(), transform=transform)
    scene.add("plain", flat(), transform=place(2 * SIDE))
    found = scene.run()
    found.assert_tile("odd", expected(marked()))
    assert found.tile("odd").transform.almost_equals(transform, precision=1e-9)
    mark = transform * (MARK_COL + 0.5, MARK_ROW + 0.5)
    assert found.tile("odd").at(*mark) == pytest.approx(SOIL)
    if found.report.mosaic:
        assert found.mosaic.at(*mark) == pytest.approx(SOIL)
        assert found.mosaic.at(*place(2 * SIDE) * (3.5, 3.5)) == pytest.approx(FIELD)
    else:
        assert any(word in found.mosaic_refusal("odd") for word in ("rotated", "north-up", "pixel size"))


@pytest.mark.parametrize("transform", [SOUTH_UP, MIRRORED], ids=["south up", "mirrored"])
def test_tiles_that_all_lie_the_other_way(transform: Affine, tmp_path: Path) -> None:
    """Two of a kind are one grid; what is composited of them has every pixel in its place."""
    beside = Affine.translation(2 * SIDE * PIXEL_M, 0) * transform
    scene = Scene(tmp_path)
    scene.add("a", marked(), transform=transform)
    scene.add("b", marked(), transform=beside)
    found = scene.run()
    if found.report.mosaic:
        assert found.mosaic.valid == 2 * SIDE * SIDE
        for each in (transform, beside):
            assert found.mosaic.at(*each * (MARK_COL + 0.5, MARK_ROW + 0.5)) == pytest.approx(SOIL)
    else:
        found.mosaic_refusal("north-up")


def test_a_rotation_within_rounding_is_none(tmp_path: Path) -> None:
    """rasterio#2112, rasterio#3280: sines that were meant to be zero are left in a transform; they turn nothing."""
    scene = Scene(tmp_path)
    for i, (b, d) in enumerate([(0.0, -0.0), (3.1e-17, 0.0), (-1e-15, 1e-15), (6.1e-17 * PIXEL_M, 6.1e-17 * PIXEL_M)]):
        scene.add(f"t{i}", flat(), transform=Affine(PIXEL_M, b, WEST + i * SIDE * PIXEL_M, d, -PIXEL_M, NORTH))
    found = scene.run()
    assert found.report.complete
    assert found.mosaic.values.shape == (SIDE, 4 * SIDE)
    assert found.mosaic.valid == 4 * SIDE * SIDE


@pytest.mark.parametrize("kinds", [("Point", "Area"), ("Area", "Point"), ("Point", "Point")])
def test_a_tile_whose_pixels_are_points_is_not_moved_again(kinds: tuple[str, str], tmp_path: Path) -> None:
    """ASFHyP3/hyp3-lib#258, OSGeo/gdal PR#2892: the reader has made the shift of half a pixel already."""
    scene = Scene(tmp_path)
    scene.add("a", marked(), tags={"AREA_OR_POINT": kinds[0]})
    scene.add("b", flat(SOIL_RED, SOIL_NIR), tags={"AREA_OR_POINT": kinds[1]}, transform=place(SIDE))
    found = scene.run()
    assert found.tile("a").transform == place()
    assert found.mosaic.transform == place()
    np.testing.assert_allclose(
        found.mosaic.values, np.hstack([expected(marked()), np.full((SIDE, SIDE), SOIL)]), atol=1e-6
    )


# ---------------------------------------------------------------- degrees, and the ends of the earth


def test_longitude_is_x(tmp_path: Path) -> None:
    """pyproj4/pyproj#350, developmentseed/morecantile#26: EPSG names latitude first, files do not."""
    degree = 1e-5
    west = from_origin(-93.6, 42, degree, degree)
    scene = Scene(tmp_path)
    scene.add("w", marked(), {"epsg": 4326}, crs="EPSG:4326", transform=west)
    scene.add(
        "e", flat(), {"epsg": 4326}, crs="EPSG:4326", transform=from_origin(-93.6 + 32 * degree, 42, degree, degree)
    )
    found = scene.run()
    assert found.tile("w").transform.almost_equals(west, precision=1e-12)
    assert found.tile("w").crs.to_epsg() == 4326
    assert found.mosaic.values.shape == (SIDE, 2 * SIDE)
    assert found.mosaic.valid == 2 * SIDE * SIDE
    np.testing.assert_allclose(
        found.mosaic.bounds, (-93.6, 42 - 32 * degree, -93.6 + 64 * degree, 42), rtol=0, atol=degree / 10
    )
    assert found.mosaic.at(-93.6 + 20.5 * degree, 42 - 4.5 * degree) == pytest.approx(SOIL)


@pytest.mark.parametrize(
    ("degree", "overhang"), [(1e-5, 0), (1e-5, 8), (1e-7, 0), (0.01, 0)], ids=["field", "overhang", "fine", "coarse"]
)
def test_a_flight_across_the_antimeridian(degree: float, overhang: int, tmp_path: Path) -> None:
    """Two tiles that touch on the ground lie 360 degrees apart in numbers: refused for it, or right; never huge."""
    last = from_origin(180 - (SIDE - overhang) * degree, -16.5, degree, degree)
    first = from_origin(-180 + overhang * degree, -16.5, degree, degree)
    scene = Scene(tmp_path)
    scene.add("west", marked(), {"epsg": 4326}, crs="EPSG:4326", transform=last)
    scene.add("east", flat(), {"epsg": 4326}, crs="EPSG:4326", transform=first)
    found = scene.run()
    assert found.report.complete
    for tile_id, transform in (("west", last), ("east", first)):
        assert found.tile(tile_id).transform.almost_equals(transform, precision=1e-12)
    if found.report.mosaic:
        assert found.mosaic.values.size <= 4 * 2 * SIDE * SIDE
        assert found.mosaic.valid == 2 * SIDE * SIDE
    else:
        assert any(word in found.mosaic_refusal() for word in ("extent", "antimeridian", "far apart"))


def test_zones_on_either_side_of_the_antimeridian(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for tile_id, epsg, x in (("z60", 32760, 820_000), ("z1", 32701, 179_000)):
        scene.add(tile_id, flat(), {"epsg": epsg}, crs=f"EPSG:{epsg}", transform=from_origin(x, 8_200_000, 0.5, 0.5))
    found = scene.run()
    assert found.report.complete
    found.mosaic_refusal("32760", "32701")


def test_the_southern_half_in_the_code_of_the_northern(tmp_path: Path) -> None:
    """OpenDroneMap/ODM#935, USGS-EROS/espa-product-formatter#20: northing -2,000,000 and 8,000,000 are one place.

    Tiles of one code make a mosaic, below zero and across it; tiles of two are never merged as numbers.
    """
    north, south = {"epsg": 32620}, {"epsg": 32720}
    scene = Scene(tmp_path)
    for tile_id, crs, x, y in (("a", north, 300_000, -2_000_000), ("b", south, 300_016, 8_000_000)):
        scene.add(tile_id, marked(), crs, crs=f"EPSG:{crs['epsg']}", transform=from_origin(x, y, 0.5, 0.5))
    found = scene.run()
    for tile_id in ("a", "b"):
        found.assert_tile(tile_id, expected(marked()))
    found.mosaic_refusal("32620", "32720")

    for name, top in (("below", -2_000_000), ("across", 8)):
        scene = Scene(tmp_path / name)
        for row in range(2):
            at = from_origin(300_000, top - row * SIDE * 0.5, 0.5, 0.5)
            scene.add(f"t{row}", marked(), north, crs="EPSG:32620", transform=at)
        found = scene.run()
        np.testing.assert_allclose(found.mosaic.values, np.vstack([expected(marked())] * 2), atol=1e-6)
        assert found.mosaic.bounds == (300_000, top - 32, 300_016, top)


def test_a_place_of_odd_numbers_is_kept_to_the_last_bit(tmp_path: Path) -> None:
    odd = from_origin(412_345.678_901_234_5, 4_651_234.567_890_123, 0.054_123_456_7, math.pi / 50)
    scene = Scene(tmp_path)
    scene.add("t", reflectance(), transform=odd)
    assert scene.run(composite="never").tile("t").transform == odd
