#!/usr/bin/env python3
"""The command line: manifests in, one Celery chord a flight, progress, reports, an exit status.

Nothing heavy is imported until a command runs: `--help` needs no broker, no bucket and no patience.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if any(find_spec(name) is None for name in ("click", "rich", "pydantic_settings", "rasterio", "celery", "awscrt")):
    print(
        "flights is not installed for this Python: run `make demo` once, then .venv/bin/python run_batch.py",
        file=sys.stderr,
    )
    sys.exit(2)
import click

if TYPE_CHECKING:
    from flights.follow import Follower
    from flights.manifest import Flight
    from flights.pipeline import Tools
    from flights.report import FlightReport
    from flights.runs import CompositeRule
    from flights.settings import Settings

INCOMPLETE, REVIEW, UNREACHABLE, TRY_LATER = 3, 4, 69, 75
# How the sample flights end: `demo` holds itself to it.
SOWN = {"north-field": "complete", "south-field": "incomplete"}

EPILOG = """\b
Exit status: 0 every flight complete; 1 a bug, or nobody reads the output; 2 usage, or every manifest refused; 3 some
flight incomplete or refused; 4 complete, but some flight needs review; 69 broker or storage unreachable; 75 a flight is
already running, or the --timeout ran out; 130, 143 interrupted. After 75, 130 and 143 a fleet goes on; without one, run
the same command again for the rest."""


class Seconds(click.FloatRange):
    """A time to wait."""

    name = "number of seconds"


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(package_name=None, version="0.1.0", prog_name="flights")
def cli() -> None:
    """Nightly flight batches in, verified NDVI out."""


@cli.command(epilog=EPILOG)
@click.argument("manifests", metavar="MANIFEST...", nargs=-1, required=True)
@click.option("--flight", "flight_ids", multiple=True, metavar="ID", help="Only this flight; repeatable.")
@click.option("--tile", "tile_ids", multiple=True, metavar="ID", help="Only this tile; repeatable.")
@click.option("--dry-run", is_flag=True, help="List each tile as new, stale or current, and do nothing.")
@click.option("--overwrite", is_flag=True, help="Make every tile anew, also where its product is current.")
@click.option("--lane", type=click.Choice(["batch", "priority"]), default="batch", show_default=True, help="Queue.")
@click.option(
    "--composite",
    type=click.Choice(["complete", "review", "any", "never"]),
    default="complete",
    show_default=True,
    help="Make the mosaic of a flight that ended so, or better; `any`: also of an incomplete one.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON report a line on stdout, in the order given.")
@click.option("--timeout", "timeout_s", type=Seconds(min=0), metavar="S", help="Wait no longer than this.")
@click.pass_context
def run(ctx: click.Context, /, manifests: Sequence[str], **options: Any) -> None:
    """Make the NDVI of the flights in MANIFEST..., and say of each whether it is complete.

    A MANIFEST is a JSON file or an s3:// URI. Tiles whose product is current are not made again.
    """
    with _answering():
        ctx.exit(_run(manifests, **options))


@cli.command()
@click.argument("flights", metavar="FLIGHT...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON report a line on stdout.")
@click.pass_context
def report(ctx: click.Context, flights: Sequence[str], as_json: bool) -> None:
    """The report of each FLIGHT (an id, or a manifest), derived from storage alone: no broker is asked."""
    with _answering():
        ctx.exit(_report(flights, as_json))


@cli.command()
@click.pass_context
def sweep(ctx: click.Context) -> None:
    """End what is stuck: runs without progress, temporary files, unfinished uploads.

    With a fleet, beat does this every minute. Without one nothing can be stuck but what a killed run left behind.
    """
    with _answering():
        ctx.exit(_sweep())


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with sources and scales.")
def sensors(as_json: bool) -> None:
    """The known sensor profiles: their bands in file order."""
    import json
    from dataclasses import asdict

    from flights.console import out, show_sensors
    from flights.sensors import profiles

    known = list(profiles().values())
    if as_json:
        for profile in known:
            click.echo(json.dumps(asdict(profile)))
    else:
        show_sensors(out(), known)


@cli.command()
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Run the sample flights of data/ on the embedded default: one complete, one with a corrupt tile."""
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        os.environ.pop(name, None)
    with _answering():
        folder = Path(__file__).resolve().parent / "data"
        reports, status = _demo([str(folder / name / "manifest.json") for name in SOWN])
        click.echo(f"\n`run_batch.py run` answers these two manifests with exit status {status}", nl=False)
        click.echo(": a flight is incomplete, because a tile of it is corrupt on purpose.")
        cached = all(r.tiles.cached == r.tiles.done for r in reports)
        again = "" if cached else "; run `make demo` again and every good tile is found cached"
        click.echo(f"Open the mosaic in QGIS{again}.")
        ctx.exit(0 if {r.flight_id: r.status.value for r in reports} == SOWN else 1)


