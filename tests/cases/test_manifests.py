"""Manifests that would overwrite: one tile another, a tile its source, a name the folder above."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flights.errors import Code, ManifestRefused
from flights.report import TileState
from tests.cases.scene import SOIL_NIR, SOIL_RED, Scene, expected, flat, read_raster
from tests.inprocess import run_flight
from tests.processes import snapshot
from tests.synthetic import manifest, place

SOIL_TILE = flat(SOIL_RED, SOIL_NIR)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Two sources, `src/a.tif` and `src/b.tif`, and no tile yet."""
    made = Scene(tmp_path)
    made.add("a", flat())
    made.add("b", SOIL_TILE, transform=place(32))
    made.tiles.clear()
    return made


def refused(scene: Scene, code: Code, *words: str, **flight: Any) -> str:
    """Why a flight may not start; nothing was written anywhere."""
    before = snapshot(scene.folder)
    with pytest.raises(ManifestRefused) as caught:
        scene.run(**flight)
    after = snapshot(scene.folder)
    after.pop("manifest.json")
    before.pop("manifest.json", None)
    assert after == before
    message = str(caught.value)
    assert caught.value.code is code, message
    for word in words:
        assert word in message
    return message


# ---------------------------------------------------------------- two of one name


def test_two_tiles_of_one_id(scene: Scene) -> None:
    """NOAA-OCM/QNSPECT#8: two of two, and one file on disk."""
    scene.tile("t", "src/a.tif", dst_uri="out/a.tif")
    scene.tile("t", "src/b.tif", dst_uri="out/b.tif")
    refused(scene, Code.TILE_CLASH, "tile_id", "'t'")


def test_the_same_row_twice(scene: Scene) -> None:
    for _ in range(2):
        scene.tile("t", "src/a.tif", dst_uri="out/a.tif")
    refused(scene, Code.TILE_CLASH, "'t'")


@pytest.mark.parametrize(
    "other",
    [
        "out/x.tif",
        "out/./sub/../x.tif",
        "out//x.tif",
        "linked/x.tif",
        "{folder}/out/x.tif",
        "file://{folder}/out/x.tif",
    ],
)
def test_two_tiles_of_one_destination(scene: Scene, other: str) -> None:
    """However the second is spelled: dots, doubled slashes, a linked folder, a URI."""
    (scene.folder / "out" / "sub").mkdir(parents=True)
    (scene.folder / "linked").symlink_to("out")
    scene.tile("first", "src/a.tif", dst_uri="out/x.tif")
    scene.tile("second", "src/b.tif", dst_uri=other.format(folder=scene.folder))
    refused(scene, Code.TILE_CLASH, "dst_uri", "second", "first")


def test_a_destination_that_another_tile_has_by_default(scene: Scene) -> None:
    scene.tile("a", "src/a.tif")
    scene.tile("b", "src/b.tif", dst_uri="out/tiles/a.ndvi.tif")
    refused(scene, Code.TILE_CLASH, "'a'", "'b'")


@pytest.mark.parametrize("name", ["F.ndvi.tif", "F.report.json", "./F.ndvi.tif"])
def test_a_destination_that_the_flight_needs_itself(scene: Scene, name: str) -> None:
    """The composite, or the report, would overwrite the tile."""
    scene.tile("a", "src/a.tif", dst_uri=f"out/{name}")
    refused(scene, Code.TILE_CLASH, "'a'")


def test_names_that_only_look_alike_are_two(scene: Scene) -> None:
    scene.tile("t", "src/a.tif")
    scene.tile("T", "src/b.tif")
    scene.tile("feld ä", "src/a.tif", dst_uri="out/x y.tif")
    scene.tile("feld a", "src/b.tif", dst_uri="out/x%20y.tif")
    found = scene.run(composite="never")
    for tile_id, bands in (("t", flat()), ("T", SOIL_TILE), ("feld ä", flat()), ("feld a", SOIL_TILE)):
        found.assert_tile(tile_id, expected(bands))
    assert len({o.dst_uri for o in found.report.outcomes}) == 4


