"""What people see: results on stdout, progress on stderr. Colours and movement only on a terminal."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from flights.errors import Code
from flights.follow import Follower
from flights.report import FlightReport, FlightStatus, TileState
from flights.sensors import SensorProfile
from flights.survey import Plan, Seen

_COLOURS = {
    FlightStatus.COMPLETE: "green",
    FlightStatus.REVIEW: "yellow",
    FlightStatus.INCOMPLETE: "red",
    FlightStatus.REFUSED: "red",
}
# A flight's failures on one screen; the report has them all.
SHOWN_MAX = 20


def out() -> Console:
    """The console of results; lines are never wrapped where no terminal shows them."""
    return Console(highlight=False, soft_wrap=True, emoji=False)


def err() -> Console:
    """The console of progress and complaints."""
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def show_report(console: Console, report: FlightReport, report_uri: str) -> None:
    """A flight in one line, then what is wrong with it, then where to look."""
    counts, colour = report.tiles, _COLOURS[report.status]
    name = f"[bold]{escape(report.flight_id)}[/]  " if report.flight_id else ""
    if report.status is FlightStatus.REFUSED and report.error:
        said = "busy" if report.error.code == Code.ALREADY_RUNNING else report.status
        console.print(f"{name}[{colour}]{said}[/]  {escape(report.error.message)}")
        return
    parts = [f"{counts.done + counts.review} of {counts.total} tiles done"]
    numbers = {"cached": counts.cached, "to review": counts.review, "failed": counts.failed, "missing": counts.missing}
    parts += [f"{n} {what}" for what, n in numbers.items() if n]
    stats = report.stats
    mean = (
        f"  mean {round(stats.mean, 3) + 0.0:.3f} over {stats.valid_fraction:.0%}"
        if stats and stats.mean is not None
        else ""
    )
    console.print(f"{name}[{colour}]{report.status}[/]  {', '.join(parts)}{mean}")
    bad = [o for o in report.outcomes if o.state is not TileState.DONE]
    for outcome in bad[:SHOWN_MAX]:
        why = outcome.error.message if outcome.error else "; ".join(r.message for r in outcome.review)
        code = outcome.error.code if outcome.error else "review"
        kind = "" if code == outcome.state else escape(f"[{code}] ")
        console.print(f"  {escape(outcome.tile_id)}  {outcome.state}  {kind}{escape(why)}")
    if len(bad) > SHOWN_MAX:
        console.print(f"  and {len(bad) - SHOWN_MAX} more, in the report")
    if report.mosaic:
        note = "" if report.mosaic.complete else "  (of an incomplete flight)"
        if report.mosaic.max_shift_px > 0.05:
            note += f"  (tiles moved by up to {report.mosaic.max_shift_px:.2f} pixels onto one grid)"
        console.print(f"  mosaic  {escape(report.mosaic.uri)}{note}")
    elif not report.mosaic_error and report.complete and not report.error:
        review = report.status is FlightStatus.REVIEW
        why = "needs --composite review" if review else "not asked for, not made yet, or gone"
        console.print(f"  no mosaic  {why}")
    if report.mosaic_error:
        console.print(f"  no mosaic  {escape(f'[{report.mosaic_error.code}]')} {escape(report.mosaic_error.message)}")
    for note in report.notes:
        console.print(f"  note  {escape(note)}")
    if report.error:
        console.print(f"  no report  {escape(f'[{report.error.code}]')} {escape(report.error.message)}")
    elif report_uri:
        console.print(f"  report  {escape(report_uri)}")


def _plan(seen: Seen, overwrite: bool) -> Plan:
    """With --overwrite no product counts as current."""
    plan = seen.plan()
    return Plan.STALE if overwrite and plan is Plan.CURRENT else plan


def show_plan(console: Console, flight_id: str, seen: Sequence[Seen], overwrite: bool) -> None:
    """What a run would do, a line a tile."""
    for tile in seen:
        why = f"  [{tile.error.code}] {tile.error}" if tile.error else ""
        what = f"{escape(tile.tile.tile_id)}  {_plan(tile, overwrite)}"
        console.print(f"{escape(flight_id)}  {what}  {escape(tile.tile.dst_uri + why)}")


def plan_as_json(flight_id: str, seen: Sequence[Seen], overwrite: bool) -> str:
    """What a run would do, as one JSON line."""
    tiles: list[dict[str, Any]] = [
        {"tile_id": s.tile.tile_id, "plan": _plan(s, overwrite), "dst_uri": s.tile.dst_uri}
        | ({"error": {"code": s.error.code, "message": str(s.error)}} if s.error else {})
        for s in seen
    ]
    return json.dumps({"flight_id": flight_id, "tiles": tiles})


def show_sensors(console: Console, known: Sequence[SensorProfile]) -> None:
    """The sensor profiles: as a table on a terminal, a line each elsewhere."""
    if not console.is_terminal:
        for profile in known:
            click.echo(f"{profile.slug}\t{', '.join(profile.bands)}\t{profile.title}")  # rich would expand the tabs
        return
    table = Table(Column("sensor", no_wrap=True), "bands, in file order", "what it is", box=None)
    for profile in known:
        bands = ", ".join(profile.bands) if profile.layout == "bands" else "a file a band: " + ", ".join(profile.bands)
        table.add_row(f"[bold]{profile.slug}[/]", bands, escape(profile.title))
    console.print(table)


class Board:
    """The live display of the flights under way; silent where stderr is no terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._rows: dict[str, TaskID] = {}

    def update(self, followers: Sequence[Follower]) -> None:
        """Redraw from counts alone."""
        for follower in followers:
            flight_id, now = follower.flight.flight_id, follower.progress
            if flight_id not in self._rows:
                self._rows[flight_id] = self._progress.add_task(
                    escape(flight_id), total=len(follower.sent), cached=0, failed=0, rate=""
                )
            row = self._rows[flight_id]
            speed = self._progress.tasks[row].speed
            self._progress.update(
                row,
                completed=min(now.settled, len(follower.sent)),
                cached=len(follower.flight.tiles) - len(follower.sent) + now.cached,
                failed=now.failed,
                rate=f"{speed:.1f} tiles/s" if speed else "",
            )


@contextmanager
def board() -> Iterator[Board]:
    """Show a Board for as long as the block runs."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[cached]} cached"),
        TextColumn("[red]{task.fields[failed]} failed"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        yield Board(progress)