# ---------------------------------------------------------------- run


def _run(
    manifests: Sequence[str],
    flight_ids: Sequence[str],
    tile_ids: Sequence[str],
    dry_run: bool,
    overwrite: bool,
    lane: str,
    composite: CompositeRule,
    as_json: bool,
    timeout_s: float | None,
) -> int:
    from flights import console
    from flights.settings import load_settings

    settings = load_settings()
    accepted, refusals = _take_in(manifests, flight_ids, tile_ids, settings)
    if dry_run:
        return _show_plans(accepted, refusals, tile_ids, overwrite, as_json)
    reports: dict[int, FlightReport] = dict(refusals)
    if accepted:
        done = _run_flights(list(accepted.values()), tile_ids, overwrite, lane, composite, timeout_s, settings)
        if done is None:
            rest = (
                "run the same command again for the rest" if settings.embedded else "the flights go on (see `report`)"
            )
            console.err().print(f"not done within {timeout_s:g} s; {rest}")
            return TRY_LATER
        reports |= dict(zip(accepted, done, strict=True))
    ordered = [reports[i] for i in sorted(reports)]
    uris = {i: flight.report_uri for i, flight in accepted.items()}
    _show(ordered, [uris.get(i, "") for i in sorted(reports)], as_json)
    return exit_status(ordered)


def _take_in(
    manifests: Sequence[str], flight_ids: Sequence[str], tile_ids: Sequence[str], settings: Settings
) -> tuple[dict[int, Flight], dict[int, FlightReport]]:
    """The flights asked for and the reports of refused manifests, each by its place among the arguments."""
    from flights.errors import Code, ManifestRefused
    from flights.intake import load_flight
    from flights.report import refused
    from flights.store import open_stores

    stores = open_stores()
    accepted: dict[int, Flight] = {}
    refusals: dict[int, FlightReport] = {}
    for i, uri in enumerate(manifests):
        try:
            flight = load_flight(stores, uri, settings.runs)
            first = next((manifests[j] for j, other in accepted.items() if other.flight_id == flight.flight_id), None)
            if first is not None:
                message = f"{uri}: flight_id {flight.flight_id!r} is already in this run, from {first}"
                raise ManifestRefused(Code.TILE_CLASH, message, flight.flight_id)
            accepted[i] = flight
        except ManifestRefused as error:
            refusals[i] = refused(error.flight_id, error)
    if flight_ids:  # of another flight neither its tiles nor a refused manifest is what was asked for
        _check_known(
            "flight", flight_ids, {f.flight_id for f in accepted.values()} | {r.flight_id for r in refusals.values()}
        )
        accepted = {i: f for i, f in accepted.items() if f.flight_id in flight_ids}
        refusals = {i: r for i, r in refusals.items() if not r.flight_id or r.flight_id in flight_ids}
    if not refusals:
        _check_known("tile", tile_ids, {t.tile_id for f in accepted.values() for t in f.tiles})
    return accepted, refusals


