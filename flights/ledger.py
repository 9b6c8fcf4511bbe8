"""The run's state in Redis: claims with a lease, delivery counts, progress.

All of it may vanish at any moment. It saves double work and shows how far a run is; what is true lies in storage. So
where Redis does not answer, a worker goes on as if it were alone.
"""

import contextlib
import hashlib
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from flights.alarms import Alarms
from flights.errors import Code, Refused, Unreachable
from flights.report import TileOutcome

log = logging.getLogger(__name__)

PREFIX = "flights:"
# Longer than any run, shorter than a forgotten one matters.
KEEP_S = 3 * 24 * 3600

# A tile is counted under its last state, however often it is reported.
_NOTE = """
local before = redis.call('HGET', KEYS[1], ARGV[1])
if before == ARGV[2] then return 0 end
if before then redis.call('HINCRBY', KEYS[2], before, -1) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[2], 1)
redis.call('HSET', KEYS[2], 'moved', redis.call('TIME')[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
"""
# A claim, the sign of life beside it and the count of deliveries in one round trip: one each was 4 % of a tiny tile.
_CLAIM = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[2]) then return 0 end
if KEYS[2] ~= '' then redis.call('SET', KEYS[2], 1, 'EX', ARGV[2]) end
if KEYS[3] == '' then return 1 end
local begun = redis.call('INCR', KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return begun
"""
# In this order: a Redis that is full refuses to SET, and the claim is to be kept all the same.
_KEEP = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
if KEYS[2] ~= '' then redis.call('SET', KEYS[2], 1, 'EX', ARGV[2]) end
"""
_RELEASE = """
if KEYS[2] ~= '' then redis.call('DEL', KEYS[2]) end
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; `cached` tiles are not in `done` here."""

    done: int = 0
    cached: int = 0
    review: int = 0
    failed: int = 0
    submitted: bool = False
    # all its messages have been sent
    concluded: bool = False
    # the report is published and nothing will be added to it
    alive: bool = False
    # a worker is at work on a tile of the run, or was a lease ago
    reporting: bool = False
    # a worker is at work on its report or its composite, or was a lease ago
    quiet_s: float = 0.0
    # since the run was begun, mended, or a tile of it was counted, by the clock of Redis

    @property
    def settled(self) -> int:
        """Tiles with an outcome."""
        return self.done + self.cached + self.review + self.failed


class Ledger:
    """A connection to Redis, made per process."""

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(
            url, socket_timeout=5, socket_connect_timeout=5, socket_keepalive=True, decode_responses=True
        )
        self._note = self._redis.register_script(_NOTE)
        self._claim = self._redis.register_script(_CLAIM)
        self._keep = self._redis.register_script(_KEEP)
        self._release = self._redis.register_script(_RELEASE)
        # The claims held by their tokens: their keys, and how long they hold.
        self._held: dict[str, tuple[list[str], int]] = {}
        self._alarms = Alarms()

    # -- what a driver asks; it must hear when Redis is away

    def check(self, setting: str = "CELERY_BROKER_URL") -> None:
        """Unreachable where Redis does not answer; Refused where it would throw queued work away when it is full."""
        try:
            memory = self._redis.info("memory")
        except redis.AuthenticationError as error:
            said = f"the Redis of {setting} wants another user or password: {error}"
            raise Unreachable(Code.BROKER_UNAVAILABLE, said) from error
        except redis.RedisError as error:
            what = "broker" if setting == "CELERY_BROKER_URL" else "result backend"
            said = f"the {what} ({setting}) does not answer: {error}"
            raise Unreachable(Code.BROKER_UNAVAILABLE, said) from error
        policy = memory.get("maxmemory_policy", "noeviction")
        if int(memory.get("maxmemory", 0)) and policy != "noeviction":
            raise Refused(
                Code.SETTINGS_INVALID,
                f"{setting}: its maxmemory-policy is {policy!r}: it would drop queued tiles when full; set noeviction",
            )

    def progress(self, run_id: str) -> Progress | None:
        """How far a run is, None where Redis does not answer or knows nothing of the run."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.hgetall(_key("run", run_id))
                pipe.exists(_key("beat", run_id))
                pipe.exists(_key("report-beat", run_id))
                pipe.time()
                counts, alive, reporting, (now, _) = pipe.execute()
        except redis.RedisError:
            return None
        if not counts:
            return None
        numbers = {state: int(counts.get(state, 0)) for state in ("done", "cached", "review", "failed")}
        quiet_s = float(now - int(counts.get("moved", now)))
        return Progress(
            **numbers,
            submitted="submitted" in counts,
            concluded="concluded" in counts,
            alive=bool(alive),
            reporting=bool(reporting),
            quiet_s=quiet_s,
        )

    def start(self, run_id: str) -> None:
        """Make a run known, or known again, as moving from now."""
        with contextlib.suppress(redis.RedisError):
            self._redis.hset(_key("run", run_id), "moved", self._redis.time()[0])
            self._redis.expire(_key("run", run_id), KEEP_S)

    def submitted(self, run_id: str) -> None:
        """Say that all of a run's messages have been sent."""
        with contextlib.suppress(redis.RedisError):
            self._redis.hset(_key("run", run_id), "submitted", 1)

    def queued(self, queue: str) -> int:
        """Messages that wait in a queue; 0 where Redis does not answer."""
        try:
            return int(self._redis.llen(queue))
        except redis.RedisError:
            return 0

    def is_empty(self, *keys: str) -> bool:
        """Whether these queues, or what workers hold of them, are empty; False where Redis does not answer."""
        try:
            return not self._redis.exists(*keys)
        except redis.RedisError:
            return False

    # -- what a worker says; it goes on where Redis is away

    def note(self, run_id: str, outcome: TileOutcome) -> None:
        """Count a tile's outcome towards its run."""
        state = "cached" if outcome.cached and outcome.state == "done" else outcome.state.value
        with _tolerated("count a tile"):
            self._note(keys=[_key("tiles", run_id), _key("run", run_id)], args=[outcome.tile_id, state, KEEP_S])

    def conclude(self, run_id: str) -> None:
        """Say that a run's report is published and final."""
        with _tolerated("conclude a run"):
            self._redis.hset(_key("run", run_id), "concluded", 1)
            self._redis.expire(_key("run", run_id), KEEP_S)

    def mark_overrun(self, run_id: str, name: str) -> None:
        """Say of a delivery under way that it is beyond its time and does not hear it: it is about to be killed."""
        with _tolerated("mark an overrun"):
            self._redis.set(_key("overrun", run_id, name), 1, ex=KEEP_S)

    def overran(self, run_id: str, name: str) -> bool:
        """Whether a delivery of this piece of work has been marked so."""
        with _tolerated("look for an overrun"):
            return bool(self._redis.exists(_key("overrun", run_id, name)))
        return False

    @contextlib.contextmanager
    def claim(
        self, name: str, lease_s: int, run_id: str = "", *, for_report: bool = False, work: str = ""
    ) -> Iterator[int]:
        """Hold the claim on a piece of work, renewed while the block runs; 0 where somebody else holds it.

        A holder that is killed holds it for a lease longer. The run is shown to be alive, or reporting, beside it.
        Yielded is how often `work` of the run was begun and never ended, this time in; 1 where it has no name, or Redis
        does not answer. A tile ends however its block does, also where its worker is told to stop: a deploy is no fault
        of the tile's. What is done for a report ends where nothing cuts it short: that may be its limit.
        """
        beat = _key("report-beat" if for_report else "beat", run_id) if run_id else ""
        deliveries = _key("deliveries", run_id, work) if run_id and work else ""
        key, token, begun, ended = _key("claim", name), uuid.uuid4().hex, 1, not for_report
        try:
            with _tolerated("claim a tile"):
                begun = int(self._claim(keys=[key, beat, deliveries], args=[token, lease_s, KEEP_S]))
            if not begun:
                yield 0
                return
            self._held[token] = [key, beat], lease_s
            with self._alarms.every(lease_s / 3, self._renew):
                yield begun
            ended = True
        finally:
            self._held.pop(token, None)
            if begun:
                with _tolerated("release a claim"):
                    self._release(keys=[key, deliveries if ended else ""], args=[token])

    def lease_left_s(self, name: str) -> float:
        """How long a claim holds unless it is renewed, in seconds; 0 where it is free."""
        with _tolerated("look at a claim"):
            return max(0.0, float(self._redis.pttl(_key("claim", name))) / 1000)
        return 0.0

    def _renew(self) -> None:
        """Renew all claims at once: a command may hold hundreds, far from its Redis."""
        with _tolerated("renew claims"), self._redis.pipeline(transaction=False) as pipe:
            for token, (keys, lease_s) in list(self._held.items()):
                self._keep(keys=keys, args=[token, lease_s], client=pipe)
            pipe.execute()


def _key(kind: str, *names: str) -> str:
    """A short key of a fixed alphabet, whatever the names hold."""
    if kind in ("claim", "deliveries", "overrun"):
        names = (hashlib.sha256("\0".join(names).encode()).hexdigest()[:32],)
    return PREFIX + ":".join((kind, *names))


@contextlib.contextmanager
def _tolerated(deed: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        log.warning("could not %s, going on without: %s", deed, error)
