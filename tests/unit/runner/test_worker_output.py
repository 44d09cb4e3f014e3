"""What a worker process prints, as its supervisor hears it."""

import time

from outrider.runner.worker import LINE_BYTES, STDERR, STDOUT, _Ears


async def test_lines_are_heard_whole_however_they_arrive():
    heard: list[str] = []
    ears = _Ears(heard.append)
    for piece in (b"on", b"e\ntwo\n\nth", b"ree", b"\n"):
        ears.pipe_data_received(STDOUT, piece)
    ears.pipe_data_received(STDERR, b"half")
    assert heard == ["one", "two", "", "three"]
    ears.pipe_data_received(STDERR, b" \xff\n")
    assert list(ears.last_words) == ["half \ufffd"]


async def test_a_line_without_end_takes_neither_memory_nor_time():
    heard: list[str] = []
    ears = _Ears(heard.append)
    began = time.process_time()
    for _ in range(1024):
        ears.pipe_data_received(STDOUT, b"x" * 2**16)
    assert time.process_time() - began < 2.0
    assert sum(map(len, heard)) >= 1023 * 2**16
    assert max(map(len, heard)) <= 2 * LINE_BYTES