def _check_known(what: str, asked: Sequence[str], known: set[str]) -> None:
    from flights.hints import did_you_mean

    strange = [name for name in asked if name not in known]
    if strange:
        hint = did_you_mean(strange[0], known)
        said = f"no {what} {', '.join(map(repr, strange))} in the manifests given"
        raise click.UsageError(f"{said}; {hint}" if hint else said)


def _run_flights(
    flights: Sequence[Flight],
    tile_ids: Sequence[str],
    overwrite: bool,
    lane: str,
    composite: CompositeRule,
    timeout_s: float | None,
    settings: Settings,
) -> list[FlightReport] | None:
    """The report of each flight, None where the time ran out first."""
    import tasks
    from flights.begin import Order, begin, busy, hold
    from flights.report import FlightReport

    deadline = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    with _fleet(settings) as (tools, check), contextlib.ExitStack() as held:
        answers: dict[str, FlightReport] = {}
        followers: dict[str, Follower] = {}
        for flight in flights:
            queue = tasks.queue_of(flight, lane, settings)
            order = Order(queue, tuple(tile_ids), overwrite, composite)
            free = held.enter_context(hold(flight, tools, check))
            post = tasks.Post(tools, embedded=settings.embedded)
            began = begin(flight, order, tools, post) if free else busy(flight)
            if isinstance(began, FlightReport):
                answers[flight.flight_id] = began
            else:
                followers[flight.flight_id] = began
        _raise_if_unreachable(list(answers.values()), len(flights))
        if not _follow(list(followers.values()), check, deadline):
            return None
        answers |= {flight_id: f.report for flight_id, f in followers.items() if f.report}
        return [answers[f.flight_id] for f in flights]


def _raise_if_unreachable(answers: Sequence[FlightReport], flights: int) -> None:
    """Where no flight could even begin, for want of broker or storage, that is the answer."""
    from flights.errors import Code, Unreachable

    lost = [r.error for r in answers if r.error and r.error.transient]
    if len(lost) == flights and lost:
        raise Unreachable(Code(lost[0].code), lost[0].message)


@contextlib.contextmanager
def _fleet(settings: Settings) -> Iterator[tuple[Tools, Any]]:
    """The fleet's tools: of the broker that is named, else of the embedded server for as long as the block runs."""
    import tasks
    from flights.embedded import embedded_fleet
    from flights.ledger import Ledger
    from flights.pipeline import Tools
    from flights.store import open_stores

    with contextlib.ExitStack() as stack:
        check, broker_url = (lambda: None), settings.broker_url
        if broker_url is None:
            _check_room(settings)
            held = stack.enter_context(embedded_fleet(settings.state_dir, settings.workers))
            check, broker_url = held.check, held.broker_url
        ledger = Ledger(broker_url)
        ledger.check()
        if settings.broker_url and settings.result_backend:
            Ledger(settings.result_backend).check("CELERY_RESULT_BACKEND")
        backend = settings.result_backend if settings.broker_url else None  # the private server is its own
        connected = settings.model_copy(update={"broker_url": broker_url, "result_backend": backend})
        tasks.connect(connected)
        yield Tools(connected, open_stores(), ledger), check


def _check_room(settings: Settings) -> None:
    """Refuse to start workers that would take no tile."""
    from flights.errors import Code, Refused
    from flights.pipeline import free_scratch_bytes

    try:
        settings.scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = (
            f"scratch (FLIGHTS_SCRATCH_DIR, FLIGHTS_STATE_DIR) cannot be made at {settings.scratch}: {error.strerror}"
        )
        raise Refused(Code.SETTINGS_INVALID, said) from error
    free = free_scratch_bytes(settings)
    if free < settings.min_free_bytes:
        raise Refused(
            Code.DISK_FULL,
            f"{free} bytes are free where scratch lies ({settings.scratch}); FLIGHTS_MIN_FREE_BYTES asks for "
            f"{settings.min_free_bytes}",
        )


