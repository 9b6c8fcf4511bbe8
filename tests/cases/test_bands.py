"""Which band is red and which is NIR: told, held against the file, never taken from a position alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio.shutil
from rasterio.enums import ColorInterp as Colour

from flights.errors import ManifestRefused
from tests.cases.scene import FIELD, SIDE, Scene, expected, flat, write_source
from tests.synthetic import place

EDGE = 1500
NATURAL = {"Blue": 200, "Green": 400, "Red": 800, "NIR": 3200, "Red edge": EDGE}
BY_WAVELENGTH = ("Blue", "Green", "Red", "Red edge", "NIR")
WRONG = (EDGE - 800) / (EDGE + 800)


def stack(*names: str) -> list[Any]:
    return [np.full((SIDE, SIDE), NATURAL[name], "uint16") for name in names]


def described(scene: Scene, tile_id: str, names: tuple[str, ...], col: int = 0, **says: Any) -> None:
    """A tile whose bands are what their names say."""
    scene.add(tile_id, stack(*names), says, descriptions=names, transform=place(col))


def test_two_cameras_and_two_orders_of_bands(tmp_path: Path) -> None:
    """micasense/imageprocessing#176, WebODM/WebODM#1840: position 4 is NIR in one file, red edge in the other."""
    scene = Scene(tmp_path)
    described(scene, "natural", tuple(NATURAL))
    described(scene, "sorted", BY_WAVELENGTH, SIDE)
    by_position = scene.run(composite="never")
    by_position.assert_tile("natural", np.full((SIDE, SIDE), FIELD))
    by_position.refusal("sorted", "band 4", "Red edge", "NIR")

    by_name = scene.run(bands={"red": "Red", "nir": "NIR"})
    for tile_id in ("natural", "sorted"):
        by_name.assert_tile(tile_id, np.full((SIDE, SIDE), FIELD))
    assert not np.isclose(by_name.mosaic.values, WRONG, atol=1e-3).any()


@pytest.mark.parametrize(
    ("red", "nir"), [("red", "nir"), ("RED", "Nir"), ("Red", "near infrared"), ("red_650", "NIR-842")]
)
def test_a_band_is_found_by_any_name_for_its_colour(red: str, nir: str, tmp_path: Path) -> None:
    """sertit/eoreader#246: makers spell alike what is alike, except for capitals, hyphens and wavelengths."""
    scene = Scene(tmp_path)
    described(scene, "t", BY_WAVELENGTH)
    scene.run(composite="never", bands={"red": red, "nir": nir}).assert_tile("t", np.full((SIDE, SIDE), FIELD))


@pytest.mark.parametrize(
    ("descriptions", "names"),
    [
        (("blue", "green", "nir", "red"), ["band 3", "nir"]),
        (("red", "green", "blue", "nir"), ["band 3", "blue"]),
        (("blue", "green", "red", "swir"), ["band 4", "swir"]),
        (("blue", "green", "red edge", "nir"), ["band 3", "red edge"]),
        (("blue", "green", "red", "Alpha"), ["band 4", "alpha"]),
        (("blue", "green", "red", "thermal"), ["band 4", "thermal"]),
        (("blue", "green", "red", "RedEdge-717"), ["band 4", "RedEdge-717"]),
    ],
)
def test_a_description_of_another_colour_refuses(
    descriptions: tuple[str, ...], names: list[str], tmp_path: Path
) -> None:
    """OpenDroneMap/ODM PR#1701: the order changed with the software; every one of these gives a plausible number."""
    scene = Scene(tmp_path)
    scene.add("t", flat(), descriptions=descriptions)
    scene.run(composite="never").refusal("t", *names)


@pytest.mark.parametrize("key", ["CENTRAL_WAVELENGTH_UM", "wavelength"])
def test_a_wavelength_of_another_colour_refuses(key: str, tmp_path: Path) -> None:
    at = {"CENTRAL_WAVELENGTH_UM": (0.475, 0.56, 0.668, 0.717), "wavelength": (475, 560, 668, 717)}[key]
    scene = Scene(tmp_path)
    scene.add("t", flat(), band_tags={i: {key: str(value)} for i, value in enumerate(at, 1)})
    scene.run(composite="never").refusal("t", "band 4", "717 nm")


