"""Celery tasks that do nothing, as a flight's are sent and run: what a message costs before anything is done for it."""

import json
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery, chord

from benchmarks.commands import alone
from benchmarks.servers import PROJECT, redis_server
from fleet import TILES, configuration
from flights.settings import load_settings
from tests.processes import environment

# A worker that has not done them all by then hangs.
TASKS_S = 600.0

app = Celery("bare")
app.add_defaults(lambda: configuration(load_settings()))


@app.task(name="bare.nothing")
def nothing() -> float:
    """When it ran."""
    return time.time()


@app.task(name="bare.spread")
def spread(ran: list[float]) -> float:
    """The seconds between the first and the last of them."""
    return max(ran) - min(ran)


def task_s(folder: Path, tasks: int) -> float:
    """From the start of one task to that of the next, on a worker of one process that finds them queued."""
    with redis_server(folder / "redis") as url:
        return float(alone(environment(folder / "state", CELERY_BROKER_URL=url), __name__, tasks)["seconds"])


def run_tasks(tasks: int) -> dict[str, float]:
    """Queue so many tasks for a worker that is started then, and compare when the first and the last one ran."""
    told = chord([nothing.s() for _ in range(tasks)], spread.s()).apply_async()
    line = [sys.executable, "-m", "celery", "-A", "benchmarks.bare", "worker", "--concurrency", "1"]
    line += ["--queues", TILES, "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
    worker = subprocess.Popen(line, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return {"seconds": told.get(timeout=TASKS_S) / (tasks - 1)}
    finally:
        worker.terminate()
        worker.wait(TASKS_S)


if __name__ == "__main__":
    print(json.dumps(run_tasks(int(sys.argv[1]))))
