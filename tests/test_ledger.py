"""The run's state in Redis, against a real server; and what is left of it without one."""

import dataclasses
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from flights.embedded import server_binary
from flights.errors import Code, Refused, Unreachable
from flights.ledger import PREFIX, Ledger, Progress
from flights.report import TileOutcome, TileState
from tests.conftest import PROJECT, free_port

LEASE_S = 30


@pytest.fixture
def ledger(redis_url: str) -> Ledger:
    return Ledger(redis_url)


@pytest.fixture
def server(redis_url: str) -> Any:
    """The same server, seen by a client of the test's own."""
    return redis.Redis.from_url(redis_url, decode_responses=True)


def outcome(tile_id: str, state: str) -> TileOutcome:
    """`cached` is a tile that is done without work."""
    known = TileState.DONE if state == "cached" else TileState(state)
    return TileOutcome(tile_id=tile_id, state=known, cached=state == "cached", dst_uri="/out/t.tif")


def awaited(happened: Callable[[], object], within_s: float = 20) -> None:
    """Return once something has happened; the test fails where it never does."""
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        threading.Event().wait(0.01)


def counted(ledger: Ledger, run_id: str) -> Progress | None:
    """How far a run is, whenever it moved last: a busy machine takes its time between two lines."""
    found = ledger.progress(run_id)
    return found and dataclasses.replace(found, quiet_s=0.0)


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize("name", ["/out/t.tif", "s3://ndvi/a b/é#?%20.tif", "", "x" * 5000, "a\0b\n"])
def test_a_claim_is_one_holders(redis_url: str, name: str) -> None:
    mine, theirs = Ledger(redis_url), Ledger(redis_url)
    with mine.claim(name, LEASE_S, "run") as held:
        assert held == 1
        for other in (theirs, mine):
            with other.claim(name, LEASE_S, "another run") as also:
                assert also == 0
        with theirs.claim(name + "?", LEASE_S, "run") as another:
            assert another == 1
        with theirs.claim(name, LEASE_S, "run") as again:
            assert again == 0, "one who was refused has released it"
    with theirs.claim(name, LEASE_S, "run") as now:
        assert now == 1


