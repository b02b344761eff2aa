from __future__ import annotations

import threading
import time

from forebay.loader.stats import StageClock


def test_bodies_that_overlap_count_once_and_their_threads_each() -> None:
    clock = StageClock()
    both_in, one_out = threading.Barrier(2), threading.Event()
    started = time.monotonic()

    def first() -> None:
        with clock.work_together(3):
            both_in.wait()
        one_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    with clock.work_together(3):
        both_in.wait()
        one_out.wait()
        seen = clock.busy_s
    thread.join()
    assert 0 < seen <= clock.busy_s <= 3 * (time.monotonic() - started)


def test_pauses_between_bodies_do_not_count() -> None:
    clock = StageClock()
    with clock.work_together(2):
        pass
    before = clock.busy_s
    with clock.work_together(2):
        inside = clock.busy_s
    assert inside == before
