"""Outcomes and reports: how they fold, and that they are short, strict JSON."""

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flights.errors import Code, FlightsError, ManifestRefused, Refused, SourceChanged, Transient
from flights.report import (
    FlightReport,
    FlightStatus,
    Problem,
    Stats,
    TileCounts,
    TileOutcome,
    TileState,
    by_tile,
    count_states,
    decide,
    failed,
    missing,
    pool_stats,
    refused,
)

DONE, REVIEW, FAILED, MISSING = TileState.DONE, TileState.REVIEW, TileState.FAILED, TileState.MISSING


def outcome(state: TileState, cached: bool = False, tile_id: str = "t1", **more: Any) -> TileOutcome:
    return TileOutcome(tile_id=tile_id, state=state, cached=cached, dst_uri="/out/t1.tif", **more)


# ---------------------------------------------------------------- a flight's one answer


@pytest.mark.parametrize(
    ("states", "counts", "status"),
    [
        ([], {}, "incomplete"),
        ([(DONE, False)], {"done": 1}, "complete"),
        ([(DONE, False), (DONE, True)], {"done": 2, "cached": 1}, "complete"),
        ([(DONE, True), (DONE, True)], {"done": 2, "cached": 2}, "complete"),
        ([(DONE, False), (REVIEW, False)], {"done": 1, "review": 1}, "review"),
        ([(REVIEW, True)], {"review": 1, "cached": 1}, "review"),
        ([(DONE, False), (FAILED, False)], {"done": 1, "failed": 1}, "incomplete"),
        ([(DONE, False), (MISSING, False)], {"done": 1, "missing": 1}, "incomplete"),
        ([(REVIEW, False), (FAILED, False)], {"review": 1, "failed": 1}, "incomplete"),
        ([(REVIEW, False), (MISSING, False)], {"review": 1, "missing": 1}, "incomplete"),
        ([(FAILED, False)], {"failed": 1}, "incomplete"),
        ([(MISSING, False)] * 3, {"missing": 3}, "incomplete"),
    ],
)
def test_outcomes_fold_into_counts_and_a_status(
    states: list[tuple[TileState, bool]], counts: dict[str, int], status: str
) -> None:
    found = count_states([outcome(state, cached) for state, cached in states])
    nothing = {"done": 0, "cached": 0, "review": 0, "failed": 0, "missing": 0}
    assert asdict(found) == nothing | {"total": len(states)} | counts
    assert decide(found) == FlightStatus(status)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(TileState)), st.booleans())))
def test_every_outcome_is_counted_once(states: list[tuple[TileState, bool]]) -> None:
    found = count_states([outcome(state, cached) for state, cached in states])
    assert found.done + found.review + found.failed + found.missing == found.total == len(states)
    assert found.cached == sum(cached for _, cached in states)


def test_the_last_word_on_a_tile_stands() -> None:
    said = [outcome(FAILED, tile_id="a"), outcome(DONE, tile_id="b"), outcome(DONE, tile_id="a")]
    assert {tile_id: o.state for tile_id, o in by_tile(said).items()} == {"a": DONE, "b": DONE}


# ---------------------------------------------------------------- statistics of several


def stats_of(values: list[float], pixels: int) -> Stats:
    """Statistics by numpy, in float64."""
    if not values:
        return Stats(pixels=pixels, count=0, valid_fraction=0.0)
    a = np.array(values, np.float64)
    return Stats(
        pixels=pixels, count=a.size, valid_fraction=a.size / pixels,
        min=float(a.min()), max=float(a.max()), mean=float(a.mean()), std=float(a.std()),
    )  # fmt: skip


ndvi = st.floats(-1, 1, width=32)
rasters = st.lists(st.tuples(st.lists(ndvi, max_size=30), st.integers(0, 20)), min_size=1, max_size=8)


