"""Celery as the fleet runs it: its settings, and two steps that every worker's consumer takes besides Celery's own."""

import base64
import json
import logging
import sys
import time
from typing import Any

import redis
from celery import bootsteps
from celery.worker import state
from kombu.transport.redis import Channel, QoS

from flights.pipeline import clear_scratch, free_scratch_bytes
from flights.settings import Settings, load_settings

log = logging.getLogger(__name__)

PRIORITY, TILES, EXPORTS = "priority", "tiles", "exports"
KEY_PREFIX = "flights:celery:"
# The messages that workers hold, of all queues.
UNACKED = KEY_PREFIX + "unacked"
# After this a killed worker's messages come back. A living worker renews its messages three times as often.
VISIBILITY_S = 60
# Results and chord parts are kept as long as a flight may take, and longer.
KEEP_S = 3 * 24 * 3600
# Tasks of whole flights; all others are tiles.
OF_FLIGHTS = ("flights.report_flight", "flights.composite_flight", "flights.sweep", "flights.clean")
SWEEP_EVERY_S = 60
CLEAN_EVERY_S = 3600
# A process that has grown beyond this is replaced when its task is done; a tile takes about 300 MB.
CHILD_MEMORY_KB = 1_500_000
# Messages at either end of a queue that a starting worker looks at: one that was put back lies at the head.
HEAD_MESSAGES = 20
# How often free disk space is looked at.
DISK_EVERY_S = 10
# How often a starting worker asks for a broker that is not up yet.
BROKER_EVERY_S = 2


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings, each with its reason."""
    redis_options = {
        "global_keyprefix": KEY_PREFIX,  # a Redis may be shared
        "visibility_timeout": VISIBILITY_S,  # short, since leases are renewed: see LeaseKeeper
        "socket_timeout": 10,  # else a half-open connection waits for ever
        "socket_keepalive": True,
        "health_check_interval": 25,
        "retry_on_timeout": True,
    }
    return {
        "broker_url": settings.broker_url,
        "result_backend": settings.result_backend or settings.broker_url,
        # Only JSON crosses the queue: pickle would run what a message says.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        # A tile's message is done when the tile is: a killed worker's tiles come back.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_acks_on_failure": True,
        # Off would run a tile again after its chord has been told that it failed.
        "task_acks_on_timeout": True,
        "worker_prefetch_multiplier": 1,  # with late acknowledgement no tile waits behind another one's worker
        "worker_disable_prefetch": True,  # the prefetch count drifts up over a worker's life
        # On, a blip of Redis revokes running tiles for good.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # A tile that ends while Redis is away must still be counted.
        "result_backend_always_retry": True,
        "result_backend_max_retries": 20,
        # A flight's parts must outlive the flight.
        "result_expires": KEEP_S,
        "result_chord_expires": KEEP_S,
        "broker_transport_options": {
            **redis_options,
            "queue_order_strategy": "priority",  # queues are drained in the order in which a worker names them
            # Else a dead worker's messages wait up to 100 s beyond the visibility timeout.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # Who restores messages holds this lock for a moment; killed there, it would stop all restoring for 300 s.
            "unacked_mutex_expire": 10,
        },
        "result_backend_transport_options": redis_options,
        "broker_connection_retry_on_startup": True,
        "task_default_queue": TILES,
        "task_create_missing_queues": True,
        "task_routes": {name: {"queue": EXPORTS} for name in OF_FLIGHTS},
        "beat_schedule": {
            "sweep": {
                "task": "flights.sweep",
                "schedule": SWEEP_EVERY_S,
                "options": {"expires": SWEEP_EVERY_S},  # sweeps that nobody ran do not pile up
            },
            "clean": {"task": "flights.clean", "schedule": CLEAN_EVERY_S, "options": {"expires": CLEAN_EVERY_S}},
        },
        # GDAL's and the allocator's memory does not come back.
        "worker_max_tasks_per_child": 2_000,
        "worker_max_memory_per_child": CHILD_MEMORY_KB,
        "worker_soft_shutdown_timeout": 30,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
    }


class LeaseKeeper(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Renews the visibility of the messages that this worker holds, so that a slow tile is not run twice.

    The Redis transport hands a message out again once VISIBILITY_S have passed since it was taken, whether its worker
    lives or not. A worker that is killed stops renewing: its tiles come back within about a minute. Relies on kombu's
    `unacked_index` (a sorted set of delivery tags by time), which is why kombu is pinned.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        self._timer = consumer.timer.call_repeatedly(VISIBILITY_S / 3, self._renew, (consumer,))

    def stop(self, consumer: Any) -> None:
        del consumer
        self._timer.cancel()

    def _renew(self, consumer: Any) -> None:
        qos = consumer.task_consumer.channel.qos
        held = {tag: time.time() for tag in list(getattr(qos, "_delivered", {}))}
        if not held:
            return
        try:
            with qos.channel.conn_or_acquire() as client:
                client.zadd(qos.unacked_index_key, held, xx=True)  # xx: what was acknowledged meanwhile stays away
        except consumer.connection_errors as error:
            log.warning("could not renew %d messages: %s", len(held), error)


class Unacked(QoS):
    """What a worker holds unacknowledged, of a connection that may be gone.

    kombu puts it back when it closes a connection; of one that was lost it has no client left to do so with, and the
    AttributeError ends the worker. It comes back all the same, when its visibility has run out.
    """

    def restore_unacked(self, client: Any = None) -> None:
        try:
            super().restore_unacked(client)  # type: ignore[no-untyped-call]  # kombu has no types
        except AttributeError as error:
            log.warning("%d messages come back later, their connection is lost: %s", len(self._delivered), error)


Channel.QoS = Unacked


class Quarantine(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Sets aside messages that no worker can even read, before this one meets them.

    A body that is not base64 ends the whole worker and is put back, so it would end every worker after it; under a
    supervisor that starts workers again, the next one clears it. What is set aside stays in the list `unreadable`.
    """

    def start(self, worker: Any) -> None:
        # A client of our own: kombu's prefixes the keys of the commands that it uses itself, and of no others.
        broker_url = load_settings().broker_url
        if broker_url is None:
            sys.exit("a worker needs CELERY_BROKER_URL, such as redis://redis.farm:6379/0")
        with redis.Redis.from_url(broker_url, socket_connect_timeout=5, socket_timeout=10) as client:
            self._await(client)
            for name in worker.app.amqp.queues.consume_from:
                queue = KEY_PREFIX + name
                for raw in client.lrange(queue, -HEAD_MESSAGES, -1) + client.lrange(queue, 0, HEAD_MESSAGES - 1):
                    if not is_readable(raw) and client.lrem(queue, 1, raw):
                        client.lpush(KEY_PREFIX + "unreadable", raw)
                        log.error("set aside an unreadable message in queue %s: %r", name, raw[:80])

    def _await(self, client: redis.Redis) -> None:
        """Wait for a broker that is not up yet, as the worker itself does later; end where it wants another user."""
        while True:
            try:
                client.ping()
                return
            except (redis.AuthenticationError, redis.ResponseError) as error:
                sys.exit(f"the broker (CELERY_BROKER_URL) refuses: {error}")
            except redis.RedisError as error:
                log.error("the broker (CELERY_BROKER_URL) does not answer, trying again: %s", error)
                time.sleep(BROKER_EVERY_S)
            if state.should_stop is not None or state.should_terminate is not None:  # told to go meanwhile
                sys.exit(0)


