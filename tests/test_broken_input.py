"""Every way an input is broken: one failed tile with a stable code and a message that helps; the others are done.

`pytest -s tests/test_broken_input.py` prints what people are told.
"""

import os
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.transform import Affine

from flights.report import FlightReport, FlightStatus, TileOutcome, TileState
from tests.inprocess import run_flight, tools_for
from tests.processes import assert_pixels
from tests.synthetic import EPSG, manifest, oracle_ndvi, place, write_tif
from tests.synthetic import field as field_of

HEIGHT, WIDTH = 64, 96
MAX_PIXELS, MAX_BLOCK_BYTES = 2_000_000, 2**20
Bands = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Broken:
    """A tile that is broken in one way, and what is said of it."""

    make: Callable[[Path], Any]
    # makes the source below a folder; the tile's `src_uri`, or a whole tile
    code: str
    words: Sequence[str]
    # in the message, beside the name of the file
    named: str = "bad.tif"
    # the file that the message names


def bands(dtype: str = "uint16") -> Bands:
    return field_of(HEIGHT, WIDTH, dtype=dtype)


def written(folder: Path, name: str = "bad.tif", **options: Any) -> Path:
    return write_tif(folder / name, bands(), **options)


def content(raw: bytes) -> Callable[[Path], str]:
    """A file of these bytes."""

    def make(folder: Path) -> str:
        (folder / "bad.tif").write_bytes(raw)
        return str(folder / "bad.tif")

    return make


def sound(**options: Any) -> Callable[[Path], str]:
    """A GeoTIFF that is as it should be, but for its options."""
    return lambda folder: str(written(folder, **options))


def tile(declared: Mapping[str, Any], **options: Any) -> Callable[[Path], dict[str, Any]]:
    """A GeoTIFF with what a tile declares of it."""
    return lambda folder: {"src_uri": str(written(folder, **options)), **declared}


def files(
    change: Callable[[Path, dict[str, str]], dict[str, str] | None], **declared: Any
) -> Callable[[Path], dict[str, Any]]:
    """Red and NIR as a file each, and a mask; then what is changed about them."""

    def make(folder: Path) -> dict[str, Any]:
        there = {name: write_tif(folder / f"{name}.tif", [bands()[name]]) for name in ("red", "nir")}
        there["mask"] = write_tif(folder / "mask.tif", [np.full((HEIGHT, WIDTH), 4, "uint8")])
        source = {name: str(path) for name, path in there.items()}
        return {"sensor": "sentinel-2-l2a-harmonised"} | declared | {"src_uri": change(folder, source) or source}

    return make


# ---------------------------------------------------------------- what is broken


def truncated(folder: Path) -> str:
    path = written(folder, compress="deflate")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return str(path)


def corrupt_block(folder: Path) -> str:
    path = written(folder, compress="deflate", tiled=True, blockxsize=32, blockysize=32)
    with rasterio.open(path) as file:
        start = int(file.get_tag_item("BLOCK_OFFSET_1_1", "TIFF", bidx=3))
    raw = bytearray(path.read_bytes())
    raw[start : start + 64] = b"\xff" * 64
    path.write_bytes(raw)
    return str(path)


def png(folder: Path) -> str:
    with rasterio.open(folder / "x.png", "w", driver="PNG", height=9, width=9, count=3, dtype="uint8") as out:
        out.write(np.ones((3, 9, 9), "uint8"))
    (folder / "x.png").rename(folder / "bad.tif")
    return str(folder / "bad.tif")


def vrt(folder: Path) -> str:
    """A file that makes GDAL read another one."""
    path = written(folder, "other.tif")
    with rasterio.open(path) as source, rasterio.vrt.WarpedVRT(source) as warped:
        (folder / "bad.tif").write_text(
            f'<VRTDataset rasterXSize="{warped.width}" rasterYSize="{warped.height}"><VRTRasterBand dataType="UInt16" '
            f'band="1"><SimpleSource><SourceFilename>{path}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>'
        )
    return str(folder / "bad.tif")


