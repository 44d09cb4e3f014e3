"""Types that several threads read for the first time at once: in a process of its own, since that is what would end."""

import subprocess
import sys

import msgspec
import pytest

from outrider.core.decoding import convert, from_json, json_decoder, msgpack_decoder

FIRST_READS = """
import sys, threading, types
from dataclasses import dataclass
import msgspec
from outrider.core.decoding import convert, from_json, json_decoder, msgpack_decoder
from outrider.core.wire import from_record, to_record

TYPES = '''
class Inner(msgspec.Struct):
    a: int = 0
    b: "str | None" = None

class Outer(msgspec.Struct):
    c: "Inner | None" = None
    d: dict[str, Inner] = {}
    e: list[Inner] = []
    f: "tuple[Inner, ...]" = ()
    g: int = 0

@dataclass
class Plain:
    h: "Outer | None" = None
    i: int = 0
'''
VALUE = {"g": 1, "f": [{"a": 1, "b": "x"}]}
TEXT = msgspec.json.encode(VALUE)
PACKED = msgspec.msgpack.encode(VALUE)
READINGS = (
    lambda types: from_json(TEXT, types.Outer),
    lambda types: convert(VALUE, types.Outer),
    lambda types: json_decoder(types.Outer).decode(TEXT),
    lambda types: msgpack_decoder(types.Outer).decode(PACKED),
    lambda types: from_record(to_record({"h": VALUE, "i": 2}), types.Plain).h,
)

def read(reading, made, start, found):
    start.wait()
    found.append(reading(made).f[0].b)

sys.setswitchinterval(1e-6)
for n in range(150):
    made = sys.modules["made"] = types.ModuleType("made")
    made.__dict__.update(msgspec=msgspec, dataclass=dataclass)
    exec(TYPES, made.__dict__)
    start, found = threading.Barrier(len(READINGS)), []
    threads = [threading.Thread(target=read, args=(reading, made, start, found)) for reading in READINGS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["x"] * len(READINGS), found
"""


def test_threads_may_read_a_type_for_the_first_time_at_once():
    ended = subprocess.run([sys.executable, "-c", FIRST_READS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


class Point(msgspec.Struct):
    x: int
    y: int = 0


def test_values_and_texts_become_what_is_asked_for():
    assert from_json(b'{"x": 1}', Point) == convert({"x": 1}, Point) == Point(1)
    assert from_json('[{"x": 1}]', list[Point]) == [Point(1)]
    assert from_json('{"x": [1, null]}') == {"x": [1, None]}
    assert convert({"x": "1"}, Point, strict=False) == Point(1)
    assert json_decoder().decode(b"[1]") == msgpack_decoder().decode(b"\x91\x01") == [1]


@pytest.mark.parametrize("read", [lambda: from_json(b'{"x": "1"}', Point), lambda: convert({"x": "1"}, Point)])
def test_what_is_of_another_type_is_refused_with_its_place(read):
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\.x`"):
        read()


def test_what_is_no_json_is_refused():
    with pytest.raises(msgspec.DecodeError):
        from_json(b'{"x": ', Point)
