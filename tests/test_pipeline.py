"""Tiles, answers and composites in this process, on local disk and on an S3 server."""

import dataclasses
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rio_cogeo.cogeo import cog_validate

from flights.errors import Code
from flights.ledger import Ledger
from flights.manifest import Flight, parse_manifest
from flights.pipeline import Tools, composite_flight, derive_report, finalise, write_tile
from flights.raster.cog import PRODUCT_TAG, CogWriter
from flights.report import FlightReport, FlightStatus, TileCounts, TileOutcome, TileState
from flights.runs import CompositeRule, Job, Run, failure_records, load_failure, load_report, record_uri, save_run
from flights.settings import Settings
from flights.store import Stores, open_stores
from flights.store.s3 import S3Store
from flights.survey import LIST_FROM, PRODUCT_METADATA, Plan, known_of_report, known_products, survey
from flights.windows import Window
from tests import synthetic
from tests.synthetic import EPSG, NORTH, PIXEL_M, WEST, manifest, oracle_ndvi, place, write_tif
from tests.test_store import answers

Bands = Mapping[str, NDArray[Any]]
Values = NDArray[np.float64]


@dataclass
class Bench:
    """A place with sources in `raw/` and room for products in `out/`, and what a worker works with."""

    root: str
    folder: Path
    tools: Tools
    runs: int = field(default=0)

    @property
    def stores(self) -> Stores:
        return self.tools.stores

    def uri(self, name: str) -> str:
        return f"{self.root}/{name}"

    def source(self, bands: Bands | None = None, name: str = "t1.tif", **options: Any) -> str:
        """Put a raster in `raw/`, in the place of what was there."""
        path = write_tif(self.folder / "made.tif", bands or synthetic.field(), **options)
        self.stores.write(self.uri(f"raw/{name}"), path.read_bytes())
        for suffix in (".msk", ".aux.xml"):
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                self.stores.write(self.uri(f"raw/{name}{suffix}"), beside.read_bytes())
                beside.unlink()
        return self.uri(f"raw/{name}")

    def flight(self, tiles: int | Sequence[Mapping[str, Any]] = 1, **more: Any) -> Flight:
        """A flight of tiles t1, t2, ... of the sources of that name, unless said otherwise."""
        named = [{} for _ in range(tiles)] if isinstance(tiles, int) else tiles
        listed = [{"tile_id": f"t{i + 1}", "src_uri": f"raw/t{i + 1}.tif", **tile} for i, tile in enumerate(named)]
        body = {"flight_id": "F1", "out_uri": "out", **more}
        return parse_manifest(json.dumps(manifest(tiles=listed, **body)).encode(), self.root)

    def run(self, flight: Flight, composite: CompositeRule = "complete", *, overwrite: bool = False) -> Run:
        """A new run of a flight, recorded."""
        self.runs += 1
        run = Run(
            run_id=f"run{self.runs}",
            flight_id=flight.flight_id,
            record_uri=record_uri(self.uri("runs"), flight.flight_id),
            started=datetime.now(UTC),
            overwrite=overwrite,
            composite=composite,
        )
        save_run(self.stores, run, flight)
        return run

    def make(self, flight: Flight, run: Run | None = None) -> list[TileOutcome]:
        """Every tile, in order."""
        job = Job(run=run or self.run(flight), flight=flight)
        return [write_tile(job, tile, self.tools) for tile in flight.tiles]

    def complete(self, flight: Flight, run: Run | None = None) -> FlightReport:
        """Tiles, answer, composite."""
        run = run or self.run(flight)
        finalise(run, flight, self.make(flight, run), self.tools)
        report = composite_flight(run, self.tools)
        assert report is not None
        return report

    def derive(self, run: Run, flight: Flight, told: Sequence[TileOutcome] = ()) -> FlightReport:
        return derive_report(run, flight, self.stores, self.tools.limits, told)

    def identity(self, uri: str) -> str:
        stat = self.stores.stat(uri)
        assert stat is not None
        return stat.identity

    def pixels(self, uri: str) -> NDArray[np.float32]:
        content = self.stores.read(uri)
        assert content is not None, f"nothing at {uri}"
        with MemoryFile(content) as memory, memory.open() as dataset:
            pixels: NDArray[np.float32] = dataset.read(1)
        return pixels

    def tags(self, uri: str) -> dict[str, str]:
        content = self.stores.read(uri)
        assert content is not None
        with MemoryFile(content) as memory, memory.open() as dataset:
            return dict(dataset.tags())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two attempts."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda _: None))


NewBench = Callable[..., Bench]