def test_descriptions_that_name_no_colour_say_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    bands = flat()
    scene.add("t", bands, descriptions=("B2", "B3", "infrared looking", "Band 4 (ramp)"))
    scene.run(composite="never").assert_tile("t", expected(bands))


# ---------------------------------------------------------------- too few bands


def test_a_band_that_is_not_there(tmp_path: Path) -> None:
    """WebODM/WebODM#297, OpenDroneMap/ODM#190, OSGeo/gdal#3329: one band a file, one band a page, a plain photo."""
    scene = Scene(tmp_path)
    scene.add("single", stack("NIR"), descriptions=["NIR"])
    scene.add("photo", stack("Red", "Green", "Blue"), colours=[Colour.red, Colour.green, Colour.blue])
    scene.add("photo-alpha", [*stack("Red", "Green", "Blue"), *stack("Blue")], {"bands": {"red": 1, "nir": 5}})
    pages = scene.add("pages", stack("Blue"))
    for name in ("Green", "Red", "NIR"):
        page = write_source(tmp_path / "page.tif", stack(name))
        rasterio.shutil.copy(page, pages, driver="GTiff", APPEND_SUBDATASET="YES")
    found = scene.run(composite="never")
    found.refusal("single", "1 band")
    found.refusal("photo", "nir", "band 4", "3 bands")
    found.refusal("photo-alpha", "nir", "band 5", "4 bands")
    found.refusal("pages", "1 band")
    assert (found.report.tiles.total, found.report.tiles.failed, found.report.complete) == (4, 4, False)


@pytest.mark.parametrize("band", [0, -1, 1.5, True, "", "4 "])
def test_no_band_has_such_a_number(band: Any, tmp_path: Path) -> None:
    """Position 0 and -1 exist in Python's arrays, and in no file."""
    scene = Scene(tmp_path)
    scene.add("t", flat())
    try:
        scene.run(composite="never", bands={"red": 3, "nir": band}).refusal("t", "nir")
    except ManifestRefused as refused:
        assert "nir" in str(refused)  # noqa: PT017  # either is an answer


def test_red_and_nir_are_two_bands(tmp_path: Path) -> None:
    """(x - x) / (x + x) is 0 everywhere, and looks like a field of gravel."""
    scene = Scene(tmp_path)
    scene.add("names", flat(), {"bands": {"red": "Red", "nir": "red"}}, descriptions=("Blue", "Green", "Red", ""))
    scene.add("mixed", flat(), {"bands": {"red": "Red", "nir": 3}}, descriptions=("Blue", "Green", "Red", ""))
    found = scene.run(composite="never")
    for tile_id in ("names", "mixed"):
        found.refusal(tile_id, "band")
    scene.add("numbers", flat(), {"bands": {"red": 3, "nir": 3}})
    with pytest.raises(ManifestRefused, match="red and nir are both taken from band 3"):
        scene.run(composite="never")


@pytest.mark.parametrize("again", ["src/a.tif", "src/../src/a.tif", "src/link.tif"])
def test_one_file_is_not_both_red_and_nir(again: str, tmp_path: Path) -> None:
    """However it is spelled a second time."""
    write_source(tmp_path / "src" / "a.tif", stack("NIR"))
    (tmp_path / "src" / "link.tif").symlink_to("a.tif")
    scene = Scene(tmp_path)
    scene.tile("t", {"red": "src/a.tif", "nir": again})
    try:
        scene.run(composite="never").refusal("t", "red", "nir")
    except ManifestRefused as refused:
        assert "nir" in str(refused)  # noqa: PT017  # either is an answer


# ---------------------------------------------------------------- a file a band


