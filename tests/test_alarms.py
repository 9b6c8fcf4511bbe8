"""What is done beside the work: as long as its block runs, by one thread, whatever becomes of the others."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from flights.alarms import Alarms

# Generous: waiting for what must happen fails slowly, and passes at once.
SOON_S = 20.0
LATER_S = 3600.0


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self._changed, self.rung = threading.Condition(), 0

    def ring(self) -> None:
        with self._changed:
            self.rung += 1
            self._changed.notify_all()

    def rings(self, times: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.rung >= times, SOON_S)


def test_a_deed_is_done_again_and_again_while_its_block_runs_and_not_after() -> None:
    alarms, bell, later = Alarms(), Bell(), Bell()
    with alarms.every(0.01, bell.ring):
        assert bell.rings(3)
    with alarms.every(0.01, later.ring):  # that thread may have been at the first one's deed as its block ended
        assert later.rings(1)
        rung = bell.rung
        assert later.rings(4)
    assert bell.rung == rung


def test_what_is_due_first_is_not_held_up_by_what_is_due_later() -> None:
    alarms, bell, never = Alarms(), Bell(), Bell()
    with alarms.every(LATER_S, never.ring), alarms.every(0.01, bell.ring):
        assert bell.rings(2)
    with alarms.every(0.01, bell.ring):
        assert bell.rings(3)
    assert never.rung == 0


def test_alarms_of_many_threads_at_once() -> None:
    alarms, bells = Alarms(), [Bell() for _ in range(8)]
    rung: list[bool] = []

    def work(bell: Bell) -> None:
        for _ in range(5):
            with alarms.every(LATER_S, bell.ring), alarms.every(0.001, bell.ring):
                rung.append(bell.rings(bell.rung + 1))

    threads = [threading.Thread(target=work, args=(bell,)) for bell in bells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rung == [True] * 40


def test_a_deed_that_several_ask_for_is_done_once_for_all() -> None:
    alarms, bell = Alarms(), Bell()
    with alarms.every(LATER_S, bell.ring):
        (later,) = alarms._alarms
        due = later.due
        with alarms.every(0.01, bell.ring):
            assert bell.rings(2)
        assert later.due > due


def test_a_deed_that_fails_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    alarms, bell = Alarms(), Bell()

    def fail() -> None:
        raise ValueError("a deed's own")

    with alarms.every(0.001, fail), alarms.every(0.01, bell.ring):
        assert bell.rings(3)
    assert "a deed's own" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_alarm_ends_however_its_block_ends(error: type[BaseException]) -> None:
    alarms, bell, later = Alarms(), Bell(), Bell()
    with pytest.raises(error), alarms.every(LATER_S, bell.ring):
        raise error
    with alarms.every(0.01, later.ring):
        assert later.rings(2)
    assert alarms._alarms == []


def test_the_thread_ends_when_there_is_nothing_to_do_and_comes_back() -> None:
    alarms, bell = Alarms(), Bell()
    for rung in (1, 2):
        with alarms.every(0.01, bell.ring):
            assert bell.rings(rung)
            thread = alarms._thread
            assert thread is not None
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_one_thread_for_all_of_them_which_the_next_one_does_not_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    alarms, woken = Alarms(), list[int]()

    def counted(wait: Callable[..., bool]) -> Callable[..., bool]:
        def waits(timeout: float | None) -> bool:
            woken.append(1)
            return wait(timeout)

        return waits

    monkeypatch.setattr(alarms._changed, "wait", counted(alarms._changed.wait))
    bell = Bell()
    with ExitStack() as held:
        held.enter_context(alarms.every(LATER_S, bell.ring))
        with alarms.every(0.01, bell.ring):
            assert bell.rings(1)
        waits, thread = len(woken), alarms._thread
        for _ in range(100):  # as tile after tile has it
            with alarms.every(LATER_S, bell.ring):
                time.sleep(0.001)  # a thread that was woken would run now
                assert alarms._thread is thread
        assert len(woken) <= waits + 1
