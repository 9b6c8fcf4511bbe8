"""`run_batch.py` as people and cron run it: a process with arguments, an environment, two streams, an exit status."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from flights.sensors import profiles
from tests.processes import (
    PROJECT,
    Made,
    assert_pixels,
    await_nobody,
    closed_port,
    command,
    environment,
    json_lines,
    make_flight,
    run_batch,
    snapshot,
    strict_json,
    write_manifest,
    write_tile,
)
from tests.synthetic import field, manifest, write_tif

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[[0-9;]*\b[349][0-7]\b[0-9;]*m")
HEAVY = {"rasterio", "celery", "kombu", "boto3", "botocore", "redis", "numpy", "pydantic", "rich"}


# ---------------------------------------------------------------- before any work


@pytest.mark.parametrize("words", [(), ("run",), ("report",), ("sensors",), ("demo",)], ids=" ".join)
def test_help_needs_nothing(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("CELERY_BROKER_URL", f"redis://{nowhere}/0")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{nowhere}")
    monkeypatch.setenv("FLIGHTS_STATE_DIR", "/nonexistent/state")
    done = run_batch(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: run_batch.py")


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("--version",)], ids=" ".join)
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    line = [sys.executable, "-X", "importtime", "run_batch.py", *words]
    done = subprocess.run(line, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    imported = {row.rsplit("|", 1)[1].strip() for row in done.stderr.splitlines() if row.startswith("import time:")}
    assert done.returncode == 0
    assert "click" in imported
    assert not {name.split(".")[0] for name in imported} & HEAVY


def test_help_names_every_exit_status() -> None:
    text = run_batch("run", "--help").stdout
    assert [status for status in (0, 1, 2, 3, 4, 69, 75) if not re.search(rf"\b{status}\b", text)] == []


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("report",),
        ("no-such-command",),
        ("run", "m.json", "--no-such-option"),
        ("run", "m.json", "--lane", "fast"),
        ("run", "m.json", "--composite", "sometimes"),
        ("run", "m.json", "--timeout", "-1"),
        ("run", "m.json", "--timeout", "soon"),
        ("sensors", "surplus"),
        ("demo", "surplus"),
    ],
    ids=" ".join,
)
def test_usage_errors(words: tuple[str, ...]) -> None:
    done = run_batch(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Error: " in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("FLIGHTS_COG_COMPRES", "zstd", "FLIGHTS_COG_COMPRES"),
        ("FLIGHTS_BROKER_URL", "redis://127.0.0.1/0", "FLIGHTS_BROKER_URL"),
        ("FLIGHTS_WORKERS", "0", "FLIGHTS_WORKERS"),
        ("FLIGHTS_WORKERS", "many", "FLIGHTS_WORKERS"),
        ("FLIGHTS_COG_COMPRESS", "jpeg", "FLIGHTS_COG_COMPRESS"),
        ("FLIGHTS_TILE_HARD_LIMIT_S", "5", "FLIGHTS_TILE_HARD_LIMIT_S"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "report"])
def test_a_wrong_setting_is_named(
    verb: str, name: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    monkeypatch.setenv(name, value)
    done = run_batch(verb, flight.manifest)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert flight.products == []


@pytest.mark.parametrize("option", [("--flight", "G"), ("--tile", "b")], ids=" ".join)
def test_a_selection_of_what_is_not_there(option: tuple[str, str], tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    done = run_batch("run", flight.manifest, *option)
    assert done.returncode == 2
    assert repr(option[1]) in done.stderr
    assert flight.products == []


def test_a_selection_in_other_capitals(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F001", ["t0001"])
    assert "did you mean F001?" in run_batch("run", flight.manifest, "--flight", "f001").stderr
    assert "did you mean t0001?" in run_batch("run", flight.manifest, "--tile", "t001").stderr


def test_without_what_it_needs_the_command_says_so(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "run_batch.py"
    done = subprocess.run([sys.executable, "-S", script, "--help"], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("flights is not installed for this Python: run `make demo` once")
    assert done.returncode == 2


def test_sensors_as_text() -> None:
    done = run_batch("sensors")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [row[0] for row in rows] == list(profiles())
    assert [row[1].split(", ") for row in rows] == [list(p.bands) for p in profiles().values()]
    assert ESCAPE not in done.stdout


def test_sensors_as_json() -> None:
    done = run_batch("sensors", "--json")
    assert done.returncode == 0
    assert {row["slug"]: row["bands"] for row in json_lines(done.stdout)} == {
        slug: list(p.bands) for slug, p in profiles().items()
    }


# ---------------------------------------------------------------- a night of several flights, in one run


@dataclass(frozen=True, slots=True)
class Night:
    """A run of several manifests, and what it said."""

    folder: Path
    env: Mapping[str, str]
    flights: Mapping[str, Made]
    manifests: tuple[Path, ...]
    status: int
    stdout: str

    @property
    def reports(self) -> list[Any]:
        return json_lines(self.stdout)

    def report(self, flight_id: str) -> Any:
        (found,) = [r for r in self.reports if r["flight_id"] == flight_id and r["status"] != "refused"]
        return found

    def published(self, flight_id: str) -> Any:
        place = self.flights[flight_id].manifest.parent / "out" / f"{flight_id}.report.json"
        return strict_json(place.read_text())


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """Manifests: not JSON, good, incomplete, an unknown key, wholly nodata, the good one again, nowhere, odd names."""
    folder = tmp_path_factory.mktemp("night")
    env = environment(folder / "state")
    good = make_flight(folder / "good", "good", ["west", "east", "2nd.row - x_1"])
    partly = make_flight(folder / "partly", "partly", ["fine", "cut", "gone"])
    cut = folder / "partly" / "src" / "cut.tif"
    os.truncate(cut, cut.stat().st_size // 2)
    (folder / "partly" / "src" / "gone.tif").unlink()
    empty = make_flight(folder / "empty", "empty", ["void"])
    nothing = {name: np.zeros_like(values) for name, values in field().items()}
    write_tif(folder / "empty" / "src" / "void.tif", nothing, nodata=0)
    odd = make_flight(folder / "a [bold]b[/] :car: #1 é", "odd", ["a"])
    broken, strange, nowhere = folder / "broken.json", folder / "strange.json", folder / "nowhere.json"
    broken.write_text('{"flight_id": ')
    strange.write_text(json.dumps(manifest("strange", [{"tile_id": "a", "src_uri": "a.tif"}], colour="blue")))
    order = (
        broken, good.manifest, partly.manifest, strange, empty.manifest, good.manifest, nowhere, odd.manifest,
    )  # fmt: skip
    done = run_batch("run", "--json", *order, env=env)
    await_nobody(folder / "state")
    flights = {"good": good, "partly": partly, "empty": empty, "odd": odd}
    return Night(folder, env, flights, order, done.returncode, done.stdout)


def test_one_report_a_manifest_in_the_order_of_the_arguments(night: Night) -> None:
    assert [(r["flight_id"], r["status"]) for r in night.reports if r["flight_id"] != "empty"] == [
        ("", "refused"),
        ("good", "complete"),
        ("partly", "incomplete"),
        ("strange", "refused"),
        ("good", "refused"),
        ("", "refused"),
        ("odd", "complete"),
    ]
    assert night.reports[4]["flight_id"] == "empty"
    assert night.status == 3


def test_a_refused_manifest_says_why_and_does_no_work(night: Night) -> None:
    refused = [r["error"] for r in night.reports if r["status"] == "refused"]
    assert [e["code"] for e in refused] == [
        "manifest_not_json", "manifest_invalid", "tile_clash", "manifest_missing",
    ]  # fmt: skip
    places = [night.manifests[i] for i in (0, 3, 5, 6)]
    assert [str(place) in e["message"] for place, e in zip(places, refused, strict=True)] == [True] * 4
    assert "colour" in refused[1]["message"]
    assert not (night.folder / "strange").exists()


@pytest.mark.parametrize("flight_id", ["good", "odd"])
def test_a_good_flight(night: Night, flight_id: str) -> None:
    report, flight = night.report(flight_id), night.flights[flight_id]
    n = len(flight.expected)
    assert report["complete"] is True
    assert report["tiles"] == {"total": n, "done": n, "cached": 0, "review": 0, "failed": 0, "missing": 0}
    assert [o["tile_id"] for o in report["outcomes"]] == list(flight.expected)
    for outcome in report["outcomes"]:
        assert outcome["dst_uri"] == str(flight.product(outcome["tile_id"]))
        assert_pixels(outcome["dst_uri"], flight.expected[outcome["tile_id"]])
    assert_pixels(report["mosaic"]["uri"], np.hstack(list(flight.expected.values())))
    assert sorted(flight.products) == sorted(flight.product(t) for t in flight.expected)


def test_statistics_are_those_of_the_pixels(night: Night) -> None:
    values = np.hstack(list(night.flights["good"].expected.values()))
    for stats in (night.report("good")["stats"], night.report("good")["mosaic"]["stats"]):
        assert stats["count"] == values.size
        assert stats["mean"] == pytest.approx(values.mean(), abs=1e-6)
        assert stats["std"] == pytest.approx(values.std(), abs=1e-6)


def test_an_incomplete_flight(night: Night) -> None:
    report, flight = night.report("partly"), night.flights["partly"]
    assert report["complete"] is False
    assert report["tiles"] == {"total": 3, "done": 1, "cached": 0, "review": 0, "failed": 2, "missing": 0}
    assert [(o["tile_id"], o["state"]) for o in report["outcomes"]] == [
        ("fine", "done"), ("cut", "failed"), ("gone", "failed"),
    ]  # fmt: skip
    assert [o["error"]["code"] for o in report["outcomes"][1:]] == ["source_corrupt", "source_missing"]
    assert report["mosaic"] is None
    assert flight.products == [flight.product("fine")]
    assert_pixels(flight.product("fine"), flight.expected["fine"])


def test_an_empty_tile_has_null_statistics(night: Night) -> None:
    (outcome,) = night.report("empty")["outcomes"]
    assert outcome["state"] in ("done", "review")
    assert [outcome["stats"][key] for key in ("count", "min", "max", "mean", "std")] == [0, None, None, None, None]


@pytest.mark.parametrize("flight_id", ["good", "partly", "empty", "odd"])
def test_what_is_said_is_what_is_published(night: Night, flight_id: str) -> None:
    assert night.report(flight_id) == night.published(flight_id)


def settled(report: Any) -> Any:
    """A report without what only its run can know: how long and how often."""
    untimed = {k: v for k, v in report.items() if k not in ("started", "finished")}
    outcomes = [{k: v for k, v in o.items() if k not in ("seconds", "attempts")} for o in report["outcomes"]]
    return untimed | {"outcomes": outcomes}


@pytest.mark.parametrize("flight_id", ["good", "partly", "empty", "odd"])
def test_the_report_is_derived_from_storage_alone(night: Night, flight_id: str) -> None:
    made, before = night.flights[flight_id].manifest, snapshot(night.folder)
    env = {**night.env, "CELERY_BROKER_URL": f"redis://127.0.0.1:{closed_port()}/0"}
    done = run_batch("report", "--json", flight_id, made, env=env)
    by_id, by_manifest = json_lines(done.stdout)
    assert settled(by_id) == settled(by_manifest) == settled(night.published(flight_id))
    assert done.returncode == {"complete": 0, "review": 4, "incomplete": 3}[by_id["status"]]
    assert snapshot(night.folder) == before


def test_reports_of_several_flights(night: Night) -> None:
    done = run_batch("report", "--json", "odd", "unheard-of", "partly", "good", env=night.env)
    assert [(r["flight_id"], r["status"]) for r in json_lines(done.stdout)] == [
        ("odd", "complete"), ("unheard-of", "refused"), ("partly", "incomplete"), ("good", "complete"),
    ]  # fmt: skip
    assert done.returncode == 3


def test_the_report_of_a_flight_that_never_ran(night: Night) -> None:
    flight = make_flight(night.folder / "idle", "idle", ["a", "b"])
    done = run_batch("report", "--json", flight.manifest, env=night.env)
    (report,) = json_lines(done.stdout)
    assert done.returncode == 3
    assert (report["status"], report["tiles"]["missing"]) == ("incomplete", 2)
    assert flight.products == []


def test_the_report_of_a_flight_that_nobody_knows(night: Night) -> None:
    done = run_batch("report", "unheard-of", env=night.env)
    assert done.returncode == 2
    assert "unheard-of" in done.stdout + done.stderr


# ---------------------------------------------------------------- what people see


def test_piped_output_is_a_line_a_flight_and_its_details(night: Night) -> None:
    done = run_batch("report", "good", "partly", "odd", env=night.env)
    lines = done.stdout.splitlines()
    assert ESCAPE not in done.stdout + done.stderr
    assert [line.split("  ")[:2] for line in lines if not line.startswith("  ")] == [
        ["good", "complete"], ["partly", "incomplete"], ["odd", "complete"],
    ]  # fmt: skip
    details = [line.split()[0] for line in lines if line.startswith("  ")]
    assert details == ["mosaic", "report", "cut", "gone", "report", "mosaic", "report"]
    assert "1 of 3 tiles done, 2 failed" in done.stdout
    assert "[source_missing]" in done.stdout


def test_names_are_shown_as_they_are(night: Night) -> None:
    out = night.flights["odd"].manifest.parent / "out"
    shown = run_batch("report", "odd", env=night.env).stdout.splitlines()
    assert shown[-2:] == [f"  mosaic  {out}/odd.ndvi.tif", f"  report  {out}/odd.report.json"]
    planned = run_batch("run", "--dry-run", night.flights["odd"].manifest, env=night.env).stdout
    assert planned == f"odd  a  current  {out}/tiles/a.ndvi.tif\n"


def on_a_terminal(words: list[str], env: Mapping[str, str]) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    try:
        shown = subprocess.Popen(words, cwd=PROJECT, env=dict(env), stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # EIO: the other side has closed
                break
            if not part:
                break
            text += part
        assert shown.wait(60) in (0, 3)
        return text.decode()
    finally:
        os.close(ours)


@pytest.mark.parametrize("words", [("report", "good", "partly"), ("sensors",)], ids=" ".join)
def test_no_color_is_respected(night: Night, words: tuple[str, ...]) -> None:
    env = {**night.env, "TERM": "xterm-256color", "COLUMNS": "200"}
    env.pop("NO_COLOR", None)
    plain = on_a_terminal(command(*words), {**env, "NO_COLOR": "1"})
    assert plain.strip()
    assert not COLOUR.search(plain)
    assert ESCAPE in on_a_terminal(command(*words), env)


# ---------------------------------------------------------------- a flight's life, run after run


def test_a_flight_from_plan_to_cached(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a", "b", "c"])
    before = snapshot(tmp_path)
    planned = run_batch("run", "--dry-run", flight.manifest)
    assert planned.returncode == 0
    assert [line.split("  ")[:3] for line in planned.stdout.splitlines()] == [["F", t, "new"] for t in "abc"]
    assert snapshot(tmp_path) == before

    one = run_batch("run", "--json", "--tile", "b", flight.manifest)
    (report,) = json_lines(one.stdout)
    assert one.returncode == 3
    assert [(o["tile_id"], o["state"]) for o in report["outcomes"]] == [
        ("a", "missing"), ("b", "done"), ("c", "missing"),
    ]  # fmt: skip
    assert flight.products == [flight.product("b")]
    assert report["mosaic"] is None

    rest = run_batch("run", "--json", flight.manifest)
    (report,) = json_lines(rest.stdout)
    assert rest.returncode == 0
    assert (report["tiles"]["done"], report["tiles"]["cached"]) == (3, 1)

    made = snapshot(tmp_path / "f" / "out" / "tiles")
    again = run_batch("run", flight.manifest)
    assert again.returncode == 0
    assert again.stdout.startswith("F  complete  3 of 3 tiles done, 3 cached")
    assert snapshot(tmp_path / "f" / "out" / "tiles") == made


def test_a_dry_run_tells_new_from_stale_from_current(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a", "b"])
    assert run_batch("run", flight.manifest).returncode == 0
    write_tile(tmp_path / "f" / "src" / "a.tif", 99)
    write_tile(tmp_path / "f" / "src" / "c.tif", 98)
    write_manifest(tmp_path / "f", "F", ["a", "b", "c", "d"])
    await_nobody(tmp_path / "state")
    before = snapshot(tmp_path)
    planned = run_batch("run", "--dry-run", "--json", flight.manifest)
    (plan,) = json_lines(planned.stdout)
    assert planned.returncode == 3  # as the run would end
    assert plan["flight_id"] == "F"
    assert [(t["tile_id"], t["plan"]) for t in plan["tiles"]] == [
        ("a", "stale"), ("b", "current"), ("c", "new"), ("d", "new"),
    ]  # fmt: skip
    assert [t["tile_id"] for t in plan["tiles"] if "error" in t] == ["d"]
    assert plan["tiles"][3]["error"]["code"] == "source_missing"
    part = run_batch("run", "--dry-run", "--tile", "b", "--tile", "c", flight.manifest)
    assert [line.split("  ")[1:3] for line in part.stdout.splitlines()] == [["b", "current"], ["c", "new"]]
    mixed = run_batch("run", "--dry-run", flight.manifest, tmp_path / "nowhere.json")
    assert mixed.returncode == 3
    assert snapshot(tmp_path) == before


def test_a_stale_tile_is_made_anew_and_a_current_one_is_not(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a", "b"])
    assert run_batch("run", flight.manifest).returncode == 0
    before = flight.product("b").stat().st_mtime_ns
    expected = write_tile(tmp_path / "f" / "src" / "a.tif", 99)
    (report,) = json_lines(run_batch("run", "--json", flight.manifest).stdout)
    assert [o["cached"] for o in report["outcomes"]] == [False, True]
    assert_pixels(flight.product("a"), expected)
    assert flight.product("b").stat().st_mtime_ns == before
    assert_pixels(report["mosaic"]["uri"], np.hstack([expected, flight.expected["b"]]))


def test_overwrite_makes_every_tile_anew(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a", "b"])
    (first,) = json_lines(run_batch("run", "--json", flight.manifest).stdout)
    before = {path: path.stat().st_mtime_ns for path in [*flight.products, Path(first["mosaic"]["uri"])]}
    done = run_batch("run", "--json", "--overwrite", flight.manifest)
    (second,) = json_lines(done.stdout)
    assert done.returncode == 0
    assert (second["tiles"]["done"], second["tiles"]["cached"]) == (2, 0)
    assert second["run_id"] != first["run_id"]
    assert second["mosaic"]["cached"] is False
    assert [path for path, mtime_ns in before.items() if path.stat().st_mtime_ns <= mtime_ns] == []
    for tile_id, expected in flight.expected.items():
        assert_pixels(flight.product(tile_id), expected)


def test_one_flight_of_several(tmp_path: Path) -> None:
    one, two = (make_flight(tmp_path / name, name, ["a"]) for name in ("one", "two"))
    done = run_batch("run", "--json", "--flight", "two", one.manifest, two.manifest)
    assert done.returncode == 0
    assert [r["flight_id"] for r in json_lines(done.stdout)] == ["two"]
    assert (one.products, two.products) == ([], [two.product("a")])


def test_composite_rules(tmp_path: Path) -> None:
    whole, holed = make_flight(tmp_path / "w", "W", ["a", "b"]), make_flight(tmp_path / "h", "H", ["a", "b"])
    (tmp_path / "h" / "src" / "b.tif").unlink()
    mosaics = [tmp_path / "w" / "out" / "W.ndvi.tif", tmp_path / "h" / "out" / "H.ndvi.tif"]
    never = run_batch("run", "--json", "--composite", "never", whole.manifest, holed.manifest)
    assert never.returncode == 3
    assert [(r["mosaic"], r["mosaic_error"]) for r in json_lines(never.stdout)] == [(None, None)] * 2
    assert [m.exists() for m in mosaics] == [False, False]

    any_ = run_batch("run", "--json", "--composite", "any", whole.manifest, holed.manifest)
    reports = json_lines(any_.stdout)
    assert any_.returncode == 3
    assert [(r["status"], r["mosaic"]["complete"]) for r in reports] == [("complete", True), ("incomplete", False)]
    assert_pixels(mosaics[0], np.hstack(list(whole.expected.values())))
    assert_pixels(mosaics[1], holed.expected["a"])
    with rasterio.open(mosaics[1]) as product:
        assert (product.tags()["COMPLETE"], product.tags()["MISSING_TILES"]) == ("NO", "b")


# ---------------------------------------------------------------- when it cannot be done


def test_every_manifest_refused(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    clash = tmp_path / "f" / "clash.json"
    tile = {"tile_id": "a", "src_uri": "src/a.tif", "dst_uri": "src/../src/a.tif"}
    clash.write_text(json.dumps(manifest("clash", [tile])))
    before = snapshot(tmp_path)
    done = run_batch("run", "--json", tmp_path / "nowhere.json", clash, tmp_path / "f")
    assert done.returncode == 2
    assert [r["status"] for r in json_lines(done.stdout)] == ["refused"] * 3
    text = run_batch("run", tmp_path / "nowhere.json", clash)
    assert text.returncode == 2
    assert len(text.stdout.splitlines()) == 2
    assert run_batch("run", "--dry-run", clash).returncode == 2
    assert snapshot(tmp_path) == before
    assert flight.products == []


def test_a_flight_whose_report_can_lie_nowhere_is_not_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has had its answer, on the terminal: no sweep is to take it up again."""
    flight = make_flight(tmp_path / "f", "F", ["a"])
    body = json.loads(flight.manifest.read_text())
    body["tiles"][0]["dst_uri"] = "made/a.tif"
    flight.manifest.write_text(json.dumps(body | {"out_uri": "src/a.tif/out"}))
    done = run_batch("run", flight.manifest)
    assert done.returncode == 3
    assert "no report  [destination_refused]" in done.stdout
    assert "a file lies where a folder of its path is needed" in done.stdout
    monkeypatch.setenv("FLIGHTS_SWEEP_AFTER_S", "1")
    assert run_batch("sweep").stdout == "runs that were stuck: 0; temporary files and unfinished uploads removed: 0\n"