def _follow(followers: Sequence[Follower], check: Any, deadline: float) -> bool:
    """Wait until every flight has its answer; False where the time ran out first."""
    from flights.console import board

    waiting = list(followers)
    with board() as live:
        while waiting:
            waiting = [f for f in waiting if not f.step()]
            live.update(followers)
            check()
            if waiting and time.monotonic() > deadline:
                return False
            time.sleep(0.1 if waiting else 0)
    return True


def _show_plans(
    accepted: dict[int, Flight],
    refusals: dict[int, FlightReport],
    tile_ids: Sequence[str],
    overwrite: bool,
    as_json: bool,
) -> int:
    from flights import console
    from flights.runs import load_report
    from flights.store import open_stores
    from flights.survey import known_of_report, survey

    stores, screen, hindered = open_stores(), console.out(), False
    for i in sorted([*accepted, *refusals]):
        if i in refusals:
            _show([refusals[i]], [""], as_json)
            continue
        flight = accepted[i]
        asked = [t for t in flight.tiles if not tile_ids or t.tile_id in tile_ids]
        seen = list(survey(stores, flight, asked, known_of_report(load_report(stores, flight))))
        hindered |= any(tile.error for tile in seen)
        if as_json:
            click.echo(console.plan_as_json(flight.flight_id, seen, overwrite))
        else:
            console.show_plan(screen, flight.flight_id, seen, overwrite)
    return exit_status(list(refusals.values())) if not accepted else INCOMPLETE if refusals or hindered else 0


# ---------------------------------------------------------------- sweep, report and demo


def _sweep() -> int:
    from flights import mend
    from flights.settings import load_settings

    settings = load_settings()
    with _fleet(settings) as (tools, check):
        import tasks

        mended = mend.sweep(tools, tasks.Post(tools))
        for done in mended:
            click.echo(f"{done.flight_id}  {done.deed}")
        if settings.embedded:
            _await_answers([done.flight_id for done in mended], tools, check)
        removed = mend.clean(tools)
    click.echo(f"runs that were stuck: {len(mended)}; temporary files and unfinished uploads removed: {removed}")
    return 0


def _await_answers(flight_ids: Sequence[str], tools: Tools, check: Any) -> None:
    """Without a fleet the workers end with this command: wait for what has been sent."""
    import tasks
    from flights.follow import Follower
    from flights.runs import load_run, record_uri

    followers = []
    for flight_id in flight_ids:
        last, flight = load_run(tools.stores, record_uri(tools.settings.runs, flight_id))
        sent = last.tiles_of(flight)
        post = tasks.Post(tools, embedded=True)
        followers.append(Follower(run=last, flight=flight, sent=sent, tools=tools, courier=post))
    _follow(followers, check, float("inf"))


def _report(names: Sequence[str], as_json: bool) -> int:
    from flights.errors import Refused
    from flights.report import refused
    from flights.settings import load_settings
    from flights.store import open_stores

    settings, stores = load_settings(), open_stores()
    reports, uris = [], []
    for name in names:
        try:
            flight, derived = _derive(name, settings, stores)
            reports.append(derived)
            uris.append(_where(derived, flight, stores))
        except Refused as error:
            reports.append(refused(getattr(error, "flight_id", "") or name, error))
            uris.append("")
    _show(reports, uris, as_json)
    return exit_status(reports)


def _where(derived: FlightReport, flight: Flight, stores: Any) -> str:
    """Where the published report lies, and what it says where that is another thing."""
    from flights.runs import load_report

    published = load_report(stores, flight)
    if published is None:
        return ""
    same = published.status == derived.status
    return flight.report_uri + ("" if same else f"  (published, says {published.status})")


