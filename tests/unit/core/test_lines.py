"""Lines out of a stream of bytes."""

import time

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.lines import LineSplitter


@given(st.lists(st.binary(max_size=20)))
def test_lines_are_the_same_in_whatever_pieces_they_arrive(pieces: list[bytes]):
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    assert [*lines, splitter.rest()] == b"".join(pieces).split(b"\n")
    assert splitter.rest() == b""


def test_a_line_that_is_too_long_is_cut_and_says_so():
    splitter = LineSplitter(5)
    assert splitter.feed(b"12345\n123456\n123") == [b"12345", "12345… (1 more bytes)".encode()]
    assert splitter.feed(b"45") == []
    assert splitter.n_pending == 5
    assert splitter.feed(b"x" * 1000 + b"\nnext\n") == ["12345… (1,000 more bytes)".encode(), b"next"]


def test_a_stream_without_newlines_takes_neither_memory_nor_time():
    splitter, unbounded = LineSplitter(1000), LineSplitter()
    began = time.process_time()
    for _ in range(3_000):
        splitter.feed(b"x" * 65_536)
        assert splitter.n_pending == 1000
    for _ in range(100_000):
        unbounded.feed(b"x" * 100)
    assert time.process_time() - began < 10, "it takes time that grows with the square"