@pytest.fixture
def new_bench(redis_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> NewBench:
    def make(kind: str = "local", **settings: Any) -> Bench:
        if kind == "s3":
            request.getfixturevalue("s3")
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        known = Settings(state_dir=folder / "state", **settings)
        root = "s3://ndvi/a b" if kind == "s3" else str(folder / "a b")
        return Bench(root, folder, Tools(known, open_stores(), Ledger(redis_url)))

    return make


@pytest.fixture
def bench(request: pytest.FixtureRequest, new_bench: NewBench) -> Bench:
    """A bench on local disk, or of the kind that the test names."""
    return new_bench(getattr(request, "param", "local"))


BOTH = pytest.mark.parametrize("bench", ["local", "s3"], indirect=True)


def ndvi(bands: Bands, **more: Any) -> Values:
    return oracle_ndvi(bands["red"], bands["nir"], **more)


def same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def said(report: FlightReport) -> dict[str, Any]:
    """What a report says, without when and how long."""
    content = report.model_dump(mode="json", exclude={"finished", "started"})
    for outcome in content["outcomes"]:
        del outcome["attempts"], outcome["seconds"]
    return content


# ---------------------------------------------------------------- a tile that is missing, and why


def test_why_a_tile_is_missing(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    limits = bench.tools.limits

    def why(run: Run, *, under_way: bool = False) -> str:
        (outcome,) = derive_report(run, flight, bench.stores, limits, under_way=under_way).outcomes
        assert outcome.error is not None
        return outcome.error.message

    run = bench.run(flight)
    assert "there is no product" in why(run)
    assert "has not ended" in why(run, under_way=True)
    bench.make(flight)
    assert "of an earlier run, and this one makes every tile anew" in why(bench.run(flight, overwrite=True))
    Path(flight.tiles[0].dst_uri).write_bytes(b"II*")
    assert "is damaged, or no product of flights" in why(run)


# ---------------------------------------------------------------- a tile: made once, found, made again


@BOTH
def test_a_tile_is_made_once(bench: Bench) -> None:
    bands = synthetic.field()
    bench.source(bands)
    flight = bench.flight()
    (first,) = bench.make(flight)
    assert (first.state, first.cached, first.error, first.attempts) == (TileState.DONE, False, None, 1)
    assert first.dst_uri == bench.uri("out/tiles/t1.ndvi.tif")
    same(bench.pixels(first.dst_uri), ndvi(bands))
    identity = bench.identity(first.dst_uri)
    assert first.product == identity
    assert first.source == {"": bench.identity(bench.uri("raw/t1.tif"))}
    (second,) = bench.make(flight)
    assert (second.state, second.cached) == (TileState.DONE, True)
    assert (second.fingerprint, second.stats, second.bands) == (first.fingerprint, first.stats, first.bands)
    assert bench.identity(first.dst_uri) == identity
    assert not list(bench.tools.settings.scratch.iterdir())


@BOTH
def test_gdal_is_given_no_credentials(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it cost a boto3 session an environment that some are about: rasterio makes one where it is not told."""
    bench.source()
    made: list[str] = []
    monkeypatch.setattr("rasterio.session.AWSSession.__init__", lambda *_, **__: made.append("a session"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    (outcome,) = bench.make(bench.flight())
    assert outcome.state is TileState.DONE, outcome.error
    assert made == []


@BOTH
def test_an_outcome_is_short_json(bench: Bench) -> None:
    bench.source()
    for outcome in bench.make(bench.flight()) + bench.make(bench.flight([{"src_uri": "raw/none.tif"}])):
        text = outcome.as_text()
        assert len(text.encode()) < 2048
        assert TileOutcome.of_text(text) == outcome


def mask_of(bench: Bench) -> None:
    bands = synthetic.field()
    path = write_tif(bench.folder / "made.tif", bands)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as dataset:
        mask = np.ones(bands["red"].shape, dtype=bool)
        mask[:10] = False
        dataset.write_mask(mask)
    bench.stores.write(bench.uri("raw/t1.tif.msk"), path.with_name("made.tif.msk").read_bytes())


def aux_of(bench: Bench) -> None:
    text = '<PAMDataset><PAMRasterBand band="3"><NoDataValue>1000</NoDataValue></PAMRasterBand></PAMDataset>'
    bench.stores.write(bench.uri("raw/t1.tif.aux.xml"), text.encode())


# What changes between two runs: the storage, and the manifest.
CHANGES: dict[str, tuple[Callable[[Bench], object], dict[str, Any]]] = {
    "other pixels, as many bytes": (lambda b: b.source(synthetic.field(seed=2)), {}),
    "another size": (lambda b: b.source(synthetic.field(80, 70)), {}),
    "a mask beside it": (mask_of, {}),
    "nodata beside it": (aux_of, {}),
    "other bands": (lambda _: None, {"bands": {"red": 2, "nir": 4}}),
    "nodata": (lambda _: None, {"nodata": 1000}),
    "nodata of a band": (lambda _: None, {"nodata": {"red": 1000}}),
    "scale": (lambda _: None, {"scale": {"red": 2.0, "nir": 1.0}}),
    "offset": (lambda _: None, {"offset": -100}),
}


@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_a_tile_is_made_again_when_its_pixels_would_change(bench: Bench, change: str) -> None:
    bands = synthetic.field()
    bench.source(bands)
    (first,) = bench.make(bench.flight())
    before = bench.pixels(first.dst_uri)
    touch, declared = CHANGES[change]
    touch(bench)
    flight = bench.flight(**declared)
    assert [seen.plan() for seen in survey(bench.stores, flight)] == [Plan.STALE]
    (second,) = bench.make(flight)
    assert (second.state in (TileState.DONE, TileState.REVIEW), second.cached) == (True, False)
    assert second.fingerprint != first.fingerprint
    after = bench.pixels(first.dst_uri)
    assert not np.array_equal(after, before, equal_nan=True)
    (third,) = bench.make(flight)
    assert third.cached
    assert [seen.plan() for seen in survey(bench.stores, flight)] == [Plan.CURRENT]


@BOTH
def test_a_mask_that_went_away_is_no_longer_honoured(bench: Bench) -> None:
    bands = synthetic.field()
    bench.source(bands)
    mask_of(bench)
    (masked,) = bench.make(bench.flight())
    assert np.isnan(bench.pixels(masked.dst_uri)[:10]).all()
    bench.stores.delete(bench.uri("raw/t1.tif.msk"))
    (outcome,) = bench.make(bench.flight())
    same(bench.pixels(outcome.dst_uri), ndvi(bands))


# What a manifest may say otherwise without changing a pixel: of the flight, and of its tile.
NO_CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a tenant": ({"tenant": "north"}, {}),
    "a time": ({"acquired": "2026-06-14T17:03:00Z"}, {}),
    "bands by tile": ({"bands": {"red": 1, "nir": 2}}, {"bands": {"red": 3, "nir": 4}}),
    "EPSG in words": ({}, {"epsg": "EPSG:32615"}),
    "another tile": ({}, {"tile_id": "t9"}),
    "another flight": ({"flight_id": "F2"}, {}),
}


@pytest.mark.parametrize("change", NO_CHANGES)
def test_a_tile_is_not_made_again_for_words(bench: Bench, change: str) -> None:
    bench.source()
    bench.make(bench.flight([{"dst_uri": "out/t.tif"}]))
    of_flight, of_tile = NO_CHANGES[change]
    (outcome,) = bench.make(bench.flight([{"dst_uri": "out/t.tif", **of_tile}], **of_flight))
    assert outcome.cached


@BOTH
def test_overwriting_makes_a_current_product_again_once(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    (first,) = bench.make(flight)
    before = bench.tags(first.dst_uri)[PRODUCT_TAG]
    run = bench.run(flight, overwrite=True)
    assert [seen.plan(run) for seen in survey(bench.stores, flight)] == [Plan.STALE]
    (second,) = bench.make(flight, run)
    assert not second.cached
    assert second.fingerprint == first.fingerprint
    assert bench.tags(first.dst_uri)[PRODUCT_TAG] != before
    made = bench.identity(first.dst_uri)
    (redelivered,) = bench.make(flight, run)
    assert bench.identity(first.dst_uri) == made
    assert (redelivered.state, redelivered.cached) == (TileState.DONE, False)


# ---------------------------------------------------------------- a tile: what happens meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object], times: int = 1) -> None:
    """Do something between the finishing of a product, which takes so long that its source is looked at again after
    it, and its publishing."""
    finish, left = CogWriter.finish, times

    def and_deed(self: CogWriter, *args: Any, **more: Any) -> Path:
        nonlocal left
        path = finish(self, *args, **more)
        left -= 1
        if left >= 0:
            deed()
        return path

    monkeypatch.setattr(CogWriter, "finish", and_deed)
    monkeypatch.setattr("flights.pipeline.tile.LOOK_HOLDS_S", 0)


@BOTH
def test_a_source_replaced_as_soon_as_it_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    newer, write, left = synthetic.field(seed=7), CogWriter.write, [1]

    def and_replaced(self: CogWriter, values: NDArray[np.float32], window: Window) -> None:
        write(self, values, window)
        if left.pop() if left else 0:
            bench.source(newer)

    bench.source()
    monkeypatch.setattr(CogWriter, "write", and_replaced)
    (outcome,) = bench.make(bench.flight())
    assert (outcome.state, outcome.attempts) == (TileState.DONE, 2)
    same(bench.pixels(outcome.dst_uri), ndvi(newer))


@BOTH
def test_a_source_replaced_meanwhile_is_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = synthetic.field(seed=7)
    bench.source()
    meanwhile(monkeypatch, lambda: bench.source(newer))
    (outcome,) = bench.make(bench.flight())
    assert (outcome.state, outcome.attempts, outcome.cached) == (TileState.DONE, 2, False)
    assert outcome.source == {"": bench.identity(bench.uri("raw/t1.tif"))}
    same(bench.pixels(outcome.dst_uri), ndvi(newer))


@BOTH
def test_a_mask_that_appears_meanwhile_is_honoured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.source()
    meanwhile(monkeypatch, lambda: mask_of(bench))
    (outcome,) = bench.make(bench.flight())
    assert outcome.attempts == 2
    assert np.isnan(bench.pixels(outcome.dst_uri)[:10]).all()


@BOTH
def test_a_source_that_never_stands_still_is_never_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(100, 200))
    bench.source()
    meanwhile(monkeypatch, lambda: bench.source(synthetic.field(seed=next(seeds))), times=100)
    (outcome,) = bench.make(bench.flight())
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.transient, outcome.attempts) == (Code.SOURCE_CHANGED, True, 4)
    assert bench.stores.stat(outcome.dst_uri) is None


@BOTH
def test_a_source_removed_meanwhile_is_not_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.source()
    meanwhile(monkeypatch, lambda: bench.stores.delete(bench.uri("raw/t1.tif")))
    (outcome,) = bench.make(bench.flight())
    assert outcome.error is not None
    assert outcome.error.code == Code.SOURCE_MISSING
    assert bench.stores.stat(outcome.dst_uri) is None


@BOTH
@pytest.mark.parametrize("was_there", [False, True], ids=["nothing there", "a product there"])
def test_a_destination_taken_meanwhile_is_looked_at_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    bands = synthetic.field()
    bench.source(synthetic.field(seed=9) if was_there else bands)
    flight = bench.flight()
    dst = flight.tiles[0].dst_uri
    if was_there:
        bench.make(flight)
        bench.source(bands)
    meanwhile(monkeypatch, lambda: bench.stores.write(dst, b"somebody else's"))
    (outcome,) = bench.make(flight)
    assert (outcome.state, outcome.attempts) == (TileState.DONE, 2)
    same(bench.pixels(dst), ndvi(bands))


@BOTH
def test_the_same_product_published_meanwhile_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.source()
    flight = bench.flight()
    theirs: list[TileOutcome] = []
    run = bench.run(flight)
    meanwhile(monkeypatch, lambda: theirs.extend(bench.make(flight, run)))
    (ours,) = bench.make(flight, run)
    assert (ours.state, ours.cached, ours.attempts) == (TileState.DONE, False, 2)
    assert ours.product == theirs[0].product == bench.identity(ours.dst_uri)


# ---------------------------------------------------------------- a tile: what lies at its destination


def foreign_tif(bench: Bench, dst: str, tags: Mapping[str, str]) -> None:
    path = write_tif(bench.folder / "foreign.tif", [np.ones((5, 5), "float32")])
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(**tags)
    text = tags.get(PRODUCT_TAG)
    bench.stores.publish(path, dst, bench.stores.stat(dst), {PRODUCT_METADATA: text} if text else {})


PRODUCT_WORDS = '{"fingerprint":"0","run_id":"r","stats":{"pixels":1,"count":0,"valid_fraction":0},"unheard":1}'
FOREIGNERS: dict[str, Callable[[Bench, str], object]] = {
    "nothing": lambda b, dst: b.stores.write(dst, b""),
    "text": lambda b, dst: b.stores.write(dst, b"not ours"),
    "a raster": lambda b, dst: foreign_tif(b, dst, {}),
    "half a raster": lambda b, dst: b.stores.write(dst, b"II*\0\x08\0\0\0"),
    "a product of nonsense": lambda b, dst: foreign_tif(b, dst, {PRODUCT_TAG: "{"}),
    "a product in a list": lambda b, dst: foreign_tif(b, dst, {PRODUCT_TAG: "[1]"}),
    "a product of another version": lambda b, dst: foreign_tif(b, dst, {PRODUCT_TAG: PRODUCT_WORDS}),
}


@BOTH
@pytest.mark.parametrize("kind", FOREIGNERS)
def test_what_is_not_ours_is_replaced(bench: Bench, kind: str) -> None:
    bands = synthetic.field()
    bench.source(bands)
    flight = bench.flight()
    dst = flight.tiles[0].dst_uri
    FOREIGNERS[kind](bench, dst)
    run = bench.run(flight)
    assert [seen.plan() for seen in survey(bench.stores, flight)] == [Plan.STALE]
    told = TileOutcome(tile_id="t1", state=TileState.DONE, dst_uri=dst, fingerprint="0")
    assert bench.derive(run, flight, [told]).tiles == TileCounts(total=1, missing=1)
    (outcome,) = bench.make(flight, run)
    assert (outcome.state, outcome.cached) == (TileState.DONE, False)
    same(bench.pixels(dst), ndvi(bands))


# ---------------------------------------------------------------- a tile: failures are values


def cut_source(bench: Bench) -> None:
    path = write_tif(bench.folder / "made.tif", synthetic.field())
    bench.stores.write(bench.uri("raw/t1.tif"), path.read_bytes()[:9000])


FAILURES: dict[str, tuple[Callable[[Bench], object], dict[str, Any], Code]] = {
    "no source": (lambda _: None, {}, Code.SOURCE_MISSING),
    "no raster": (lambda b: b.stores.write(b.uri("raw/t1.tif"), b"<html>"), {}, Code.SOURCE_NOT_RASTER),
    "half a raster": (cut_source, {}, Code.SOURCE_CORRUPT),
    "another CRS": (lambda b: b.source(crs="EPSG:32616"), {}, Code.CRS_MISMATCH),
    "no such band": (lambda b: b.source(), {"bands": {"red": 3, "nir": 7}}, Code.BAND_MISSING),
    "another sensor": (lambda b: b.source(), {"sensor": "micasense-altum"}, Code.BAND_CONTRADICTION),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_an_outcome_and_a_record(bench: Bench, failure: str) -> None:
    put, declared, code = FAILURES[failure]
    put(bench)
    flight = bench.flight(**declared)
    run = bench.run(flight)
    (outcome,) = bench.make(flight, run)
    assert outcome.error is not None
    assert (outcome.state, outcome.error.code, outcome.attempts) == (TileState.FAILED, code, 1)
    assert not outcome.error.transient
    assert bench.uri("raw/t1.tif") in outcome.error.message
    assert load_failure(bench.stores, failure_records(bench.stores, run)["t1"]) == outcome
    assert bench.stores.stat(outcome.dst_uri) is None
    report = finalise(run, flight, [], bench.tools)
    assert (report.status, report.complete) == (FlightStatus.INCOMPLETE, False)
    assert report.outcomes == (outcome,)


@BOTH
def test_a_failure_leaves_the_old_product(bench: Bench) -> None:
    bands = synthetic.field()
    bench.source(bands)
    (first,) = bench.make(bench.flight())
    bench.stores.write(bench.uri("raw/t1.tif"), b"<html>")
    (second,) = bench.make(bench.flight())
    assert second.state is TileState.FAILED
    same(bench.pixels(first.dst_uri), ndvi(bands))
    assert finalise(bench.run(bench.flight()), bench.flight(), [], bench.tools).tiles == TileCounts(total=1, failed=1)


def test_a_product_outranks_the_failure_before_it(bench: Bench) -> None:
    flight = bench.flight()
    run = bench.run(flight)
    told = bench.make(flight, run)
    assert told[0].state is TileState.FAILED
    bench.source()
    bench.make(flight, run)
    for report in (bench.derive(run, flight), bench.derive(run, flight, told)):
        assert report.tiles == TileCounts(total=1, done=1)


def test_a_failure_that_cannot_be_recorded_is_still_an_outcome(bench: Bench) -> None:
    flight = bench.flight()
    run = bench.run(flight).model_copy(update={"record_uri": bench.uri("file/F1")})
    bench.stores.write(bench.uri("file"), b"in the way")
    (outcome,) = bench.make(flight, run)
    assert outcome.error is not None
    assert outcome.error.code == Code.SOURCE_MISSING


@pytest.mark.parametrize("deed", ["tempfile.mkdtemp", "pathlib.Path.symlink_to", "pathlib.Path.mkdir"])
def test_a_full_scratch_disk_is_an_outcome(bench: Bench, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    bench.source()
    flight = bench.flight()
    run = bench.run(flight)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(deed, refuse)
        (outcome,) = bench.make(flight, run)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.transient) == (Code.DISK_FULL, True)


def test_a_folder_in_the_products_place_is_the_destinations_fault(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    Path(flight.tiles[0].dst_uri).mkdir(parents=True)
    (outcome,) = bench.make(flight)
    assert outcome.error is not None
    assert outcome.error.code == Code.DESTINATION_REFUSED
    assert flight.tiles[0].dst_uri in outcome.error.message


@pytest.mark.parametrize("trouble", ["a folder", "forbidden"])
def test_one_bad_destination_keeps_no_flight_from_its_answer(new_bench: NewBench, trouble: str) -> None:
    bench, dst = new_bench(), "out/t1.tif"
    for name in ("t1.tif", "t2.tif"):
        bench.source(name=name)
    if trouble == "forbidden":
        new_bench("s3")
        dst, remote = "s3://ndvi/t1.tif", bench.stores.of("s3://ndvi/t1.tif")
        assert isinstance(remote, S3Store)
        answers(remote, "HeadObject", 403, "Forbidden")
    flight = bench.flight([{"dst_uri": dst}, {}])
    if trouble == "a folder":
        Path(flight.tiles[0].dst_uri).mkdir(parents=True)
    run = bench.run(flight)
    told = bench.make(flight, run)
    assert [o.state for o in told] == [TileState.FAILED, TileState.DONE]
    for known in (told, []):
        report = finalise(run, flight, known, bench.tools)
        assert report.tiles == TileCounts(total=2, done=1, failed=1)
        assert report.outcomes[0] == told[0]
        assert load_report(bench.stores, flight) == report


# ---------------------------------------------------------------- a flight's answer


@BOTH
def test_storage_alone_gives_the_same_answer(bench: Bench) -> None:
    """Done, cached, failed, and never begun."""
    for name in ("t1.tif", "t2.tif", "t4.tif"):
        bench.source(name=name)
    flight = bench.flight(4)
    bench.make(bench.flight(1))
    run = bench.run(flight)
    job = Job(run=run, flight=flight)
    told = [write_tile(job, tile, bench.tools) for tile in flight.tiles[:3]]
    report = finalise(run, flight, told, bench.tools)
    assert [o.state for o in report.outcomes] == ["done", "done", "failed", "missing"]
    assert [o.cached for o in report.outcomes] == [True, False, False, False]
    assert [o.tile_id for o in report.outcomes] == ["t1", "t2", "t3", "t4"]
    assert report.tiles == TileCounts(total=4, done=2, cached=1, failed=1, missing=1)
    assert (report.status, report.complete) == (FlightStatus.INCOMPLETE, False)
    assert said(report) == said(finalise(run, flight, [], bench.tools)) == said(bench.derive(run, flight))
    assert said(report) == said(finalise(run, flight, reversed(told), bench.tools))


@BOTH
def test_a_tile_delivered_twice_changes_no_answer(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    run = bench.run(flight)
    first = bench.make(flight, run)
    second = bench.make(flight, run)
    wanted = said(bench.derive(run, flight))
    assert said(bench.derive(run, flight, first)) == wanted
    assert said(bench.derive(run, flight, second)) == wanted
    assert said(bench.derive(run, flight, first + second)) == wanted


@BOTH
def test_told_done_is_not_done(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    run = bench.run(flight)
    told = bench.make(flight, run)
    bench.stores.delete(told[0].dst_uri)
    report = finalise(run, flight, told, bench.tools)
    assert report.tiles == TileCounts(total=1, missing=1)
    assert report.outcomes[0].error is not None
    assert "no product" in report.outcomes[0].error.message


@pytest.mark.parametrize("change", ["other pixels, as many bytes", "nodata", "other bands"])
def test_a_product_of_something_else_is_not_the_tiles(bench: Bench, change: str) -> None:
    bench.source()
    told = bench.make(bench.flight())
    touch, declared = CHANGES[change]
    touch(bench)
    flight = bench.flight(**declared)
    report = finalise(bench.run(flight), flight, told, bench.tools)
    assert report.tiles == TileCounts(total=1, missing=1)
    assert report.outcomes[0].error is not None
    assert "of an earlier state of its source, or of other parameters" in report.outcomes[0].error.message
    assert "older products still lie where those of tile t1 belong" in report.notes[0]


def test_in_a_run_that_overwrites_older_products_do_not_count(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    bench.make(flight)
    run = bench.run(flight, overwrite=True)
    assert finalise(run, flight, [], bench.tools).tiles == TileCounts(total=1, missing=1)
    assert finalise(run, flight, bench.make(flight, run), bench.tools).tiles == TileCounts(total=1, done=1)


@BOTH
def test_a_flight_of_every_kind_of_stats(bench: Bench) -> None:
    """Pooled over tiles: as if the tiles were one array; an empty tile counts its pixels."""
    sources = [synthetic.field(40, 50, seed=1), synthetic.field(64, 96, seed=2), synthetic.field(30, 30, seed=3)]
    for name in sources[2]:
        sources[2][name][:] = 0
    for i, bands in enumerate(sources):
        bench.source(bands, f"t{i + 1}.tif")
    flight = bench.flight(3)
    run = bench.run(flight)
    stats = finalise(run, flight, bench.make(flight, run), bench.tools).stats
    every = np.concatenate([ndvi(bands).ravel() for bands in sources])
    valid = every[np.isfinite(every)].astype("float32").astype("float64")
    assert stats is not None
    assert (stats.pixels, stats.count) == (every.size, valid.size)
    assert (stats.min, stats.max) == (valid.min(), valid.max())
    assert (stats.mean, stats.std) == pytest.approx((valid.mean(), valid.std()), rel=1e-9)


@BOTH
def test_the_report_is_published(bench: Bench) -> None:
    bench.source()
    flight = bench.flight()
    run = bench.run(flight, "never")
    report = finalise(run, flight, bench.make(flight, run), bench.tools)
    raw = bench.stores.read(bench.uri("out/F1.report.json"))
    assert raw is not None

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    content = json.loads(raw, parse_constant=refuse)
    assert FlightReport.model_validate(content) == report == load_report(bench.stores, flight)
    assert (content["flight_id"], content["run_id"], content["status"]) == ("F1", "run1", "complete")
    assert {"flights", "gdal", "rasterio", "numpy"} <= set(content["versions"])
    progress = bench.tools.ledger.progress(run.run_id)
    assert progress is not None
    assert (progress.done, progress.concluded) == (1, True)


# What may lie where a flight's own records go: another version's words, half a file, somebody's text.
RECORDS = {"nothing": b"", "half": b'{"flight_id": "F1", "run', "another version": b'{"flight_id": "F1", "unheard": 1}'}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("where", ["out/F1.report.json", "runs/F1/failures/t2.json"])
def test_an_unreadable_record_keeps_no_flight_from_its_answer(bench: Bench, record: str, where: str) -> None:
    bench.source()
    flight = bench.flight(2)
    run = bench.run(flight)
    bench.stores.write(bench.uri(where), RECORDS[record])
    (told, _) = bench.make(flight, run)
    bench.stores.write(bench.uri(where), RECORDS[record])
    report = finalise(run, flight, [told], bench.tools)
    assert report.tiles.done == 1
    assert report.tiles.failed + report.tiles.missing == 1
    assert load_report(bench.stores, flight) == report


# ---------------------------------------------------------------- a flight's composite


@dataclass(frozen=True)
class Laid:
    """A tile of a mosaic: its corner in pixels of the common grid, its size, its holes."""

    row: int
    col: int
    height: int = 40
    width: int = 50
    holes: tuple[slice, slice] | None = None

    def bands(self, seed: int) -> dict[str, NDArray[Any]]:
        bands = synthetic.field(self.height, self.width, seed=seed)
        if self.holes:
            for band in bands.values():
                band[self.holes] = 0
        return bands


def pasted(tiles: Sequence[Laid], values: Sequence[Values]) -> Values:
    """Pixel by pixel: the first tile in order that has a value there."""
    top, left = min(t.row for t in tiles), min(t.col for t in tiles)
    bottom, right = max(t.row + t.height for t in tiles), max(t.col + t.width for t in tiles)
    canvas = np.full((bottom - top, right - left), np.nan)
    for tile, value in reversed(list(zip(tiles, values, strict=True))):
        view = canvas[tile.row - top :, tile.col - left :][: tile.height, : tile.width]
        view[np.isfinite(value)] = value[np.isfinite(value)]
    return canvas


HOLE = (slice(5, 30), slice(10, 45))
ALL = (slice(None), slice(None))
MOSAICS: dict[str, list[Laid]] = {
    "one tile": [Laid(3, 4)],
    "side by side": [Laid(0, 0), Laid(0, 50), Laid(40, 0), Laid(40, 50)],
    "the first is not the corner": [Laid(40, 50), Laid(0, 50), Laid(40, 0), Laid(0, 0)],
    "overlapping": [Laid(0, 0), Laid(20, 25), Laid(10, 40)],
    "overlapping, in another order": [Laid(10, 40), Laid(20, 25), Laid(0, 0)],
    "a hole over data": [Laid(0, 0, holes=HOLE), Laid(0, 0), Laid(2, 2)],
    "data over a hole": [Laid(0, 0), Laid(0, 0, holes=HOLE)],
    "holes over holes": [Laid(0, 0, holes=HOLE), Laid(3, 3, holes=HOLE)],
    "an empty tile over all": [Laid(0, 0, 90, 90, holes=ALL), Laid(10, 10)],
    "one within another": [Laid(10, 10, 9, 9), Laid(0, 0)],
    "a gap between": [Laid(0, 0), Laid(100, 200)],
    "across blocks": [Laid(0, 0, 520, 30), Laid(500, 20, 100, 600), Laid(510, 505, 10, 10)],
    "single pixels": [Laid(0, 0, 1, 1), Laid(2, 3, 1, 1)],
}


def lay(bench: Bench, tiles: Sequence[Laid], **options: Any) -> tuple[Flight, Values]:
    """The sources and the flight of a mosaic, and what it must hold."""
    values = []
    for i, tile in enumerate(tiles):
        bands = tile.bands(seed=i + 1)
        bench.source(bands, f"t{i + 1}.tif", **{"transform": place(tile.col, tile.row), **options})
        values.append(ndvi(bands))
    return bench.flight(len(tiles)), pasted(tiles, values)


@pytest.mark.parametrize("window_bytes", [2**20, 2**26])
@pytest.mark.parametrize("case", MOSAICS)
def test_a_mosaic(new_bench: NewBench, case: str, window_bytes: int) -> None:
    bench = new_bench(window_bytes=window_bytes)
    tiles = MOSAICS[case]
    flight, wanted = lay(bench, tiles)
    report = bench.complete(flight)
    assert report.mosaic_error is None
    assert report.mosaic is not None
    assert report.mosaic.uri == flight.mosaic_uri == bench.uri("out/F1.ndvi.tif")
    same(bench.pixels(flight.mosaic_uri), wanted)
    valid = wanted[np.isfinite(wanted)]
    stats = report.mosaic.stats
    assert (stats.count, stats.pixels) == (valid.size, wanted.size)
    assert (stats.mean, stats.std) == pytest.approx((valid.mean(), valid.std()), abs=1e-6)
    with rasterio.open(flight.mosaic_uri) as mosaic:
        assert mosaic.transform.almost_equals(place(min(t.col for t in tiles), min(t.row for t in tiles)))
        assert mosaic.crs.to_epsg() == EPSG
        assert mosaic.tags()["COMPLETE"] == "YES"
        assert mosaic.descriptions == ("NDVI",)
    if min(wanted.shape) > 1:
        assert cog_validate(flight.mosaic_uri, strict=True, quiet=True)[0]
    assert load_report(bench.stores, flight) == report


def test_the_mosaic_comes_after_the_report(bench: Bench) -> None:
    flight, _ = lay(bench, MOSAICS["overlapping"])
    run = bench.run(flight)
    report = finalise(run, flight, bench.make(flight, run), bench.tools)
    assert (report.status, report.mosaic, report.mosaic_error) == (FlightStatus.COMPLETE, None, None)
    assert not run.is_settled_by(report)
    assert bench.stores.stat(flight.mosaic_uri) is None
    before = bench.tools.ledger.progress(run.run_id)
    assert before is not None
    assert not before.concluded
    after = composite_flight(run, bench.tools)
    assert after is not None
    assert run.is_settled_by(after)
    added = {"mosaic": said(after)["mosaic"], "products": said(report)["products"] | {"mosaic": flight.mosaic_uri}}
    assert said(after) == said(report) | added
    progress = bench.tools.ledger.progress(run.run_id)
    assert progress is not None
    assert progress.concluded
    # The report derived once more keeps what its tiles still match.
    assert said(finalise(run, flight, [], bench.tools)) == said(after)


def test_a_mosaic_is_made_once(bench: Bench) -> None:
    flight, wanted = lay(bench, MOSAICS["overlapping"])
    first = bench.complete(flight)
    made = bench.identity(flight.mosaic_uri)
    second = bench.complete(flight)
    assert first.mosaic is not None
    assert second.mosaic is not None
    assert (first.mosaic.cached, second.mosaic.cached) == (False, True)
    assert bench.identity(flight.mosaic_uri) == made
    bench.stores.write(flight.mosaic_uri, b"somebody's")
    third = bench.complete(flight)
    assert third.mosaic is not None
    assert not third.mosaic.cached
    same(bench.pixels(flight.mosaic_uri), wanted)
    bench.complete(flight, bench.run(flight, overwrite=True))
    assert bench.identity(flight.mosaic_uri) != made


def test_a_mosaic_is_made_again_when_a_tile_or_their_order_changes(bench: Bench) -> None:
    tiles = MOSAICS["overlapping"]
    flight, _ = lay(bench, tiles)
    bench.complete(flight)
    newer = tiles[1].bands(seed=50)
    bench.source(newer, "t2.tif", transform=place(tiles[1].col, tiles[1].row))
    values = [ndvi(tiles[0].bands(1)), ndvi(newer), ndvi(tiles[2].bands(3))]
    bench.complete(flight)
    same(bench.pixels(flight.mosaic_uri), pasted(tiles, values))
    bench.complete(flight.model_copy(update={"tiles": flight.tiles[::-1]}))
    same(bench.pixels(flight.mosaic_uri), pasted(tiles[::-1], values[::-1]))


def test_an_incomplete_mosaic_says_so(bench: Bench) -> None:
    tiles = MOSAICS["side by side"]
    flight, _ = lay(bench, tiles)
    bench.stores.delete(bench.uri("raw/t2.tif"))
    run = bench.run(flight, "any")
    finalise(run, flight, bench.make(flight, run), bench.tools)
    report = composite_flight(run, bench.tools)
    assert report is not None
    assert report.mosaic is not None
    assert (report.status, report.complete, report.mosaic.complete) == (FlightStatus.INCOMPLETE, False, False)
    tags = bench.tags(flight.mosaic_uri)
    assert (tags["COMPLETE"], tags["MISSING_TILES"]) == ("NO", "t2")
    left = [t for i, t in enumerate(tiles) if i != 1]
    same(
        bench.pixels(flight.mosaic_uri), pasted(left, [ndvi(t.bands(s)) for t, s in zip(left, (1, 3, 4), strict=True)])
    )
    # Complete at last, it is another mosaic.
    bench.source(tiles[1].bands(2), "t2.tif", transform=place(tiles[1].col, tiles[1].row))
    bench.complete(flight)
    assert bench.tags(flight.mosaic_uri)["COMPLETE"] == "YES"


@pytest.mark.parametrize("shift", [0.0, 0.2, -0.3, 0.48])
def test_a_tile_between_pixels_is_moved_to_the_nearest(bench: Bench, shift: float) -> None:
    tiles = MOSAICS["overlapping"]
    flight, wanted = lay(bench, tiles)
    moved = place(tiles[1].col, tiles[1].row) * Affine.translation(shift, -shift)
    bench.source(tiles[1].bands(2), "t2.tif", transform=moved)
    report = bench.complete(flight)
    assert report.mosaic is not None
    same(bench.pixels(flight.mosaic_uri), wanted)
    assert report.mosaic.max_shift_px == pytest.approx(abs(shift), abs=1e-6)


def test_tiles_that_lie_south_up(bench: Bench) -> None:
    tiles = MOSAICS["overlapping"]
    flight, wanted = lay(bench, tiles)
    for i, tile in enumerate(tiles):
        corner = Affine(PIXEL_M, 0, WEST + tile.col * PIXEL_M, 0, PIXEL_M, NORTH + tile.row * PIXEL_M)
        bench.source(tile.bands(i + 1), f"t{i + 1}.tif", transform=corner)
    report = bench.complete(flight)
    assert report.mosaic_error is None
    same(bench.pixels(flight.mosaic_uri), wanted)


@pytest.mark.parametrize("first", [0, 1])
def test_tiles_whose_crs_is_the_same_in_other_words(bench: Bench, first: int) -> None:
    """Each is EPSG:32615 by the manifest and by its file; one file adds a height system."""
    tiles = MOSAICS["overlapping"][:2]
    flight, wanted = lay(bench, tiles)
    at = place(tiles[first].col, tiles[first].row)
    bench.source(tiles[first].bands(first + 1), f"t{first + 1}.tif", transform=at, crs="EPSG:32615+5703")
    report = bench.complete(flight)
    assert report.mosaic_error is None
    same(bench.pixels(flight.mosaic_uri), wanted)


# What the second tile's source is; the manifest's word on it; what the message names.
UNFIT: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "another zone": ({"crs": "EPSG:32616"}, {"epsg": 32616}, ["EPSG:32615", "EPSG:32616"]),
    "another pixel size": (
        {"transform": Affine(0.25, 0, WEST, 0, -0.25, NORTH)}, {}, ["t1", "t2", "pixel size", "0.25", "0.5"],
    ),
    "pixels that are not square": (
        {"transform": Affine(0.5, 0, WEST, 0, -0.6, NORTH)}, {}, ["t1", "t2", "pixel size", "0.6", "0.5"],
    ),
    "rotated": ({"transform": Affine(0.4, 0.3, WEST, 0.3, -0.4, NORTH)}, {}, ["t2", "rotated"]),
    "far apart": ({"transform": place(0, 200_000)}, {}, ["far apart", "200040"]),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_tiles_that_make_no_mosaic(bench: Bench, case: str) -> None:
    options, declared, named = UNFIT[case]
    bench.source(Laid(0, 0).bands(1), "t1.tif")
    bench.source(Laid(0, 0).bands(2), "t2.tif", **options)
    flight = bench.flight([{}, declared])
    run = bench.run(flight)
    report = bench.complete(flight, run)
    assert report.status is FlightStatus.COMPLETE
    assert report.mosaic is None
    assert report.mosaic_error is not None
    assert report.mosaic_error.code == Code.MOSAIC_REFUSED
    assert [word for word in named if word not in report.mosaic_error.message] == []
    assert bench.stores.stat(flight.mosaic_uri) is None
    assert load_report(bench.stores, flight) == report
    assert run.is_settled_by(report)
    progress = bench.tools.ledger.progress(run.run_id)
    assert progress is not None
    assert progress.concluded


@pytest.mark.parametrize("damage", ["another flight's product", "cut", "text", "removed"])
def test_a_product_lost_after_the_report_makes_no_mosaic(new_bench: NewBench, damage: str) -> None:
    """A mosaic carries the fingerprints of the tiles in the report: other pixels must not go under that name."""
    bench = new_bench(transient_attempts=1)
    flight, _ = lay(bench, MOSAICS["side by side"][:2])
    run = bench.run(flight)
    told = bench.make(flight, run)
    finalise(run, flight, told, bench.tools)
    dst = told[1].dst_uri
    match damage:
        case "another flight's product":
            (theirs,) = bench.make(bench.flight([{"dst_uri": dst, "bands": {"red": 4, "nir": 3}}]))
            assert theirs.state in (TileState.DONE, TileState.REVIEW)
            save_run(bench.stores, run, flight)
        case "cut":
            os.truncate(dst, os.path.getsize(dst) // 2)
        case "text":
            bench.stores.write(dst, b"not a raster")
        case _:
            bench.stores.delete(dst)
    report = composite_flight(run, bench.tools)
    assert report is not None
    assert report.mosaic is None
    assert report.mosaic_error is not None
    assert bench.stores.stat(flight.mosaic_uri) is None
    assert load_report(bench.stores, flight) == report


def test_a_run_that_was_superseded_composites_nothing(bench: Bench) -> None:
    flight, _ = lay(bench, MOSAICS["overlapping"])
    run = bench.run(flight)
    assert composite_flight(run, bench.tools) is None, "there is no report yet"
    finalise(run, flight, bench.make(flight, run), bench.tools)
    bench.run(flight)
    assert composite_flight(run, bench.tools) is None
    assert bench.stores.stat(flight.mosaic_uri) is None


def test_a_mosaic_published_meanwhile_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    flight, wanted = lay(bench, MOSAICS["overlapping"])
    run = bench.run(flight)
    finalise(run, flight, bench.make(flight, run), bench.tools)
    meanwhile(monkeypatch, lambda: bench.stores.write(flight.mosaic_uri, b"somebody else's"))
    report = composite_flight(run, bench.tools)
    assert report is not None
    assert report.mosaic is not None
    same(bench.pixels(flight.mosaic_uri), wanted)


# What a run wants, how a flight ended, whether a composite is due.
RULES: list[tuple[CompositeRule, FlightStatus, int, bool]] = [
    ("complete", FlightStatus.COMPLETE, 1, True),
    ("complete", FlightStatus.REVIEW, 1, False),
    ("complete", FlightStatus.INCOMPLETE, 1, False),
    ("review", FlightStatus.COMPLETE, 1, True),
    ("review", FlightStatus.REVIEW, 1, True),
    ("review", FlightStatus.INCOMPLETE, 1, False),
    ("any", FlightStatus.COMPLETE, 1, True),
    ("any", FlightStatus.REVIEW, 1, True),
    ("any", FlightStatus.INCOMPLETE, 1, True),
    ("any", FlightStatus.INCOMPLETE, 0, False),
    ("any", FlightStatus.REFUSED, 1, False),
    ("never", FlightStatus.COMPLETE, 1, False),
    ("never", FlightStatus.REVIEW, 1, False),
    ("never", FlightStatus.INCOMPLETE, 1, False),
]


@pytest.mark.parametrize(("rule", "status", "made", "due"), RULES)
def test_when_a_composite_is_due(rule: CompositeRule, status: FlightStatus, made: int, due: bool) -> None:
    run = Run(run_id="r", flight_id="F1", record_uri="/r", started=datetime.now(UTC), composite=rule)
    report = FlightReport(
        flight_id="F1",
        run_id="r",
        status=status,
        complete=status is not FlightStatus.INCOMPLETE,
        tiles=TileCounts(total=2, done=made),
        outcomes=(),
    )
    assert run.wants_composite(report) is due
    assert run.is_settled_by(report) is not due
    assert not run.is_settled_by(report.model_copy(update={"run_id": "another"}))
    assert not run.is_settled_by(None)


# ---------------------------------------------------------------- one flight, two stores


def test_local_disk_and_s3_give_the_same_flight(new_bench: NewBench) -> None:
    made: list[tuple[list[NDArray[np.float32]], FlightReport]] = []
    for kind in ("local", "s3"):
        bench = new_bench(kind)
        flight, wanted = lay(bench, MOSAICS["a hole over data"])
        report = bench.complete(flight)
        same(bench.pixels(flight.mosaic_uri), wanted)
        uris = [tile.dst_uri for tile in flight.tiles] + [flight.mosaic_uri]
        made.append(([bench.pixels(uri) for uri in uris], report))
    (ours, mine), (theirs, yours) = made
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert mine.mosaic is not None
    assert yours.mosaic is not None
    assert (mine.status, mine.tiles, mine.stats, mine.mosaic.stats) == (
        yours.status,
        yours.tiles,
        yours.stats,
        yours.mosaic.stats,
    )


def test_from_s3_to_local_disk_and_back(new_bench: NewBench) -> None:
    """Sources and products need not lie in one store."""
    local, remote = new_bench(), new_bench("s3")
    bands = synthetic.field()
    local.source(bands)
    remote.source(bands)
    for here, there in ((local, remote), (remote, local)):
        flight = here.flight([{"dst_uri": there.uri("crossed/t.tif")}])
        (outcome,) = here.make(flight)
        assert outcome.state is TileState.DONE
        same(there.pixels(outcome.dst_uri), ndvi(bands))


# ---------------------------------------------------------------- many tiles of one folder


@pytest.mark.parametrize("bench", ["local", "s3"], indirect=True)
@pytest.mark.parametrize("folder", ["raw", "raw/ü b#?", "raw//deep"])
def test_a_folder_of_many_tiles_is_seen_as_each_of_them_is(bench: Bench, folder: str) -> None:
    """Listed or asked for one by one: the same tiles are there, stale, damaged or missing."""
    sources = [f"{folder}/t{i}.tif" for i in range(LIST_FROM + 4)]
    flight = bench.flight([{"src_uri": bench.uri(name)} for name in sources])
    for name in sources[:-1]:
        bench.stores.write(bench.uri(name), write_tif(bench.folder / "m.tif", synthetic.field(16, 16)).read_bytes())
    bench.stores.write(bench.uri(sources[1] + ".aux.xml"), b"<PAMDataset/>")
    told = bench.make(flight)
    bench.stores.write(flight.tiles[2].dst_uri, b"damaged")
    bench.stores.delete(flight.tiles[3].dst_uri)
    bench.stores.write(bench.uri(sources[4]), write_tif(bench.folder / "m.tif", synthetic.field(8, 8)).read_bytes())
    run = bench.run(flight)
    one_by_one = [next(survey(bench.stores, flight, [tile])) for tile in flight.tiles]
    at_once = list(survey(bench.stores, flight))
    known = list(survey(bench.stores, flight, known=known_products(told, "run1")))
    for seen in (at_once, known):
        assert [(s.plan(run), s.fingerprint) for s in seen] == [(s.plan(run), s.fingerprint) for s in one_by_one]
        assert [s.error and str(s.error) for s in seen] == [s.error and str(s.error) for s in one_by_one]
        stats = [[p.stats if (p := s.current()) else None for s in each] for each in (seen, one_by_one)]
        assert stats[0] == stats[1]
    plans = [s.plan() for s in at_once]
    assert plans == [Plan.CURRENT, Plan.CURRENT, Plan.STALE, Plan.NEW, Plan.STALE, *[Plan.CURRENT] * 6, Plan.NEW]


@pytest.mark.parametrize("bench", ["s3"], indirect=True)
def test_an_unchanged_flight_is_planned_from_listings(bench: Bench) -> None:
    flight = bench.flight(LIST_FROM)
    for i in range(LIST_FROM):
        bench.source(synthetic.field(16, 16), f"t{i + 1}.tif")
    told = bench.make(flight)
    report = finalise(bench.run(flight), flight, told, bench.tools)
    asked: list[str] = []
    events = bench.stores.of("s3://").client.meta.events  # type: ignore[attr-defined]  # of the S3 store
    events.register("before-parameter-build.s3", lambda model, **_: asked.append(model.name))
    seen = survey(bench.stores, flight, known=known_of_report(report))
    assert {s.plan() for s in seen} == {Plan.CURRENT}
    assert asked == ["ListObjectsV2"] * 2


# ---------------------------------------------------------------- a source that is fetched in part, or in parts


def wide_field(shape: tuple[int, int] = (700, 900)) -> Bands:
    """Bands of several blocks, in which no value is that of a byte that was not fetched."""
    return {role: np.maximum(values, 1) for role, values in synthetic.field(*shape).items()}


def put_header_first(bench: Bench, bands: Bands, tags: Mapping[str, str] | None = None, **options: Any) -> int:
    """A source as COGs are: its header at the start, since it is complete before the pixels come. Its size."""
    path = bench.folder / "made.tif"
    height, width = bands["red"].shape
    profile: dict[str, Any] = {"driver": "GTiff", "height": height, "width": width, "count": len(bands)}
    profile |= {"dtype": "uint16", "nodata": 0, "crs": "EPSG:32615", "transform": synthetic.place()}
    profile |= {"tiled": True, "blockxsize": 256, "blockysize": 256} | options
    with rasterio.open(path, "w", **profile) as out:
        out.update_tags(**(tags or {}))
        out.write(np.stack(list(bands.values())))
    bench.stores.write(bench.uri("raw/t1.tif"), path.read_bytes())
    return path.stat().st_size


def fetched(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranges that sources are asked for from now on; "" for a whole one."""
    asked: list[str] = []
    client = bench.stores.of("s3://").client  # type: ignore[attr-defined]  # of the S3 store

    def note(params: dict[str, Any], **_: object) -> None:
        if params["Key"].startswith("raw/") or "/raw/" in params["Key"]:
            asked.append(params.get("Range", ""))

    client.meta.events.register("provide-client-params.s3.GetObject", note)
    monkeypatch.setattr("flights.store.s3.PARALLEL_FROM", 50_000)
    monkeypatch.setattr("flights.pipeline.tile.PARTIAL_FROM", 50_000)
    monkeypatch.setattr("flights.pipeline.tile.HEADER_BYTES", 4096)
    monkeypatch.setattr("flights.pipeline.tile._whole_files", set())
    monkeypatch.setattr("flights.raster.layout.GAP_BYTES", 64)
    return asked


def spans(asked: Sequence[str]) -> list[int]:
    ends = [range_.removeprefix("bytes=").split("-") for range_ in asked if range_]
    return [int(stop) - int(start) + 1 for start, stop in ends]


@pytest.mark.parametrize("bench", ["s3"], indirect=True)
@pytest.mark.parametrize("compress", ["deflate", "zstd", "lzw"])
def test_only_the_bands_in_use_are_fetched(bench: Bench, monkeypatch: pytest.MonkeyPatch, compress: str) -> None:
    bands = wide_field()
    size = put_header_first(bench, bands, interleave="band", compress=compress)
    asked = fetched(bench, monkeypatch)
    (outcome,) = bench.make(bench.flight())
    assert outcome.state is TileState.DONE, outcome.error
    same(bench.pixels(outcome.dst_uri), ndvi(bands))
    assert "" not in asked
    assert sum(spans(asked)) < 0.7 * size


@pytest.mark.parametrize("bench", ["s3"], indirect=True)
@pytest.mark.parametrize("compress", ["deflate", "none"])
def test_a_mask_that_looks_at_every_band_has_them_all_fetched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, compress: str
) -> None:
    """NODATA_VALUES: GDAL calls a pixel nodata where every band of the file is."""
    bands = wide_field()
    for values in bands.values():
        values[:300] = 65535
    tags = {"NODATA_VALUES": " ".join(["65535"] * len(bands))}
    put_header_first(bench, bands, tags, interleave="band", compress=compress, nodata=None)
    fetched(bench, monkeypatch)
    (outcome,) = bench.make(bench.flight())
    assert outcome.error is None
    pixels = bench.pixels(outcome.dst_uri)
    assert np.isnan(pixels[:300]).all()
    same(pixels[300:], ndvi({role: values[300:] for role, values in bands.items()}))


@pytest.mark.parametrize("bench", ["s3"], indirect=True)
def test_a_file_that_is_cut_off_is_corrupt_however_it_is_fetched(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put_header_first(bench, wide_field(), interleave="band", compress="deflate")
    raw = bench.stores.read(bench.uri("raw/t1.tif")) or b""
    bench.stores.write(bench.uri("raw/t1.tif"), raw[: len(raw) // 2])
    fetched(bench, monkeypatch)
    (outcome,) = bench.make(bench.flight())
    assert outcome.error is not None
    assert outcome.error.code == "source_corrupt"


@pytest.mark.parametrize("bench", ["s3"], indirect=True)
@pytest.mark.parametrize("forbidden", [True, False])
def test_a_whole_source_comes_in_ranges_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, forbidden: bool) -> None:
    """One that is interleaved by pixel; or any, where reading in part is forbidden."""
    bands = wide_field()
    interleave = "band" if forbidden else "pixel"
    size = put_header_first(bench, bands, interleave=interleave, compress="none")
    asked = fetched(bench, monkeypatch)
    settings = bench.tools.settings.model_copy(update={"partial_reads": not forbidden})
    monkeypatch.setattr(bench, "tools", dataclasses.replace(bench.tools, settings=settings))
    (outcome,) = bench.make(bench.flight())
    assert outcome.state is TileState.DONE, outcome.error
    same(bench.pixels(outcome.dst_uri), ndvi(bands))
    assert len([n for n in spans(asked) if n > 4096]) == 3
    assert sum(spans(asked)) == size


@pytest.mark.parametrize("bench", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("interleave", "wanted"),
    [
        # a look at source and product, the checksum, three ranges; source and authority again, the product; no header,
        # since the last file of the folder was needed as a whole
        ("pixel", ["GetObject"] * 4 + ["HeadObject"] * 2 + ["ListObjectsV2"] * 2 + ["PutObject"]),
        # no checksum is asked of a part, but the header; red and NIR lie beside one another
        ("band", ["GetObject"] * 5 + ["HeadObject"] + ["ListObjectsV2"] * 2 + ["PutObject"]),
    ],
)
def test_the_requests_of_a_large_tile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, interleave: str, wanted: list[str]
) -> None:
    put_header_first(bench, wide_field(), interleave=interleave, compress="deflate")
    fetched(bench, monkeypatch)
    run = bench.run(bench.flight())
    bench.make(bench.flight(), run)  # that the bucket is there is asked once
    bench.stores.delete(bench.flight().tiles[0].dst_uri)
    asked: list[str] = []
    client = bench.stores.of("s3://").client  # type: ignore[attr-defined]  # of the S3 store
    client.meta.events.register("before-call.s3", lambda model, **_: asked.append(model.name))
    (outcome,) = bench.make(bench.flight(), run)
    assert outcome.state is TileState.DONE, outcome.error
    assert sorted(asked) == wanted


# ---------------------------------------------------------------- ten-thousandths


def test_products_in_ten_thousandths(bench: Bench) -> None:
    """int16 with a scale: within half a step, nodata stays nodata, and the mosaic is of the same kind."""
    bands = synthetic.field(1100, 700)
    bands["red"][:40, :300] = bands["nir"][:40, :300] = 0
    bench.source(bands)
    bench.source(bands, "t2.tif", transform=synthetic.place(col=700))
    flight = bench.flight(2, dtype="int16")
    report = bench.complete(flight)
    assert report.status == "complete"
    wanted = ndvi(bands)
    for uri, expected in ((flight.tiles[0].dst_uri, wanted), (flight.mosaic_uri, np.hstack([wanted, wanted]))):
        content = bench.stores.read(uri)
        assert content is not None
        with MemoryFile(content) as memory, memory.open() as product:
            assert (product.dtypes, product.nodata, product.scales, product.offsets) == (
                ("int16",),
                -32768,
                (1e-4,),
                (0,),
            )
            masked = product.read(1, masked=True)
            said = product.tags(1)
            assert float(said["STATISTICS_MAXIMUM"]) == masked.max()
        np.testing.assert_array_equal(masked.mask, np.isnan(expected))
        np.testing.assert_allclose(masked.filled(0) * 1e-4, np.nan_to_num(expected), rtol=0, atol=0.501e-4)
        assert abs(float(said["STATISTICS_MEAN"]) * 1e-4 - np.nanmean(expected)) < 1e-5
    assert report.stats is not None
    assert report.stats.mean is not None
    assert abs(report.stats.mean - np.nanmean(wanted)) < 1e-5
    again = bench.make(bench.flight(2, dtype="float32"))
    assert [outcome.cached for outcome in again] == [False, False]