# ---------------------------------------------------------------- onto an input


@pytest.mark.parametrize(
    "destination",
    [
        "src/a.tif",
        "src/./../src/a.tif",
        "src/link.tif",
        "linked/a.tif",
        "{folder}/src/a.tif",
        "file://{folder}/src/a.tif",
    ],
)
def test_a_tile_onto_its_own_source(scene: Scene, destination: str) -> None:
    """rspatial/terra#760, rasterio#1569, rasterio#539: opened for writing, the input is gone."""
    (scene.folder / "src" / "link.tif").symlink_to("a.tif")
    (scene.folder / "linked").symlink_to("src")
    scene.tile("t", "src/a.tif", dst_uri=destination.format(folder=scene.folder))
    refused(scene, Code.TILE_CLASH, "source", "overwritten")


def test_a_source_that_is_a_link_to_the_destination(scene: Scene) -> None:
    """rspatial/terra#1622: the other way round."""
    (scene.folder / "src" / "link.tif").symlink_to("a.tif")
    scene.tile("t", "src/link.tif", dst_uri="src/a.tif")
    refused(scene, Code.TILE_CLASH, "source")


@pytest.mark.parametrize("source", ["src/b.tif", {"red": "src/a.tif", "nir": "src/b.tif"}])
def test_a_tile_onto_another_ones_source(scene: Scene, source: Any) -> None:
    scene.tile("first", "src/a.tif", dst_uri="src/b.tif")
    scene.tile("second", source)
    refused(scene, Code.TILE_CLASH, "first", "second")


@pytest.mark.parametrize("suffix", [".msk", ".aux.xml"])
def test_a_tile_onto_what_lies_beside_a_source(scene: Scene, suffix: str) -> None:
    """A mask and the notes beside a raster are part of the input: they must not become a product either."""
    beside = scene.folder / "src" / f"a.tif{suffix}"
    beside.write_text("<PAMDataset></PAMDataset>")
    scene.tile("t", "src/b.tif", dst_uri=f"src/a.tif{suffix}")
    scene.tile("u", "src/a.tif")
    refused(scene, Code.TILE_CLASH, "'t'")


def test_a_tile_onto_the_manifest(scene: Scene) -> None:
    """The manifest is an input too: a flight that overwrites it cannot be run again."""
    scene.tile("t", "src/a.tif", dst_uri="manifest.json")
    with pytest.raises(ManifestRefused):
        scene.run()
    assert json.loads((scene.folder / "manifest.json").read_text())["flight_id"] == "F"


@pytest.mark.parametrize("flight_id", ["a", "b"])
def test_the_composite_onto_a_source(scene: Scene, flight_id: str) -> None:
    (scene.folder / "src" / "a.tif").rename(scene.folder / "src" / f"{flight_id}.ndvi.tif")
    scene.tile("t", f"src/{flight_id}.ndvi.tif", dst_uri="out/t.tif")
    refused(scene, Code.TILE_CLASH, "mosaic", "source", out_uri="src", flight_id=flight_id)


def test_a_destination_that_is_a_second_name_of_the_source(scene: Scene) -> None:
    """A hard link cannot be told from a file; what is published replaces the name, so the source stays whole."""
    (scene.folder / "out").mkdir()
    (scene.folder / "out" / "second.tif").hardlink_to(scene.folder / "src" / "a.tif")
    scene.tile("t", "src/a.tif", dst_uri="out/second.tif")
    found = scene.run(composite="never")
    found.assert_tile("t", expected(flat()))


def test_a_destination_that_links_elsewhere(scene: Scene) -> None:
    """What is published replaces a link and doesn't write through it, unless to the very place it names."""
    aside = scene.folder / "elsewhere.txt"
    aside.write_text("keep me")
    (scene.folder / "out").mkdir()
    (scene.folder / "out" / "t.tif").symlink_to(aside)
    scene.tile("t", "src/a.tif", dst_uri="out/t.tif")
    scene.run(composite="never").assert_tile("t", expected(flat()))
    assert aside.read_text() == "keep me"