def test_what_is_asked_for_in_the_wrong_words(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    wrong: dict[str, tuple[list[str], int]] = {
        "'abc' is not a valid number of seconds": (["--timeout", "abc", str(flight.manifest)], 2),
        "'s3://bucket' is a folder": (["s3://bucket"], 2),
        "'S3://bucket/m.json' is not s3://bucket/key": (["S3://bucket/m.json"], 2),
        f"already in this run, from {flight.manifest}": (["--dry-run", str(flight.manifest), str(flight.manifest)], 3),
    }
    for words, (arguments, status) in wrong.items():
        done = run_batch("run", *arguments)
        assert words in done.stdout + done.stderr
        assert done.returncode == status
    assert flight.products == []


def test_the_report_of_a_flight_that_was_never_run(tmp_path: Path) -> None:
    done = run_batch("report", make_flight(tmp_path / "f", "F", ["a"]).manifest)
    assert "; no run of it is recorded here" in done.stdout
    assert done.returncode == 3


def test_without_credentials_storage_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    done = run_batch("run", "s3://farm-raw/F001/manifest.json")
    assert done.returncode == 69
    assert "no AWS credentials were found; set AWS_PROFILE" in done.stderr


@pytest.mark.parametrize("scheme", ["redis://:hunter2@", "redis://"])
def test_an_unreachable_broker(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    monkeypatch.setenv("CELERY_BROKER_URL", f"{scheme}127.0.0.1:{closed_port()}/0")
    done = run_batch("run", flight.manifest)
    assert done.returncode == 69
    assert done.stdout == ""
    assert "broker" in done.stderr
    assert "hunter2" not in done.stderr
    assert flight.products == []


@pytest.mark.parametrize("url", ["nonsense", "amqp://127.0.0.1//", "redis://127.0.0.1:port/0", ""])
def test_a_broker_that_is_no_redis_is_a_wrong_setting(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    monkeypatch.setenv("CELERY_BROKER_URL", url)
    done = run_batch("run", flight.manifest)
    assert done.returncode == (2 if url else 0)  # an empty variable is one that is not set
    assert "CELERY_BROKER_URL" in done.stderr or not url


def test_an_unreachable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port()}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for verb in ("run", "report"):
        done = run_batch(verb, "s3://raw/F/manifest.json")
        assert done.returncode == 69
        assert done.stdout == ""
        assert "s3://raw/F/manifest.json" in done.stderr


def test_a_state_folder_that_cannot_be_is_a_wrong_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FLIGHTS_STATE_DIR", str(tmp_path / "file"))
    done = run_batch("run", flight.manifest)
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr


@pytest.mark.parametrize("name", ["état", "a b", 'it\'s "so"', "x\\y"])
def test_a_state_folder_of_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    monkeypatch.setenv("FLIGHTS_STATE_DIR", str(tmp_path / name))
    done = run_batch("run", flight.manifest)
    assert done.returncode == 0, done.stderr


def test_a_flight_that_cannot_be_written_costs_the_others_nothing(tmp_path: Path) -> None:
    good, bad = (make_flight(tmp_path / name, name, ["a"]) for name in ("good", "bad"))
    (tmp_path / "bad" / "out").write_text("a file where the folder should be")
    done = run_batch("run", "--json", good.manifest, bad.manifest)
    assert done.returncode == 3
    first, second = json_lines(done.stdout)
    assert (first["flight_id"], first["status"]) == ("good", "complete")
    assert (second["flight_id"], second["status"]) == ("bad", "incomplete")
    assert str(tmp_path / "bad" / "out") in json.dumps(second)


@pytest.mark.parametrize("content", ['{"broken"', '{"run_id": "r", "of_a_later_version": true}'])
def test_a_run_record_that_is_none(content: str, tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    record = tmp_path / "state" / "runs" / "F"
    record.mkdir(parents=True)
    (record / "manifest.json").write_bytes(flight.manifest.read_bytes())
    (record / "run.json").write_text(content)
    done = run_batch("report", "F")
    assert done.returncode == 2
    assert str(record) in done.stdout + done.stderr


def test_the_time_runs_out(tmp_path: Path) -> None:
    flight = make_flight(tmp_path / "f", "F", ["a"])
    done = run_batch("run", "--json", "--timeout", "0", flight.manifest)
    assert done.returncode == 75
    assert done.stdout == ""
    assert done.stderr
    assert run_batch("run", flight.manifest).returncode == 0


# ---------------------------------------------------------------- the demonstration


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a fresh clone needs for the demonstration, which writes below its own data/."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("run_batch.py", "tasks.py", "fleet.py"):
        shutil.copy(PROJECT / name, copy)
    shutil.copytree(PROJECT / "flights", copy / "flights", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PROJECT / "data", copy / "data", ignore=shutil.ignore_patterns("out"))
    return copy


def test_the_demonstration(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_batch("demo", project=checkout)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "north-field  complete  4 of 4 tiles done" in first.stdout
    assert "south-field  incomplete  3 of 4 tiles done, 1 failed" in first.stdout
    assert "r1c0  failed  [source_corrupt]" in first.stdout
    assert "exit status 3" in first.stdout
    mosaic = checkout / "data" / "north-field" / "out" / "north-field.ndvi.tif"
    assert f"mosaic  {mosaic}" in first.stdout
    assert mosaic.is_file()
    assert len(list(checkout.glob("data/*/out/tiles/*.tif"))) == 7

    monkeypatch.setenv("CELERY_BROKER_URL", f"redis://127.0.0.1:{closed_port()}/0")  # it works on its own all the same
    second = run_batch("demo", project=checkout)
    assert second.returncode == 0
    assert "4 of 4 tiles done, 4 cached" in second.stdout
    assert "3 of 4 tiles done, 3 cached, 1 failed" in second.stdout