@settings(deadline=None)
@given(rasters)
def test_pooled_statistics_are_those_of_all_pixels(parts: list[tuple[list[float], int]]) -> None:
    parts = [(values, len(values) + empty or 1) for values, empty in parts]
    pooled = pool_stats([stats_of(values, pixels) for values, pixels in parts])
    assert pooled is not None
    together = np.array([value for values, _ in parts for value in values], np.float64)
    assert pooled.pixels == sum(pixels for _, pixels in parts)
    assert pooled.count == together.size
    assert pooled.valid_fraction == pytest.approx(together.size / pooled.pixels, abs=1e-12)
    if not together.size:
        assert (pooled.min, pooled.max, pooled.mean, pooled.std) == (None, None, None, None)
        return
    assert (pooled.min, pooled.max) == (together.min(), together.max())
    assert pooled.mean == pytest.approx(together.mean(), abs=1e-12)
    assert pooled.std == pytest.approx(together.std(), abs=1e-9)


def test_pooling_keeps_a_small_spread_on_a_large_mean() -> None:
    rng = np.random.default_rng(2)
    values = [list(1e6 + rng.normal(0, 1e-3, 1000)) for _ in range(50)]
    pooled = pool_stats([stats_of(v, 1000) for v in values])
    assert pooled is not None
    assert pooled.std == pytest.approx(float(np.concatenate(values).std()), rel=1e-3)


def test_pooling_weighs_by_valid_pixels() -> None:
    pooled = pool_stats([stats_of([0.0] * 99, 99), stats_of([1.0], 901), stats_of([], 1000)])
    assert pooled is not None
    assert pooled.mean == pytest.approx(0.01)
    assert pooled.valid_fraction == pytest.approx(0.05)


def test_nothing_pools_to_nothing() -> None:
    assert pool_stats([]) is None