def test_one_of_many_gets_a_claim(redis_url: str) -> None:
    ledgers = [Ledger(redis_url) for _ in range(8)]
    start, done, won = threading.Barrier(8), threading.Barrier(8), []

    def reach(ledger: Ledger) -> None:
        start.wait(10)
        with ledger.claim("tile", LEASE_S, "run") as held:
            won.append(held)
            done.wait(10)

    threads = [threading.Thread(target=reach, args=(each,)) for each in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(won) == [0] * 7 + [1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
def test_a_claim_is_released_however_the_work_ends(ledger: Ledger, error: type[BaseException]) -> None:
    with pytest.raises(error), ledger.claim("tile", LEASE_S, "run"):
        raise error
    with ledger.claim("tile", LEASE_S, "run") as held:
        assert held


def claim_key(server: Any) -> str:
    (key,) = server.scan_iter(f"{PREFIX}claim:*")
    return str(key)


def test_a_claim_is_renewed_while_the_work_runs(ledger: Ledger, server: Any) -> None:
    with ledger.claim("tile", 2, "run"):
        key = claim_key(server)
        assert 0 < server.pttl(key) <= 2000
        server.persist(key)  # a renewal puts an expiry on it again
        server.delete(f"{PREFIX}beat:run")
        awaited(lambda: server.pttl(key) > 0)
        awaited(lambda: server.exists(f"{PREFIX}beat:run"))


def test_many_claims_are_renewed_in_one_question(ledger: Ledger, server: Any) -> None:
    """A night's command holds one a flight; from far away, one question each would come too late."""
    with ExitStack() as held:
        for i in range(60):
            assert held.enter_context(ledger.claim(f"flight {i}", 6))
        keys, looks = list(server.scan_iter(f"{PREFIX}claim:*")), 0
        assert len(keys) == 60

        def asked_of_all(name: str) -> list[Any]:
            with server.pipeline(transaction=False) as pipe:
                for key in keys:
                    getattr(pipe, name)(key)
                return list(pipe.execute())

        def renewed() -> bool:
            nonlocal looks
            looks += 1
            return all(left > 0 for left in asked_of_all("pttl"))

        asked_of_all("persist")  # a renewal puts an expiry on it again
        before = server.info("stats")["total_reads_processed"]
        awaited(renewed)
        threading.Event().wait(2.5)  # every claim is due once in two seconds
        assert server.info("stats")["total_reads_processed"] - before - looks < 30


def test_a_claim_is_renewed_though_redis_is_full(
    ledger: Ledger, server: Any, policy: Callable[[str, str], None]
) -> None:
    with ledger.claim("tile", 2, "run"):
        policy("1mb", "noeviction")
        with pytest.raises(redis.ResponseError):
            server.set("more", "data")
        server.persist(claim_key(server))
        awaited(lambda: server.pttl(claim_key(server)) > 0)


HOLDER = """
import sys
from flights.ledger import Ledger
url, run, work = sys.argv[1:]
with Ledger(url).claim("tile", 1, run, work=work) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


@contextmanager
def killed_holder(redis_url: str, run: str, work: str) -> Iterator[int]:
    """A process that holds a claim and is killed at the end of the block: what it was told when it got it."""
    command = [sys.executable, "-c", HOLDER, redis_url, run, work]
    holder = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        yield int(holder.stdout.readline())
    finally:
        holder.kill()
        holder.communicate()


def held_at_last(ledger: Ledger, run: str, work: str = "") -> int:
    """What one is told who gets the claim when it is free."""
    told: list[int] = []

    def taken() -> bool:
        with ledger.claim("tile", LEASE_S, run, work=work) as held:
            told.append(held)
        return bool(held)

    awaited(taken)
    return told[-1]


def test_a_claim_of_a_killed_holder_expires(redis_url: str, ledger: Ledger) -> None:
    with killed_holder(redis_url, "run", "") as began:
        assert began == 1
        with ledger.claim("tile", LEASE_S, "run") as held:
            assert not held
    assert held_at_last(ledger, "run") == 1


def test_who_lost_a_claim_does_not_release_the_next_ones(redis_url: str, server: Any) -> None:
    first, second, third = (Ledger(redis_url) for _ in range(3))
    with ExitStack() as stack:
        with first.claim("tile", LEASE_S, "run"):
            server.delete(claim_key(server))  # expired while its holder was frozen
            assert stack.enter_context(second.claim("tile", LEASE_S, "run"))
        with third.claim("tile", LEASE_S, "run") as held:
            assert not held


def test_who_lost_a_claim_does_not_renew_the_next_ones(redis_url: str, server: Any) -> None:
    with Ledger(redis_url).claim("tile", 2, "run"):
        key = claim_key(server)
        server.set(key, "somebody else's")
        server.delete(f"{PREFIX}beat:run")
        awaited(lambda: server.exists(f"{PREFIX}beat:run"))  # set after the renewal, in the same turn
        assert server.pttl(key) == -1
    assert server.get(key) == "somebody else's"


# ---------------------------------------------------------------- progress

# What workers say, in order; what is counted.
NOTES: dict[str, tuple[list[tuple[str, str]], Progress]] = {
    "each state": (
        [("a", "done"), ("b", "cached"), ("c", "review"), ("d", "failed")],
        Progress(done=1, cached=1, review=1, failed=1),
    ),
    "twice": ([("a", "done"), ("a", "done"), ("b", "done")], Progress(done=2)),
    "failed, then made": ([("a", "failed"), ("b", "failed"), ("a", "done")], Progress(done=1, failed=1)),
    "made, then found": ([("a", "done"), ("a", "cached")], Progress(cached=1)),
    "found, made, found": ([("a", "cached"), ("a", "done"), ("a", "cached")], Progress(cached=1)),
    "every state in turn": ([("a", s) for s in ("done", "review", "failed", "cached", "review")], Progress(review=1)),
    "odd names": ([("a b", "done"), ("a:b", "done"), ("é", "done")], Progress(done=3)),
}


@pytest.mark.parametrize("case", NOTES)
def test_a_tile_counts_once_under_its_last_state(ledger: Ledger, server: Any, case: str) -> None:
    notes, wanted = NOTES[case]
    ledger.note("another", outcome("a", "failed"))
    for tile_id, state in notes:
        ledger.note("run", outcome(tile_id, state))
        server.script_flush()  # a server that was restarted knows no script
    assert ledger.progress("run") == wanted
    assert wanted.settled == len({tile_id for tile_id, _ in notes})
    assert counted(ledger, "another") == Progress(failed=1)


def test_notes_from_many_at_once_are_all_counted(redis_url: str) -> None:
    def say(number: int) -> None:
        ledger = Ledger(redis_url)
        for tile in range(25):
            for state in ("failed", "done"):
                ledger.note("run", outcome(f"{number}-{tile}", state))
            ledger.note("run", outcome("shared", "done" if number % 2 else "review"))

    threads = [threading.Thread(target=say, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    progress = Ledger(redis_url).progress("run")
    assert progress is not None
    assert (progress.settled, progress.failed) == (151, 0)


def test_the_life_of_a_run(ledger: Ledger, server: Any) -> None:
    assert ledger.progress("run") is None
    ledger.start("run")
    assert counted(ledger, "run") == Progress()
    with ledger.claim("tile", LEASE_S, "run"):
        assert counted(ledger, "run") == Progress(alive=True)
        ledger.note("run", outcome("a", "done"))
    assert counted(ledger, "run") == Progress(done=1, alive=True)
    server.delete(f"{PREFIX}beat:run")  # a lease later
    ledger.conclude("run")
    assert counted(ledger, "run") == Progress(done=1, concluded=True)
    ledger.conclude("run")
    ledger.start("run")
    assert counted(ledger, "run") == Progress(done=1, concluded=True)


def test_everything_is_ours_by_name_and_gone_in_the_end(ledger: Ledger, server: Any) -> None:
    ledger.start("run")
    ledger.conclude("other")
    ledger.note("run", outcome("a", "done"))
    with ledger.claim("tile", LEASE_S, "run", work="tile"):
        keys = list(server.scan_iter())
        assert len(keys) >= 5
        assert [key for key in keys if not key.startswith(PREFIX)] == []
        assert [key for key in keys if server.ttl(key) <= 0] == []


# ---------------------------------------------------------------- deliveries


def test_deliveries_that_do_not_end_are_counted(redis_url: str, ledger: Ledger) -> None:
    for begun in (1, 2):
        with killed_holder(redis_url, "run", "tile") as told:
            assert told == begun
        awaited(lambda: ledger.lease_left_s("tile") == 0)
    assert held_at_last(ledger, "another run", "tile") == 1
    assert held_at_last(ledger, "run", "another tile") == 1
    assert held_at_last(ledger, "run", "tile") == 3
    assert held_at_last(ledger, "run", "tile") == 1  # that one ended
    with pytest.raises(SystemExit), ledger.claim("tile", LEASE_S, "run", work="tile"):
        raise SystemExit(-15)  # told to stop
    assert held_at_last(ledger, "run", "tile") == 1


def _cut_short(ledger: Ledger, told: list[int]) -> None:
    with ledger.claim("answer", LEASE_S, "run", for_report=True, work="mosaic") as held:
        told.append(held)
        raise SystemExit(-15)


def test_a_report_that_was_cut_short_counts_as_never_ended(ledger: Ledger) -> None:
    """What cuts it short may be its time limit, hours each; a tile's limit is told by its own mark."""
    for begun in (1, 2):
        told: list[int] = []
        with pytest.raises(SystemExit):
            _cut_short(ledger, told)
        assert told == [begun]
    with ledger.claim("answer", LEASE_S, "run", for_report=True, work="mosaic") as held:
        assert held == 3
    with ledger.claim("answer", LEASE_S, "run", for_report=True, work="mosaic") as held:
        assert held == 1


def test_who_is_refused_a_claim_does_not_count(ledger: Ledger) -> None:
    with ledger.claim("tile", LEASE_S, "run", work="tile") as mine:
        assert mine == 1
        for _ in range(3):
            with ledger.claim("tile", LEASE_S, "run", work="tile") as theirs:
                assert theirs == 0
    assert held_at_last(ledger, "run", "tile") == 1


def test_names_do_not_run_into_one_another(ledger: Ledger) -> None:
    with ExitStack() as held:
        for i, (run, name) in enumerate([("a", "b:c"), ("a:b", "c"), ("a:b:c", "d"), ("ab", "c"), ("a", "bc")]):
            assert held.enter_context(ledger.claim(f"claim {i}", LEASE_S, run, work=name)) == 1


def test_a_delivery_costs_three_questions(ledger: Ledger, server: Any) -> None:
    """Taking the tile, counting its outcome, giving it back; a Redis that is far away is asked no more often."""

    def deliver() -> None:
        with ledger.claim("tile", LEASE_S, "run", work="tile"):
            ledger.note("run", outcome("a", "done"))

    deliver()  # connects, and loads the scripts
    before = server.info("stats")["total_reads_processed"]
    deliver()
    assert server.info("stats")["total_reads_processed"] - before == 3 + 1


# ---------------------------------------------------------------- the queue, and what a broker must be


def test_what_waits_in_a_queue(ledger: Ledger, server: Any) -> None:
    assert ledger.queued("tiles") == 0
    server.rpush("tiles", "a", "b")
    assert ledger.queued("tiles") == 2
    server.set("no queue", "at all")
    assert ledger.queued("no queue") == 0


@pytest.fixture
def policy(server: Any) -> Iterator[Callable[[str, str], None]]:
    """Sets the server's memory limit and its policy, until the test is over."""
    names = ("maxmemory", "maxmemory-policy")
    before = {name: server.config_get(name)[name] for name in names}

    def set_both(limit: str, policy: str) -> None:
        for name, value in zip(names, (limit, policy), strict=True):
            server.config_set(name, value)

    yield set_both
    for name, value in before.items():
        server.config_set(name, value)


@pytest.mark.parametrize(
    ("limit", "name", "drops"),
    [
        ("0", "noeviction", False),
        ("0", "allkeys-lru", False),  # without a limit nothing is ever evicted
        ("100mb", "noeviction", False),
        ("100mb", "allkeys-lru", True),
        ("100mb", "allkeys-lfu", True),
        ("100mb", "allkeys-random", True),
        ("100mb", "volatile-lru", True),
        ("100mb", "volatile-ttl", True),
    ],
)
def test_a_broker_that_drops_what_is_queued_is_refused(
    ledger: Ledger, policy: Callable[[str, str], None], limit: str, name: str, drops: bool
) -> None:
    policy(limit, name)
    if not drops:
        ledger.check()
        return
    with pytest.raises(Refused, match=f"{name}.*noeviction") as caught:
        ledger.check()
    assert caught.value.code is Code.SETTINGS_INVALID


# ---------------------------------------------------------------- without Redis

CLOSED = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("url", [CLOSED, "redis://no-such-host.invalid:6379/0"])
def test_a_driver_hears_that_redis_is_away(url: str) -> None:
    with pytest.raises(Unreachable) as caught:
        Ledger(url).check()
    assert (caught.value.code, caught.value.transient) == (Code.BROKER_UNAVAILABLE, True)
    assert Ledger(url).progress("run") is None
    assert Ledger(url).queued("tiles") == 0
    Ledger(url).start("run")


# What a worker says of its work, and what it is told where nobody hears it.
SAYINGS: dict[str, tuple[Callable[[Ledger], object], object]] = {
    "note": (lambda ledger: ledger.note("run", outcome("a", "done")), None),
    "conclude": (lambda ledger: ledger.conclude("run"), None),
}


@pytest.mark.parametrize("saying", SAYINGS)
def test_a_worker_goes_on_without_redis(caplog: pytest.LogCaptureFixture, saying: str) -> None:
    say, wanted = SAYINGS[saying]
    with caplog.at_level(logging.WARNING):
        assert say(Ledger(CLOSED)) == wanted
    assert "going on without" in caplog.text


def test_without_redis_every_worker_holds_its_claim() -> None:
    with Ledger(CLOSED).claim("tile", LEASE_S, "run") as one, Ledger(CLOSED).claim("tile", LEASE_S, "run") as other:
        assert (one, other) == (1, 1)
    with Ledger(CLOSED).claim("tile", LEASE_S, "run", work="tile") as held:
        assert held == 1
    with pytest.raises(ValueError, match="the work's own"), Ledger(CLOSED).claim("tile", LEASE_S, "run"):
        raise ValueError("the work's own")


def test_redis_may_go_away_in_the_middle(tmp_path: Path) -> None:
    port = free_port()
    command = [server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger = Ledger(f"redis://127.0.0.1:{port}/0")
    try:
        awaited(lambda: not _unreachable(ledger))
        with ledger.claim("tile", LEASE_S, "run", work="tile") as held:
            assert held == 1
            server.kill()
            server.wait()
            ledger.note("run", outcome("a", "done"))
            ledger.conclude("run")
        assert ledger.progress("run") is None
    finally:
        server.kill()
        server.wait()


def _unreachable(ledger: Ledger) -> bool:
    try:
        ledger.check()
    except Unreachable:
        return True
    return False


def test_redis_may_be_wiped_in_the_middle(ledger: Ledger, server: Any) -> None:
    with ledger.claim("tile", LEASE_S, "run", work="tile"):
        ledger.note("run", outcome("a", "done"))
        server.flushall()
        server.script_flush()
        assert ledger.progress("run") is None
        ledger.note("run", outcome("b", "done"))
    assert counted(ledger, "run") == Progress(done=1)
    assert held_at_last(ledger, "run", "tile") == 1