def zipped(folder: Path) -> str:
    with zipfile.ZipFile(folder / "bad.tif", "w") as archive:
        archive.write(written(folder, "inside.tif"), "inside.tif")
    return str(folder / "bad.tif")


def no_transform(folder: Path) -> str:
    return str(write_tif(folder / "bad.tif", bands(), transform=Affine.identity()))


def gcps_only(folder: Path) -> str:
    path = folder / "bad.tif"
    corners = [(0, 0), (0, WIDTH), (HEIGHT, 0), (HEIGHT, WIDTH)]
    points = [GroundControlPoint(row, col, 500_000 + col, 4_650_000 - row) for row, col in corners]
    stack = np.stack(list(bands().values()))
    profile = {"driver": "GTiff", "count": 4, "height": HEIGHT, "width": WIDTH, "dtype": "uint16"}
    with rasterio.open(path, "w", gcps=points, crs=f"EPSG:{EPSG}", **profile) as out:
        out.write(stack)
    return str(path)


def complex_numbers(folder: Path) -> str:
    return str(write_tif(folder / "bad.tif", bands("complex64")))


def wavelengths(folder: Path) -> str:
    path = written(folder)
    with rasterio.open(path, "r+") as file:
        file.update_tags(4, ns="IMAGERY", CENTRAL_WAVELENGTH_UM="0.717")
    return str(path)


def sparse(folder: Path, size_px: int, **options: Any) -> str:
    """A file that claims a size, and holds nothing."""
    profile = {"driver": "GTiff", "count": 4, "height": size_px, "width": size_px, "dtype": "uint16"}
    profile |= {"crs": f"EPSG:{EPSG}", "transform": place(), "SPARSE_OK": True}
    with rasterio.open(folder / "bad.tif", "w", **profile, **options):
        pass
    return str(folder / "bad.tif")


def folder_as_source(folder: Path) -> str:
    (folder / "bad.tif").mkdir()
    return str(folder / "bad.tif")


def pipe_as_source(folder: Path) -> str:
    os.mkfifo(folder / "bad.tif")
    return str(folder / "bad.tif")


def link_to_itself(folder: Path) -> str:
    (folder / "bad.tif").symlink_to(folder / "bad.tif")
    return str(folder / "bad.tif")


def broken_mask_beside(raw: bytes) -> Callable[[Path], str]:
    """A .msk that is there and cannot be read: the pixels that it hides must not come out."""

    def make(folder: Path) -> str:
        path = written(folder)
        path.with_name("bad.tif.msk").write_bytes(raw)
        return str(path)

    return make


def cut_metadata_beside(folder: Path) -> str:
    """A .aux.xml that declares no data, cut off half-way by whoever copied it."""
    path = written(folder)
    path.with_name("bad.tif.aux.xml").write_text('<PAMDataset><PAMRasterBand band="3"><NoDataValue>777</NoData')
    return str(path)


def mask_beside_of_another_size(folder: Path) -> str:
    write_tif(folder / "small.tif", [np.full((9, 9), 255, "uint8")])
    path = written(folder)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(folder / "small.tif", "r+") as small:
        small.write_mask(np.zeros((9, 9), bool))
    (folder / "small.tif.msk").rename(folder / "bad.tif.msk")
    return str(path)


def shifted(name: str, **options: Any) -> Callable[[Path, dict[str, str]], None]:
    def change(folder: Path, source: dict[str, str]) -> None:
        dtype = "uint8" if name == "mask" else "uint16"
        write_tif(Path(source[name]), [np.full((HEIGHT, WIDTH), 4, dtype)], **options)

    return change


def resized(folder: Path, source: dict[str, str]) -> None:
    write_tif(Path(source["nir"]), [np.full((32, 48), 900, "uint16")])


def grids_in_degrees(folder: Path) -> dict[str, Any]:
    """Pixels of about 2 cm: four of them are less than a millionth of a degree."""
    there = Affine(2e-7, 0, -93.0, 0, -2e-7, 42.0)
    paths = {}
    for name, transform in (("red", there), ("nir", there @ Affine.translation(4, 4))):
        paths[name] = str(write_tif(folder / f"{name}.tif", [bands()[name]], crs="EPSG:4326", transform=transform))
    return {"src_uri": paths, "sensor": "sentinel-2-l2a-harmonised", "epsg": 4326}


