"""The run record, on disk and in a bucket: what is written comes back, and what is not there is said."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from flights.errors import Code, FlightsError, Refused, Superseded, Transient
from flights.manifest import Flight, parse_manifest
from flights.report import FlightReport, FlightStatus, Mosaic, Problem, Stats, TileCounts, failed
from flights.runs import (
    CompositeRule,
    Job,
    Run,
    check_authority,
    failed_tiles,
    failure_records,
    forget_failures,
    has_ended,
    load_failure,
    load_report,
    load_run,
    mark_ended,
    record_uri,
    records,
    save_failure,
    save_report,
    save_run,
)
from flights.store import Stores, open_stores
from tests.synthetic import manifest

STARTED = datetime(2026, 6, 14, 17, 3, tzinfo=UTC)
STATS = Stats(pixels=4, count=2, valid_fraction=0.5, min=0.1, max=0.3, mean=0.2, std=0.1)


@pytest.fixture
def stores() -> Stores:
    return open_stores()


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder on disk, and a prefix of an S3 in this process."""
    if request.param == "disk":
        yield str(tmp_path / "place")
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="runs")
        yield "s3://runs/odd #?%20+ prefix"


def flight(place: str, *tile_ids: str, **more: Any) -> Flight:
    tiles = [{"tile_id": t, "src_uri": f"{t}.tif"} for t in tile_ids or ("a", "b")]
    return parse_manifest(json.dumps(manifest("F001", tiles, **{"out_uri": "out", **more})).encode(), place)


def run(place: str, **more: Any) -> Run:
    return Run(run_id="r1", flight_id="F001", record_uri=record_uri(f"{place}/runs", "F001"), started=STARTED, **more)


def report(status: str = "complete", run_id: str = "r1", **more: Any) -> FlightReport:
    counts = {
        "complete": TileCounts(total=2, done=2),
        "review": TileCounts(total=2, done=1, review=1),
        "incomplete": TileCounts(total=2, done=1, failed=1),
        "refused": TileCounts(total=0),
    }
    values: dict[str, Any] = {"tiles": counts[status], "complete": status in ("complete", "review"), "outcomes": ()}
    return FlightReport(flight_id="F001", run_id=run_id, status=FlightStatus(status), **values | more)


# ---------------------------------------------------------------- the record


@pytest.mark.parametrize(
    ("runs_uri", "record"),
    [
        ("/srv/runs", "/srv/runs/F 1"),
        ("s3://runs", "s3://runs/F 1"),
        ("s3://runs/x", "s3://runs/x/F 1"),
        ("s3://runs/x/", "s3://runs/x/F 1"),
    ],
)
def test_where_a_record_lives(runs_uri: str, record: str) -> None:
    assert record_uri(runs_uri, "F 1") == record


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"nodata": "nan", "scale": {"red": 1e-4, "nir": 2e-4}, "acquired": "2026-06-14T17:03:00+02:00"},
        {"out_uri": "s3://ndvi/"},  # the bucket itself
        {"out_uri": "s3://ndvi/a b#?%20"},
        {"tenant": "Höfe"},
    ],
)
def test_a_run_comes_back(stores: Stores, place: str, more: dict[str, Any]) -> None:
    saved, of = run(place, overwrite=True, composite="any"), flight(place, **more)
    save_run(stores, saved, of)
    found, manifest_found = load_run(stores, saved.record_uri)
    assert found == saved
    assert repr(manifest_found) == repr(of)  # NaN is equal to itself here


def test_the_files_of_a_record(stores: Stores, place: str) -> None:
    save_run(stores, run(place), flight(place))
    save_failure(stores, run(place), failed("a", "/out/a.tif", Refused(Code.CRS_MISMATCH, "no")))
    names = [uri.removeprefix(f"{place}/runs/F001/") for uri in stores.list(f"{place}/runs/F001")]
    assert sorted(names) == ["manifest.json", "run.json"]
    assert list(stores.list(f"{place}/runs/F001/failures")) == [f"{place}/runs/F001/failures/a@r1.json"]
    body = json.loads(stores.read(f"{place}/runs/F001/run.json") or b"")
    assert (body["run_id"], body["flight_id"]) == ("r1", "F001")


def test_the_last_run_stands(stores: Stores, place: str) -> None:
    save_run(stores, run(place), flight(place, "a", "b"))
    later = run(place).model_copy(update={"run_id": "r2"})
    save_run(stores, later, flight(place, "c"))
    found, manifest_found = load_run(stores, later.record_uri)
    assert found.run_id == "r2"
    assert [t.tile_id for t in manifest_found.tiles] == ["c"]


