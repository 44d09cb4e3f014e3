"""The queue of a worker's plain methods."""

import sys
import threading

import pytest

from outrider.cluster.desk import Desk


def test_jobs_run_in_their_order_and_cancelled_ones_are_dropped():
    desk, done = Desk(), []
    jobs = [desk.submit(lambda n=n: done.append(n)) for n in range(4)]
    jobs[1].cancel()
    desk.submit(desk.stop)
    desk.serve()
    assert done == [0, 2, 3]


def test_a_job_that_raises_belongs_to_who_waits_for_it():
    desk = Desk()
    failing, leaving = desk.submit(lambda: 1 / 0), desk.submit(lambda: sys.exit(1))
    desk.submit(desk.stop)
    desk.serve()
    with pytest.raises(ZeroDivisionError):
        failing.result()
    with pytest.raises(SystemExit):
        leaving.result()


def test_nothing_is_begun_after_the_stop_and_all_threads_end():
    desk, done = Desk(), []
    desk.stop()
    desk.submit(lambda: done.append(1))
    threads = [threading.Thread(target=desk.serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()
    assert done == []
