"""How long people wait before anything happens."""

import json
import statistics
import sys
import time
from pathlib import Path

from benchmarks import tiny
from benchmarks.commands import alone, run_batch
from benchmarks.fleets import embedded_tools
from benchmarks.table import Line
from flights.begin import Order, begin
from flights.follow import Follower
from flights.intake import load_flight
from flights.store import open_stores
from tasks import Post
from tests.processes import await_nobody, environment

HELP_S, READY_S = 0.5, 3
HELP_ROUNDS = 7


def run(folder: Path, quick: bool) -> list[Line]:
    """The help, and the embedded default up to its first tile."""
    env = environment(folder / "help-state")
    helped_s = statistics.median(run_batch(env, "--help") for _ in range(HELP_ROUNDS))
    rounds = 2 if quick else 5
    manifest = tiny.write_flight(folder / "flight", 1)
    ready_s, whole_s = [], []
    for i in range(rounds):
        state = folder / f"state{i}"
        ready_s.append(float(alone(environment(state), __name__, manifest)["seconds"]))
        await_nobody(state)
        whole_s.append(run_batch(environment(state), "run", manifest, "--overwrite", "--composite", "never"))
        await_nobody(state)
    ready = statistics.median(ready_s)
    return [
        Line(
            f"8 run_batch.py --help, whole process, median of {HELP_ROUNDS}",
            f"< {HELP_S} s",
            f"{helped_s:.2f} s",
            held=helped_s < HELP_S,
        ),
        Line(
            f"8 the embedded default, from nothing to a worker at its first tile, median of {rounds}",
            f"<= {READY_S} s",
            f"{ready:.2f} s",
            held=ready <= READY_S,
        ),
        Line(
            f"8 run_batch.py run of one tiny tile, whole process, median of {rounds}",
            "",
            f"{statistics.median(whole_s):.2f} s",
        ),
    ]


def await_first_tile(manifest: str) -> dict[str, float]:
    """From before server and worker are started until a worker has claimed the first tile, imports of this end aside.

    The flight is sent as soon as there is a broker, as `run_batch.py run` does it.
    """
    flight = load_flight(open_stores(), manifest)
    began = time.perf_counter()
    with embedded_tools() as tools:
        follower = begin(flight, Order("tiles", overwrite=True, composite="never"), tools, Post(tools))
        if not isinstance(follower, Follower):
            raise RuntimeError(f"not begun: {follower.error}")
        while True:
            progress = tools.ledger.progress(follower.run.run_id)
            if progress and (progress.alive or progress.settled):
                break
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        while not follower.step():
            time.sleep(0.1)
    return {"seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(await_first_tile(sys.argv[1])))