@pytest.mark.parametrize("lacking", [("run.json", "manifest.json"), ("run.json",), ("manifest.json",)])
def test_no_record(stores: Stores, place: str, lacking: tuple[str, ...]) -> None:
    saved = run(place)
    save_run(stores, saved, flight(place))
    for name in lacking:
        stores.delete(f"{saved.record_uri}/{name}")
    with pytest.raises(Refused) as refused:
        load_run(stores, saved.record_uri)
    assert refused.value.code is Code.MANIFEST_MISSING
    assert saved.record_uri in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b'{"run_id": "r1"}'])
@pytest.mark.parametrize("name", ["run.json", "manifest.json"])
def test_a_damaged_record_is_refused_by_name(stores: Stores, tmp_path: Path, name: str, content: bytes) -> None:
    saved = run(str(tmp_path))
    save_run(stores, saved, flight(str(tmp_path)))
    stores.write(f"{saved.record_uri}/{name}", content)
    with pytest.raises(FlightsError) as error:
        load_run(stores, saved.record_uri)
    assert saved.record_uri in str(error.value)


# ---------------------------------------------------------------- failures


def test_where_no_records_can_lie_the_setting_is_named(stores: Stores, place: str) -> None:
    assert records(stores, place) == {}
    if place.startswith("s3://"):
        with pytest.raises(Refused, match=r"FLIGHTS_RUNS_URI.*bucket nowhere does not exist"):
            records(stores, "s3://nowhere/runs")


def test_failures_come_back_and_are_forgotten(stores: Stores, place: str) -> None:
    of, names = run(place), ("a", "b.json", "c d", "é", "t.1")
    assert failed_tiles(stores, of) == set()
    for name in names:
        save_failure(stores, of, failed(name, f"/out/{name}.tif", Transient(Code.DISK_FULL, name), attempts=2))
    assert failed_tiles(stores, of) == set(names)
    for name in names:
        found = load_failure(stores, failure_records(stores, of)[name])
        assert found == failed(name, f"/out/{name}.tif", Transient(Code.DISK_FULL, name), attempts=2)
    assert load_failure(stores, f"{of.record_uri}/failures/never@{of.run_id}.json") is None
    forget_failures(stores, of, {"a", "c d", "never"})
    assert failed_tiles(stores, of) == {"b.json", "é", "t.1"}
    assert "a" not in failure_records(stores, of)


def test_another_runs_failure_is_told_but_is_not_this_ones(stores: Stores, place: str) -> None:
    """A late message of an older run speaks for that run alone; the newest word on a tile is the one to tell."""
    older, newer = (run(place).model_copy(update={"run_id": run_id}) for run_id in ("20260101T0-a", "20260102T0-b"))
    save_failure(stores, newer, failed("a", "/out/a.tif", Refused(Code.SOURCE_CORRUPT, "newer")))
    save_failure(stores, older, failed("a", "/out/a.tif", Refused(Code.CRS_MISSING, "older")))
    save_failure(stores, older, failed("b", "/out/b.tif", Refused(Code.CRS_MISSING, "older")))
    assert failed_tiles(stores, newer) == {"a"}
    told = {name: load_failure(stores, uri) for name, uri in failure_records(stores, newer).items()}
    assert {name: o.error.message for name, o in told.items() if o and o.error} == {"a": "newer", "b": "older"}


def test_a_run_that_is_not_the_last_has_no_authority(stores: Stores, place: str) -> None:
    first = run(place)
    check_authority(stores, first)  # nothing is recorded: nobody else has it
    save_run(stores, first, flight(place))
    check_authority(stores, first)
    save_run(stores, first.model_copy(update={"run_id": "another"}), flight(place))
    with pytest.raises(Superseded):
        check_authority(stores, first)


def test_a_run_has_ended_when_that_is_recorded(stores: Stores, place: str) -> None:
    assert not has_ended(stores, run(place))
    mark_ended(stores, run(place))
    assert has_ended(stores, run(place))
    assert not has_ended(stores, run(place).model_copy(update={"run_id": "another"}))


def test_the_last_failure_of_a_tile_stands(stores: Stores, place: str) -> None:
    for code in (Code.DISK_FULL, Code.SOURCE_CORRUPT):
        save_failure(stores, run(place), failed("a", "/out/a.tif", Refused(code, "no")))
    found = load_failure(stores, failure_records(stores, run(place))["a"])
    assert found is not None
    assert found.error == Problem(code="source_corrupt", message="no")


def test_a_flight_whose_name_begins_like_anothers_has_failures_of_its_own(stores: Stores, place: str) -> None:
    longer = run(place).model_copy(update={"record_uri": record_uri(f"{place}/runs", "F001-2")})
    save_failure(stores, longer, failed("a", "/out/a.tif", Refused(Code.CRS_MISMATCH, "no")))
    assert failed_tiles(stores, run(place)) == set()