def is_readable(raw: bytes) -> bool:
    """Whether a queued message has the form in which kombu's Redis transport wraps one."""
    try:
        message = json.loads(raw)
        base64.b64decode(message["body"], validate=True)
        return isinstance(message["properties"]["delivery_tag"], str)
    except (ValueError, TypeError, KeyError):
        return False


class DiskGuard(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Stops taking tiles while scratch has no room for one, and takes them again when it has.

    What killed processes left there is removed first.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._settings = load_settings()
        self._paused: list[str] = []  # outlives a reconnection: so does the consumer's choice of queues

    def start(self, consumer: Any) -> None:
        self._timer = consumer.timer.call_repeatedly(DISK_EVERY_S, self._look, (consumer,))
        self._look(consumer)

    def stop(self, consumer: Any) -> None:
        del consumer
        self._timer.cancel()

    def _look(self, consumer: Any) -> None:
        clear_scratch(self._settings)
        free = free_scratch_bytes(self._settings)
        if free < self._settings.min_free_bytes and not self._paused:
            # Reports take no room, and a composite says itself that it lacks it.
            self._paused = [queue.name for queue in consumer.task_consumer.queues if queue.name != EXPORTS]
            log.error("%d bytes free on scratch (FLIGHTS_MIN_FREE_BYTES): taking no more tiles", free)
            for name in self._paused:
                consumer.cancel_task_queue(name)
        elif self._paused and free >= self._settings.min_free_bytes:
            log.warning("%d bytes free on scratch: taking tiles again", free)
            for name in self._paused:
                consumer.add_task_queue(name)
            self._paused = []
