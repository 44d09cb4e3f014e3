"""Frames arrive whole however they were cut, and what is none is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pool.desktop.inside.frames import MAX_BODY_BYTES, BadFrame, Frames, frame


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary())), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_they_were_cut(sent, size):
    stream = b"".join(frame(head, body) for head, body in sent)
    frames, came = Frames(), []
    for at in range(0, len(stream), size):
        came.extend(frames.feed(stream[at : at + size]))
    assert came == sent


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!II", 2, MAX_BODY_BYTES + 1) + b"{}",
        struct.pack("!II", 1 << 31, 0),
        struct.pack("!II", 3, 0) + b"{x}",
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 1, 0) + b"\xff",
    ],
    ids=["too long a body", "too long a head", "no JSON", "no object", "no text"],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(BadFrame):
        list(Frames().feed(data))
