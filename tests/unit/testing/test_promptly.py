"""Promises of time, which the other tests keep by `within`."""

import time

import pytest

from promptly import within


def test_what_takes_too_long_fails():
    with pytest.raises(AssertionError, match="took"), within(0.2):
        time.sleep(0.6)


def test_what_is_in_time_passes():
    with within(5):
        time.sleep(0.1)