def several_bands(folder: Path, source: dict[str, str]) -> None:
    write_tif(Path(source["nir"]), bands())


def float_mask(folder: Path, source: dict[str, str]) -> None:
    write_tif(Path(source["mask"]), [np.full((HEIGHT, WIDTH), 4, "float32")])


def removed(name: str) -> Callable[[Path, dict[str, str]], None]:
    return lambda folder, source: Path(source[name]).unlink()


def same_file(folder: Path, source: dict[str, str]) -> dict[str, str]:
    return source | {"nir": source["red"]}


def same_file_spelled_otherwise(folder: Path, source: dict[str, str]) -> dict[str, str]:
    return source | {"nir": str(folder / ".." / folder.name / "red.tif")}


def same_file_by_a_link(folder: Path, source: dict[str, str]) -> dict[str, str]:
    (folder / "nir-link.tif").symlink_to(source["red"])
    return source | {"nir": str(folder / "nir-link.tif")}


def described_as_another(folder: Path, source: dict[str, str]) -> None:
    write_tif(Path(source["nir"]), [bands()["nir"]], descriptions=["Red"])


def identity_in_degrees(folder: Path) -> dict[str, Any]:
    return {"src_uri": str(written(folder, crs="EPSG:4326", transform=Affine.identity())), "epsg": 4326}


LFS = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24\n"
)
S3_ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'
DESCRIBED = ["Blue", "Green", "Red", "Red edge"]