def test_a_file_a_band(tmp_path: Path) -> None:
    """raster-foundry/raster-foundry#1776: files of one band are a tile where the manifest says which is which."""
    scene = Scene(tmp_path)
    for name in ("Red", "NIR"):
        write_source(tmp_path / "src" / f"{name}.tif", stack(name), descriptions=[name])
    scene.tile("right", {"red": "src/Red.tif", "nir": "src/NIR.tif"})
    scene.tile("exchanged", {"red": "src/NIR.tif", "nir": "src/Red.tif"})
    found = scene.run(composite="never")
    found.assert_tile("right", np.full((SIDE, SIDE), FIELD))
    found.refusal("exchanged", "NIR.tif", "red")


def test_files_of_a_tile_share_one_grid(tmp_path: Path) -> None:
    """20 m beside 10 m, another place, another zone: never read pixel against pixel."""
    red, nir = stack("Red", "NIR")
    write_source(tmp_path / "src" / "red.tif", [red])
    others: dict[str, tuple[Any, dict[str, Any]]] = {
        "coarse": (nir[::2, ::2], {"transform": place() * rasterio.Affine.scale(2)}),
        "moved": (nir, {"transform": place(1)}),
        "half": (nir, {"transform": place() * rasterio.Affine.translation(0.5, 0)}),
        "zone": (nir, {"crs": "EPSG:32616"}),
        "smaller": (nir[:-1], {}),
    }
    scene = Scene(tmp_path)
    for name, (pixels, how) in others.items():
        write_source(tmp_path / "src" / f"{name}.tif", [pixels], **how)
        scene.tile(name, {"red": "src/red.tif", "nir": f"src/{name}.tif"})
    found = scene.run(composite="never")
    for name in others:
        found.refusal(name, f"{name}.tif")


# ---------------------------------------------------------------- sensors


def test_a_sensor_says_the_order_and_the_file_is_held_against_it(tmp_path: Path) -> None:
    """micasense/imageprocessing#176: the same five bands in the order of capture, and in that of wavelength."""
    capture = tuple(NATURAL)
    scene = Scene(tmp_path)
    for order, names in (("sorted", BY_WAVELENGTH), ("capture", capture)):
        for sensor in ("micasense-rededge-mx", "micasense-rededge-mx-raw"):
            described(scene, f"{order}-{sensor}", names, sensor=sensor)
            scene.add(f"silent-{order}-{sensor}", stack(*names), {"sensor": sensor})
    found = scene.run(composite="never")
    for tile_id in ("sorted-micasense-rededge-mx", "capture-micasense-rededge-mx-raw"):
        found.assert_tile(tile_id, np.full((SIDE, SIDE), FIELD))
        found.assert_tile(f"silent-{tile_id}", np.full((SIDE, SIDE), FIELD))
    found.refusal("sorted-micasense-rededge-mx-raw", "red edge", "nir")
    found.refusal("capture-micasense-rededge-mx", "nir", "red edge")


def test_a_sensor_with_another_number_of_bands(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    alpha = np.full((SIDE, SIDE), 65535, "uint16")
    alpha[:4] = 0
    colours = [Colour.gray, *[Colour.undefined] * 4, Colour.alpha]
    scene.add("four", stack("Blue", "Green", "Red", "NIR"))
    scene.add("alpha", [*stack(*BY_WAVELENGTH), alpha], colours=colours)
    scene.add("sixth", [*stack(*BY_WAVELENGTH), alpha])
    found = scene.run(composite="never", sensor="micasense-rededge-mx")
    found.refusal("four", "micasense-rededge-mx", "5 bands", "4 bands")
    found.refusal("sixth", "micasense-rededge-mx", "6 bands")
    wanted = np.full((SIDE, SIDE), FIELD)
    wanted[:4] = np.nan
    found.assert_tile("alpha", wanted)


def test_nobody_says_which_band_is_which(tmp_path: Path) -> None:
    """Four bands are a layout of nothing: the manifest is refused before any work."""
    scene = Scene(tmp_path)
    scene.add("t", flat())
    with pytest.raises(ManifestRefused, match="bands"):
        scene.run(composite="never", sensor=None, bands=None)
    with pytest.raises(ManifestRefused, match="micasense-rededge-mx"):
        scene.run(composite="never", sensor="micasense-rededge-xm")
    assert not (tmp_path / "out").exists()