def _derive(name: str, settings: Settings, stores: Any) -> tuple[Flight, FlightReport]:
    """A flight's report from storage alone; FLIGHT is a manifest where it looks like one, else an id."""
    from flights.errors import Refused
    from flights.intake import load_flight
    from flights.pipeline import derive_report
    from flights.pipeline.tools import limits_of
    from flights.report import TileState
    from flights.runs import Run, has_ended, load_report, load_run, record_uri

    told: list[Any] = []
    if "/" in name or name.endswith(".json") or Path(name).is_file():
        flight = load_flight(stores, name)
        record = record_uri(settings.runs, flight.flight_id)
        try:
            last, _ = load_run(stores, record)
        except Refused:  # run from elsewhere: the published report is what is left of it
            published = load_report(stores, flight)
            run_id, started = (published.run_id, published.started) if published else ("", None)
            told = [o for o in published.outcomes if o.state is TileState.FAILED] if published else []
            started = started or datetime.now(UTC)
            last = Run(run_id=run_id, flight_id=flight.flight_id, record_uri=record, started=started)
    else:
        _check_recorded(name, settings, stores)
        last, flight = load_run(stores, record_uri(settings.runs, name))
    under_way = not has_ended(stores, last)
    return flight, derive_report(last, flight, stores, limits_of(settings), told, under_way=under_way)


def _check_recorded(flight_id: str, settings: Settings, stores: Any) -> None:
    """Refuse an id of which there is no record, with the ids that it may stand for."""
    from flights.errors import Code, Refused
    from flights.hints import did_you_mean
    from flights.runs import records

    known = records(stores, settings.runs)
    if flight_id not in known:
        hint = did_you_mean(flight_id, known, "name its manifest instead")
        message = f"no run of flight {flight_id!r} is recorded under {settings.runs}; {hint}"
        raise Refused(Code.MANIFEST_MISSING, message)


def _demo(manifests: Sequence[str]) -> tuple[list[FlightReport], int]:
    from flights.settings import load_settings

    settings = load_settings()
    accepted, refusals = _take_in(manifests, (), (), settings)
    flights = list(accepted.values())
    reports = _run_flights(flights, (), False, "batch", "complete", None, settings) or []
    _show(reports, [f.report_uri for f in flights], as_json=False)
    return reports, exit_status([*reports, *refusals.values()])


# ---------------------------------------------------------------- answers


def exit_status(reports: Sequence[FlightReport]) -> int:
    """The exit status that a night's reports deserve."""
    from flights.errors import Code
    from flights.report import FlightStatus

    if any(r.error and r.error.code == Code.ALREADY_RUNNING for r in reports):
        return TRY_LATER
    statuses = {r.status for r in reports}
    if not statuses:
        return 0
    if statuses == {FlightStatus.REFUSED}:
        return 2
    if statuses & {FlightStatus.REFUSED, FlightStatus.INCOMPLETE} or any(r.error for r in reports):
        return INCOMPLETE
    return REVIEW if FlightStatus.REVIEW in statuses else 0


def _show(reports: Sequence[FlightReport], uris: Sequence[str], as_json: bool) -> None:
    from flights import console

    screen = console.out()
    for report_, uri in zip(reports, uris, strict=True):
        if as_json:
            click.echo(report_.model_dump_json())
        else:
            console.show_report(screen, report_, uri)


def _rest() -> str:
    """What becomes of a run whose command is ended."""
    if os.environ.get("CELERY_BROKER_URL"):
        return "what was sent goes on in the fleet (see `report`)"
    return "run the same command again to finish the rest"


def _end(_signal: int, _frame: Any) -> None:
    click.echo(f"terminated; {_rest()}", err=True)
    sys.exit(128 + signal.SIGTERM)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """The table from what can stop a command to its exit status."""
    from flights.errors import FlightsError, Refused, Unreachable

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    # SIGTERM unwinds like Ctrl-C: the embedded worker is let go and the display put away.
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    except Unreachable as error:
        click.echo(f"unreachable: {error}", err=True)
        sys.exit(UNREACHABLE)
    except Refused as error:
        raise click.UsageError(str(error)) from error
    except FlightsError as error:
        click.echo(f"storage or broker: {error}", err=True)
        sys.exit(UNREACHABLE)
    except KeyboardInterrupt:
        click.echo(f"interrupted; {_rest()}", err=True)
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    try:
        cli(prog_name="run_batch.py")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"the output cannot be written: {error.strerror}")