BROKEN: dict[str, Broken] = {
    # what is no raster
    "missing": Broken(lambda f: str(f / "bad.tif"), "source_missing", ["does not exist"]),
    "empty": Broken(content(b""), "source_not_raster", ["empty", "0 bytes"]),
    "html": Broken(content(b"<!DOCTYPE html><html>404</html>"), "source_not_raster", ["not a GeoTIFF", "html"]),
    "s3-error": Broken(content(S3_ERROR), "source_not_raster", ["not a GeoTIFF", "<?xml"]),
    "lfs-pointer": Broken(content(LFS), "source_not_raster", ["not a GeoTIFF", "git-lfs"]),
    "png": Broken(png, "source_not_raster", ["not a GeoTIFF", "PNG"]),
    "zip": Broken(zipped, "source_not_raster", ["not a GeoTIFF", "ZIP"]),
    "vrt": Broken(vrt, "source_not_raster", ["not a GeoTIFF", "VRTDataset"]),
    "zeros": Broken(content(bytes(4096)), "source_not_raster", ["not a GeoTIFF"]),
    "folder": Broken(folder_as_source, "source_not_raster", ["is a folder"]),
    "pipe": Broken(pipe_as_source, "source_not_raster", ["not a regular file"]),
    "link-to-itself": Broken(link_to_itself, "source_forbidden", ["symbolic link"]),
    # what is no longer one
    "truncated": Broken(truncated, "source_corrupt", ["corrupt"]),
    "header-only": Broken(content(struct.pack("<2sHI", b"II", 42, 8)), "source_corrupt", ["corrupt"]),
    "beyond-the-end": Broken(content(struct.pack("<2sHI", b"II", 42, 9999)), "source_corrupt", ["corrupt"]),
    "corrupt-block": Broken(corrupt_block, "source_corrupt", ["corrupt"]),
    "jp2-start-only": Broken(content(b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99)), "source_corrupt", ["corrupt"]),
    "msk-garbage": Broken(broken_mask_beside(b"<html>"), "source_corrupt", [".msk"]),
    "msk-empty": Broken(broken_mask_beside(b""), "source_corrupt", [".msk"]),
    "msk-other-size": Broken(mask_beside_of_another_size, "source_corrupt", [".msk"]),
    "aux-xml-cut": Broken(cut_metadata_beside, "source_corrupt", [".aux.xml"]),
    # where it lies
    "other-crs": Broken(sound(crs="EPSG:32616"), "crs_mismatch", ["EPSG:32616", "EPSG:32615"]),
    "degrees": Broken(sound(crs="EPSG:4326"), "crs_mismatch", ["EPSG:4326", "EPSG:32615"]),
    "no-crs": Broken(sound(crs=None), "crs_missing", ["CRS", "assign"]),
    "no-such-epsg": Broken(tile({"epsg": 99999}), "crs_mismatch", ["EPSG:32615", "EPSG:99999"]),
    "no-transform": Broken(no_transform, "georef_missing", ["no transform", "georeference"]),
    "no-transform-in-degrees": Broken(identity_in_degrees, "georef_missing", ["no transform"]),
    "gcps": Broken(gcps_only, "crs_missing", ["ground control points", "Rectify"]),
    # which band is which
    "band-beyond": Broken(tile({"bands": {"red": 3, "nir": 7}}), "band_missing", ["nir", "band 7", "4 bands"]),
    "no-such-name": Broken(
        tile({"bands": {"red": "Red", "nir": "NIR"}}, descriptions=DESCRIBED), "band_missing", ["'NIR'", "number"]
    ),
    "name-twice": Broken(
        tile({"bands": {"red": 3, "nir": "NIR"}}, descriptions=["B", "NIR", "R", "NIR"]),
        "band_missing",
        ["[2, 4]", "number"],
    ),
    "described": Broken(sound(descriptions=DESCRIBED), "band_contradiction", ["band 4", "Red edge", "Correct"]),
    "wavelength": Broken(wavelengths, "band_contradiction", ["band 4", "717 nm", "Correct"]),
    "same-band": Broken(
        tile({"bands": {"red": 3, "nir": "Red"}}, descriptions=["Blue", "Green", "Red", ""]),
        "band_contradiction",
        ["red and nir", "both", "band 3"],
    ),
    "wrong-sensor": Broken(
        tile({"sensor": "micasense-altum"}), "band_contradiction", ["micasense-altum", "6 bands", "4 bands", "`bands`"]
    ),
    "other-order": Broken(
        tile({"sensor": "planetscope-4b"}, descriptions=["Red", "Green", "Blue", "NIR"]),
        "band_contradiction",
        ["planetscope-4b", "blue as band 1", "right sensor"],
    ),
    # files that belong together
    "part-missing": Broken(files(removed("nir")), "source_missing", ["does not exist"], "nir.tif"),
    "several-bands": Broken(files(several_bands), "band_contradiction", ["nir band alone", "4 bands"], "nir.tif"),
    "described-as-another": Broken(files(described_as_another), "band_contradiction", ["nir", "'Red'"], "nir.tif"),
    "other-grid": Broken(files(shifted("nir", transform=place(1))), "grid_mismatch", ["share one grid"], "nir.tif"),
    "other-grid-in-degrees": Broken(grids_in_degrees, "grid_mismatch", ["share one grid"], "nir.tif"),
    "other-size": Broken(files(resized), "grid_mismatch", ["48 x 32", "96 x 64"], "nir.tif"),
    "other-zone": Broken(files(shifted("nir", crs="EPSG:32616")), "crs_mismatch", ["EPSG:32616"], "nir.tif"),
    "same-file": Broken(files(same_file), "band_contradiction", ["red and nir", "band 1"], "red.tif"),
    "same-file-respelled": Broken(files(same_file_spelled_otherwise), "band_contradiction", ["red and nir"], "red.tif"),
    "same-file-by-link": Broken(files(same_file_by_a_link), "band_contradiction", ["red and nir"], "red.tif"),
    "mask-missing": Broken(files(removed("mask")), "source_missing", ["does not exist"], "mask.tif"),
    "mask-elsewhere": Broken(
        files(shifted("mask", transform=place(1))), "grid_mismatch", ["mask", "coarser by a whole factor"], "mask.tif"
    ),
    "mask-of-floats": Broken(files(float_mask), "band_contradiction", ["float32", "integers"], "mask.tif"),
    # what would cost too much, or has no meaning
    "complex": Broken(complex_numbers, "dtype_unsupported", ["complex"]),
    "too-many-pixels": Broken(
        lambda f: sparse(f, 2000), "source_too_large", ["2000 x 2000", "FLIGHTS_MAX_PIXELS", str(MAX_PIXELS)]
    ),
    "huge-block": Broken(
        lambda f: sparse(f, 1024, blockysize=1024, compress="deflate"),
        "source_too_large",
        ["1024 x 1024", "FLIGHTS_MAX_BLOCK_BYTES", "TILED=YES"],
    ),
}