def test_a_destination_that_cannot_be_written(scene: Scene) -> None:
    (scene.folder / "out" / "folder.tif").mkdir(parents=True)
    (scene.folder / "out" / "file").write_text("a file where a folder is wanted")
    scene.tile("folder", "src/a.tif", dst_uri="out/folder.tif")
    scene.tile("file", "src/a.tif", dst_uri="out/file/t.tif")
    scene.tile("good", "src/b.tif")
    found = scene.run(composite="never")
    for tile_id in ("folder", "file"):
        outcome = found.outcome(tile_id)
        assert outcome.state is TileState.FAILED
        assert outcome.error
        assert outcome.error.code != "internal"
        assert not outcome.error.transient
        assert outcome.dst_uri in outcome.error.message
    found.assert_tile("good", expected(SOIL_TILE))


# ---------------------------------------------------------------- names

ODD_NAMES = [
    "../../escape",
    "/abs/escape",
    "a/b",
    "..\\win",
    "x\0y",
    ".",
    "..",
    "",
    " t ",
    "n" * 300,
    "new\nline",
    "trailing\n",
    "tab\there",
    "a..b",
    "%2e%2e%2fescape",
    "C:",
    "\u202ereversed",
    "-" * 121,
    7,
    None,
    ["t"],
]


@pytest.mark.parametrize("key", ["tile_id", "flight_id", "tenant"])
@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: repr(name)[:20])
def test_names_are_no_paths(scene: Scene, key: str, name: Any) -> None:
    """StarTrail-org/PixelRAG#78, OSGeo/gdal PR#12911: nothing is written outside, and the refusal names the name."""
    if key == "tenant" and name is None:
        return
    flight: Mapping[str, Any] = {} if key == "tile_id" else {key: name}
    scene.tile(name if key == "tile_id" else "ok-1", "src/a.tif")
    scene.tile("ok-2", "src/a.tif", dst_uri="out/ok.tif")
    refused(scene, Code.MANIFEST_INVALID, key, **flight)


@pytest.mark.parametrize("name", ["ok-1", "_", "0", "t 1", "v1.2", "Fläche 7", "n" * 120, "日" * 40, "a_b-c.d"])
def test_names_that_are_names(scene: Scene, name: str) -> None:
    """Inside the output folder and nowhere else."""
    scene.tile(name, "src/a.tif")
    found = scene.run(flight_id=name)
    found.assert_tile(name, expected(flat()))
    assert found.report.mosaic
    top = sorted(p.name for p in scene.folder.iterdir())
    assert top == ["manifest.json", "out", "src", "state"]
    assert sorted(p.name for p in (scene.folder / "out").rglob("*") if p.is_file()) == sorted(
        [f"{name}.ndvi.tif", f"{name}.ndvi.tif", f"{name}.report.json"]
    )


def test_two_flights_in_one_folder(scene: Scene) -> None:
    """Each has its own report and composite, though they share where results go and even a destination."""
    products = {}
    for flight_id, source in (("F1", "a"), ("F2", "b")):
        tiles = [{"tile_id": "t", "src_uri": f"src/{source}.tif", "dst_uri": f"out/{flight_id}-t.tif"}]
        report = run_flight(manifest(flight_id, tiles, out_uri="out"), scene.folder)
        assert report.mosaic
        products[flight_id] = report.mosaic.uri
    assert read_raster(products["F1"]).values[0, 0] == pytest.approx(0.6)
    assert read_raster(products["F2"]).values[0, 0] == pytest.approx(-1 / 3)
    assert (scene.folder / "out" / "F1.report.json").exists()


def test_a_composite_that_cannot_be_written(scene: Scene) -> None:
    """A folder where the composite should go costs the composite, not the flight's answer."""
    (scene.folder / "out" / "F.ndvi.tif").mkdir(parents=True)
    scene.tile("t", "src/a.tif")
    found = scene.run()
    found.assert_tile("t", expected(flat()))
    assert found.report.complete
    found.mosaic_refusal("F.ndvi.tif")
