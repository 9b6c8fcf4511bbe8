"""What is done beside the work when time has passed, by one thread for all of it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Alarm:
    due: float
    # by the monotonic clock
    seconds: float
    deed: Callable[[], None]


class Alarms:
    """Deeds that are due again and again while their blocks run; one that several ask for is done once for all.

    A deed holds up the others of the same thread. The thread is started by the first alarm, ends when it wakes and
    there is none, and sleeps through those that end before they are due: a thread for each took the interpreter from
    the work as it started and ended, 9 % of a tiny tile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alarms: list[_Alarm] = []
        self._thread: threading.Thread | None = None
        self._wakes = 0.0

    @contextmanager
    def every(self, seconds: float, deed: Callable[[], None]) -> Iterator[None]:
        """Do something whenever so many seconds have passed, until the block ends; it may be under way even then."""
        alarm = _Alarm(time.monotonic() + seconds, seconds, deed)
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._ring, name="alarms", daemon=True)
                thread.start()
                self._thread = thread
            elif alarm.due < self._wakes:
                self._changed.notify()
            self._alarms.append(alarm)
        try:
            yield
        finally:
            with self._changed:
                self._alarms.remove(alarm)

    def _ring(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                if not self._alarms:
                    self._thread = None
                    return
                deeds = dict.fromkeys(alarm.deed for alarm in self._alarms if alarm.due <= now)
                for alarm in self._alarms:
                    if alarm.deed in deeds:
                        alarm.due = now + alarm.seconds
                if not deeds:
                    self._wakes = min(alarm.due for alarm in self._alarms)
                    self._changed.wait(self._wakes - now)
            for deed in deeds:
                try:
                    deed()
                except Exception:  # the others need this thread
                    log.exception("beside the work")