# ---------------------------------------------------------------- one flight of them all


@dataclass(frozen=True, slots=True)
class Flown:
    """The flight, and what its sound tiles must hold."""

    report: FlightReport
    folder: Path
    expected: NDArray[np.float64]
    outcomes: dict[str, TileOutcome] = field(default_factory=dict)


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Flown:
    """Every broken tile between sound ones, in one flight."""
    folder = tmp_path_factory.mktemp("broken")
    tiles: list[dict[str, Any]] = []
    for number, (name, broken) in enumerate(BROKEN.items()):
        place_of = folder / "src" / name
        place_of.mkdir(parents=True)
        made = broken.make(place_of)
        tiles.append({"tile_id": name} | (made if isinstance(made, dict) and "src_uri" in made else {"src_uri": made}))
        tiles.append({"tile_id": f"sound-{number}", "src_uri": str(written(place_of, "sound.tif"))})
    body = manifest("F", tiles, out_uri="out", bands={"red": 3, "nir": 4})
    with pytest.MonkeyPatch.context() as patch:
        for variable in [v for v in os.environ if v.startswith(("FLIGHTS_", "CELERY_", "AWS_"))]:
            patch.delenv(variable)
        tools = tools_for(folder / "state", max_pixels=MAX_PIXELS, max_block_bytes=MAX_BLOCK_BYTES)
        report = run_flight(body, folder, tools)
    sound_bands = bands()
    expected = oracle_ndvi(sound_bands["red"], sound_bands["nir"])
    return Flown(report, folder, expected, {o.tile_id: o for o in report.outcomes})


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tile_says_what_is_wrong_with_it(name: str, flown: Flown) -> None:
    broken, outcome = BROKEN[name], flown.outcomes[name]
    assert outcome.state is TileState.FAILED, outcome.stats
    assert outcome.error is not None
    said = outcome.error.message
    assert outcome.error.code == broken.code, said
    assert str(flown.folder / "src" / name / broken.named) in said
    assert [word for word in broken.words if word not in said] == [], said
    assert not outcome.error.transient
    assert outcome.attempts == 1  # trying again cannot help
    assert outcome.stats is None
    assert outcome.fingerprint is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_message_is_for_people(name: str, flown: Flown) -> None:
    error = flown.outcomes[name].error
    if error is None:
        pytest.fail("no error at all")
    assert len(error.message) < 700
    assert "\n" not in error.message
    assert str(flown.folder / "state") not in error.message, "names a scratch file that is gone"
    assert error.message.count(str(flown.folder / "src" / name / "bad.tif")) <= 1, "says the same name twice"


def test_the_others_are_done(flown: Flown) -> None:
    print()
    for name, outcome in flown.outcomes.items():
        if outcome.error:
            said = outcome.error.message.replace(f"{flown.folder}/", "")
            print(f"{name:24} {outcome.error.code:20} {said}")
    for number in range(len(BROKEN)):
        outcome = flown.outcomes[f"sound-{number}"]
        assert outcome.state is TileState.DONE, outcome.error
        assert_pixels(outcome.dst_uri, flown.expected)
    report = flown.report
    assert (report.status, report.complete, report.mosaic) == (FlightStatus.INCOMPLETE, False, None)
    assert (report.tiles.total, report.tiles.missing) == (2 * len(BROKEN), 0)


