"""A tensor that is copied while it comes: it is followed for a while, and not at all by who gave up."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from outrider.cluster.collective.copying import Copying
from outrider.cluster.collective.mailbox import Kind, Letter
from outrider.cluster.collective.segments import STEP_BYTES, Segment

N_BYTES = 2 * STEP_BYTES + 5


@pytest.fixture
def segment() -> Segment:
    made = Segment(1, N_BYTES + -N_BYTES % (1 << 20))
    made.steps.reset()
    return made


@pytest.fixture
def letter(segment: Segment) -> Letter:
    made = Letter(Kind.TENSOR, [N_BYTES])
    made.parts = [memoryview(os.urandom(N_BYTES))]
    made.steps = segment.steps
    return made


def test_the_steps_of_a_sender_are_followed_to_the_last_which_is_shorter(segment, letter, monkeypatch):
    monkeypatch.setattr("outrider.cluster.collective.copying.FOLLOW_SECONDS", 20.0)  # this thread may be kept waiting
    target = memoryview(bytearray(N_BYTES))
    copying = Copying(letter, target)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(copying.go_on)
        for _ in range(3):
            segment.steps.add()
        running.result(20)
    assert copying.is_whole
    assert target == letter.parts[0]


def test_nobody_follows_a_sender_that_has_stopped(segment, letter):
    target = memoryview(bytearray(N_BYTES))
    copying = Copying(letter, target)
    segment.steps.add()
    copying.go_on()
    assert (copying.at, copying.is_whole) == (STEP_BYTES, False)
    letter.arrived(N_BYTES)
    copying.go_on()
    assert target == letter.parts[0]


def test_who_gave_up_is_not_written_to_and_the_next_receiver_gets_all(segment, letter):
    first, second = memoryview(bytearray(N_BYTES)), memoryview(bytearray(N_BYTES))
    copying = Copying(letter, first)
    segment.steps.add()
    copying.go_on()
    copying.give_up()
    first[:] = bytes(N_BYTES)
    segment.steps.add()
    segment.steps.add()
    copying.go_on()
    assert first == bytes(N_BYTES)
    again = Copying(letter, second)
    again.go_on()
    assert second == letter.parts[0]
