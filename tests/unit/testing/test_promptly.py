"""Promises of time, which the other tests keep by `within`."""

import os
import subprocess
import sys
import time

import pytest

from promptly import within

BUSY = "import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
WORK = "import os, time; os.sched_setaffinity(0, [{cpu}])\nwhile time.process_time() < 0.3: pass"


def test_what_takes_too_long_fails():
    with pytest.raises(AssertionError, match="took"), within(0.2):
        time.sleep(0.6)


def test_what_is_in_time_passes():
    with within(5):
        time.sleep(0.1)


def test_the_time_in_which_others_have_the_cpu_of_a_process_below_does_not_count():
    cpu = max(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-ISc", BUSY.format(cpu=cpu)]) for _ in range(4)]
    try:
        time.sleep(0.2)
        began = time.monotonic()
        with within(0.8):
            subprocess.run([sys.executable, "-ISc", WORK.format(cpu=cpu)], check=True)
        assert time.monotonic() - began > 0.8, "the others were not busy enough to show anything"
    finally:
        for process in busy:
            process.kill()
            process.wait()