def test_a_write_that_was_killed_is_no_failed_tile(stores: Stores, tmp_path: Path) -> None:
    of = run(str(tmp_path))
    save_failure(stores, of, failed("a", "/out/a.tif", Refused(Code.CRS_MISMATCH, "no")))
    (Path(of.record_uri) / "failures/.b.json.0123456789ab.part").write_bytes(b'{"tile_id"')
    assert failed_tiles(stores, of) == {"a"}


# ---------------------------------------------------------------- reports


def test_a_report_comes_back(stores: Stores, place: str) -> None:
    of = flight(place)
    assert load_report(stores, of) is None
    for written in (report("incomplete", error=Problem(code="x", message="ü")), report("complete", run_id="r2")):
        save_report(stores, of, written)
        assert load_report(stores, of) == written
    assert stores.read(f"{place}/out/F001.report.json") is not None


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"title": "somebody else\'s"}', b"\xff"])
def test_a_foreign_report_does_not_end_the_flight(stores: Stores, tmp_path: Path, content: bytes) -> None:
    """Whatever lies at the report's name, by hand or by another version, our report replaces it."""
    of = flight(str(tmp_path))
    stores.write(of.report_uri, content)
    assert load_report(stores, of) is None


# ---------------------------------------------------------------- what is due


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("complete", {"complete"}),
        ("review", {"complete", "review"}),
        ("any", {"complete", "review", "incomplete"}),
        ("never", set()),
    ],
)
@pytest.mark.parametrize("status", ["complete", "review", "incomplete", "refused"])
def test_when_a_composite_is_due(rule: CompositeRule, wanted: set[str], status: str) -> None:
    assert run("/x", composite=rule).wants_composite(report(status)) is (status in wanted)


@pytest.mark.parametrize("counts", [{"failed": 2}, {"missing": 2}, {"failed": 1, "missing": 1}])
def test_nothing_makes_no_composite(counts: dict[str, int]) -> None:
    nothing = report("incomplete", tiles=TileCounts(total=2, **counts))
    assert not run("/x", composite="any").wants_composite(nothing)


MOSAIC = Mosaic(uri="/out/F001.ndvi.tif", stats=STATS, fingerprint="f")
WRONG = Problem(code="mosaic_refused", message="two CRS")


@pytest.mark.parametrize(
    ("rule", "published", "settled"),
    [
        ("complete", None, False),
        ("complete", report("complete"), False),  # the composite is still to come
        ("complete", report("complete", mosaic=MOSAIC), True),
        ("complete", report("complete", mosaic_error=WRONG), True),
        ("complete", report("review"), True),
        ("complete", report("incomplete"), True),
        ("review", report("review"), False),
        ("any", report("incomplete"), False),
        ("any", report("incomplete", mosaic=MOSAIC), True),
        ("never", report("complete"), True),
        ("never", report("complete", run_id="r0"), False),  # another run's word
        ("complete", report("complete", run_id="r0", mosaic=MOSAIC), False),
    ],
)
def test_when_a_run_is_settled(rule: CompositeRule, published: FlightReport | None, settled: bool) -> None:
    assert run("/x", composite=rule).is_settled_by(published) is settled


# ---------------------------------------------------------------- jobs


@pytest.mark.parametrize(
    ("wanted", "found"),
    [({"b"}, ["b"]), ({"c", "a"}, ["a", "c"]), ({"a", "b", "c"}, ["a", "b", "c"])],
)
def test_a_job_is_some_tiles_of_a_flight(wanted: set[str], found: list[str]) -> None:
    whole = flight("/x", "a", "b", "c")
    job = Job.of(run("/x"), whole, [t for t in whole.tiles if t.tile_id in wanted])
    assert [t.tile_id for t in job.flight.tiles] == found
    assert all(t in whole.tiles for t in job.flight.tiles)
    assert (job.flight.out_uri, job.flight.flight_id) == (whole.out_uri, whole.flight_id)
    assert len(whole.tiles) == 3


@pytest.mark.parametrize("more", [{}, {"nodata": "nan"}, {"out_uri": "s3://ndvi/"}, {"acquired": "2026-06-14"}])
def test_a_job_survives_the_queue(more: dict[str, Any]) -> None:
    job = Job.of(run("/x", overwrite=True, composite="any"), whole := flight("/x", **more), whole.tiles)
    carried = Job.model_validate(json.loads(json.dumps(job.model_dump(mode="json", exclude_defaults=True))))
    assert carried.run == job.run
    assert Job.model_validate_json(job.model_dump_json()).model_dump_json() == job.model_dump_json()
    assert repr(carried.flight.tiles) == repr(job.flight.tiles)  # NaN is equal to itself here
    assert carried.model_dump_json() == job.model_dump_json()


def test_a_run_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="composite"):
        run("/x", composite="sometimes")
    with pytest.raises(ValueError, match="colour"):
        run("/x", colour=1)