def test_nothing_of_a_broken_tile_is_left(flown: Flown) -> None:
    sound_products = {f"sound-{number}.ndvi.tif" for number in range(len(BROKEN))}
    failed = {f"{name}.ndvi.tif" for name, outcome in flown.outcomes.items() if outcome.error}
    there = {path.name for path in (flown.folder / "out").rglob("*") if path.is_file()} - {"F.report.json"}
    assert there - failed == there
    assert sound_products <= there
    assert list((flown.folder / "state" / "scratch").iterdir()) == []
    assert list(flown.folder.rglob("*.part")) == []
    recorded = {path.name.rsplit("@", 1)[0] for path in (flown.folder / "state" / "runs" / "F" / "failures").iterdir()}
    assert recorded == {name for name, outcome in flown.outcomes.items() if outcome.error}


def test_each_is_broken_in_one_way_only(tmp_path: Path) -> None:
    """The file that the broken ones are made from is sound."""
    path = written(tmp_path, "t.tif")
    report = run_flight(manifest("F", [{"tile_id": "t", "src_uri": str(path)}], out_uri="out"), tmp_path)
    assert report.status is FlightStatus.COMPLETE


# ---------------------------------------------------------------- of a whole flight


@pytest.mark.parametrize("there", ["a folder", "a folder with something in it", "a file above", "a pipe"])
def test_a_destination_that_cannot_be_written_fails_a_tile_and_not_its_flight(there: str, tmp_path: Path) -> None:
    destination = tmp_path / "place" / "product.tif"
    destination.parent.mkdir()
    if there == "a file above":
        destination.write_text("not a folder")
        destination = destination / "t.tif"
    elif there == "a pipe":
        os.mkfifo(destination)
    else:
        destination.mkdir()
        if "with" in there:
            (destination / "mine.txt").write_text("mine")
    source = str(written(tmp_path, "t.tif"))
    tiles = [{"tile_id": "a", "src_uri": source, "dst_uri": str(destination)}, {"tile_id": "b", "src_uri": source}]
    bad, good = run_flight(manifest("F", tiles, out_uri="out"), tmp_path).outcomes
    assert good.state is TileState.DONE
    assert bad.error is not None
    print(f"\n{there:24} {bad.error.code:20} {bad.error.message.replace(f'{tmp_path}/', '')}")
    assert (bad.error.code, bad.error.transient, bad.attempts) == ("destination_refused", False, 1)
    assert str(destination) in bad.error.message
    if "with" in there:
        assert (destination / "mine.txt").read_text() == "mine"
    elif there == "a file above":
        assert destination.parent.read_text() == "not a folder"


@pytest.mark.parametrize("index", ["savi", "osavi", "msavi2", "evi2"])
def test_an_unknown_scale_fails_a_tile_and_not_its_neighbour(index: str, tmp_path: Path) -> None:
    paths = [str(write_tif(tmp_path / f"{name}.tif", bands())) for name in ("unknown", "known")]
    tiles: list[dict[str, Any]] = [{"tile_id": "a", "src_uri": paths[0]}, {"tile_id": "b", "src_uri": paths[1]}]
    tiles[1]["scale"] = 0.0001
    report = run_flight(manifest("F", tiles, out_uri="out", index=index), tmp_path)
    unknown, known = report.outcomes
    assert unknown.error is not None
    assert unknown.error.code == "scale_unknown"
    print(f"\n{index:24} {unknown.error.code:20} {unknown.error.message.replace(f'{tmp_path}/', '')}")
    assert [w for w in (paths[0], index, "`scale`", "`sensor`") if w not in unknown.error.message] == []
    assert known.state is TileState.DONE


def test_a_tile_that_is_mended_is_done_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "t.tif"
    path.write_text("<html>")
    body = manifest("F", [{"tile_id": "t", "src_uri": str(path)}], out_uri="out")
    assert run_flight(body, tmp_path).outcomes[0].state is TileState.FAILED
    write_tif(path, bands())
    report = run_flight(body, tmp_path)
    assert report.status is FlightStatus.COMPLETE
    assert report.outcomes[0].error is None