@pytest.mark.parametrize("key", ["min", "max", "mean", "std", "valid_fraction"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_statistics_refuse_what_json_cannot_say(key: str, value: float) -> None:
    said: dict[str, Any] = {"pixels": 1, "count": 1, "valid_fraction": 1.0, key: value}
    with pytest.raises(ValidationError):
        Stats(**said)


# ---------------------------------------------------------------- errors as values


@pytest.mark.parametrize(
    ("error", "code", "transient"),
    [
        (Refused(Code.CRS_MISMATCH, "one"), "crs_mismatch", False),
        (ManifestRefused(Code.TILE_CLASH, "one", "F001"), "tile_clash", False),
        (Transient(Code.STORAGE_UNAVAILABLE, "one"), "storage_unavailable", True),
        (SourceChanged("one"), "source_changed", True),
    ],
)
def test_an_error_becomes_a_value(error: FlightsError, code: str, transient: bool) -> None:
    assert asdict(Problem.of(error)) == {"code": code, "message": "one", "transient": transient}


def test_a_failed_tile() -> None:
    found = failed("t1", "/out/t1.tif", Refused(Code.BAND_MISSING, "no NIR"), attempts=3, seconds=1.23456)
    assert (found.tile_id, found.state, found.dst_uri, found.attempts) == ("t1", FAILED, "/out/t1.tif", 3)
    assert found.seconds == pytest.approx(1.235)
    assert found.error == Problem(code="band_missing", message="no NIR")
    assert found.stats is None


def test_a_missing_tile() -> None:
    found = missing("t1", "/out/t1.tif", "nobody knows")
    assert (found.tile_id, found.state, found.dst_uri) == ("t1", MISSING, "/out/t1.tif")
    assert found.error == Problem(code="missing", message="nobody knows")


def test_a_refused_flight() -> None:
    found = refused("F001", ManifestRefused(Code.TILE_CLASH, "two tiles", "F001"))
    assert (found.flight_id, found.status, found.complete) == ("F001", FlightStatus.REFUSED, False)
    assert (found.tiles, found.outcomes) == (TileCounts(total=0), ())
    assert found.error == Problem(code="tile_clash", message="two tiles")


@pytest.mark.parametrize("letter", ["x", "ä", "漢", "🛰", "\\", "\n", '"'], ids=ascii)
def test_a_failure_stays_under_two_kilobytes(letter: str) -> None:
    uri = "s3://farm-ndvi/2026/F001/tiles/t0001.ndvi.tif"
    found = failed("t0001", uri, Refused(Code.SOURCE_CORRUPT, letter * 10_000))
    assert len(found.as_text().encode()) < 2048
    assert found.error
    assert found.error.message.startswith(letter)


def test_a_failure_at_the_longest_uri_stays_under_two_kilobytes() -> None:
    uri = "s3://farm-ndvi/" + "k" * 1024  # an S3 key may have so many bytes
    found = failed("t" * 120, uri, Refused(Code.SOURCE_CORRUPT, f"{uri}: corrupt " * 5))
    assert len(found.as_text().encode()) < 2048


@pytest.mark.parametrize("name", ["caf\udce9.json", "\ud83d.tif"], ids=ascii)
def test_an_error_about_a_name_that_is_not_unicode_can_be_reported(name: str) -> None:
    """Linux file names are bytes: one that is not UTF-8 reaches a message with surrogates in it."""
    error = ManifestRefused(Code.MANIFEST_MISSING, f"{name}: does not exist")
    report = json.loads(refused("F001", error).model_dump_json())
    assert report["error"]["code"] == "manifest_missing"
    assert "does not exist" in report["error"]["message"]


# ---------------------------------------------------------------- JSON


def full_report() -> FlightReport:
    outcomes = (
        outcome(DONE, stats=stats_of([0.1, 0.5], 4), source={"": "s3:ab:1"}, product="s3:cd:2", fingerprint="f"),
        outcome(REVIEW, stats=stats_of([], 4), tile_id="t2"),
        failed("t3", "/out/t3.tif", Transient(Code.DISK_FULL, "full")),
        missing("t4", "/out/t4.tif", "lost"),
    )
    counts = count_states(outcomes)
    return FlightReport(
        flight_id="F001",
        run_id="r1",
        status=decide(counts),
        complete=False,
        tiles=counts,
        outcomes=outcomes,
        stats=pool_stats([o.stats for o in outcomes if o.stats]),
        started=datetime(2026, 6, 14, 17, 3, tzinfo=UTC),
    )


def no_constant(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def test_a_report_is_strict_json_and_comes_back_equal() -> None:
    text = full_report().model_dump_json()
    content = json.loads(text, parse_constant=no_constant)
    assert content["status"] == "incomplete"
    assert content["tiles"] == {"total": 4, "done": 1, "cached": 0, "review": 1, "failed": 1, "missing": 1}
    assert [o["state"] for o in content["outcomes"]] == ["done", "review", "failed", "missing"]
    assert content["outcomes"][1]["stats"]["mean"] is None
    assert content["outcomes"][2]["error"] == {"code": "disk_full", "message": "full", "transient": True}
    assert FlightReport.model_validate_json(text) == full_report()


def test_a_report_has_the_keys_that_its_readers_rely_on() -> None:
    promised = {
        "flight_id", "run_id", "status", "complete", "tiles", "outcomes", "stats", "error", "mosaic", "mosaic_error",
        "products", "started", "finished", "versions",
    }  # fmt: skip
    assert promised <= set(json.loads(full_report().model_dump_json()))
    of_a_tile = {
        "tile_id", "state", "cached", "fingerprint", "dst_uri", "stats", "error", "attempts", "seconds", "source",
        "product",
    }  # fmt: skip
    assert of_a_tile <= set(json.loads(full_report().model_dump_json())["outcomes"][0])


def test_values_are_frozen_and_refuse_unknown_keys() -> None:
    with pytest.raises(ValidationError):
        full_report().status = FlightStatus.COMPLETE
    with pytest.raises(ValidationError):
        TileOutcome.of_value({"tile_id": "t1", "state": "done", "dst_uri": "x", "colour": 1})
    with pytest.raises(ValidationError):
        TileOutcome.of_value({"tile_id": "t1", "state": "fine", "dst_uri": "x"})
