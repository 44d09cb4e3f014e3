"""What is encoded comes back the same."""

import math

from hypothesis import given
from hypothesis import strategies as st

from outrider.core import wire
from outrider.core.attempt import Failure
from outrider.core.bounds import MAX_COUNT
from outrider.core.errors import Boundary
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.rollout import RETRYABLE, RolloutConfig

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | st.integers(-9, 9), inner, max_size=4),
    max_leaves=12,
)
seconds = st.floats(0.001, 1e9)


def same(a: object, b: object) -> bool:
    """Equal in value and type, NaN included, which is equal to nothing."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


@given(values)
def test_a_json_like_value_comes_back_the_same(value: object):
    encoded = wire.encode(value)
    assert same(wire.decode(encoded), value)
    assert wire.encode(wire.decode(encoded)) == encoded


@given(
    st.builds(
        RolloutConfig,
        timeout_seconds=st.none() | seconds,
        unresponsive_seconds=seconds,
        max_attempts=st.integers(1, MAX_COUNT),
        retry_condition=st.frozensets(st.sampled_from(sorted(RETRYABLE))),
    )
)
def test_a_configuration_comes_back_the_same(config: RolloutConfig):
    assert wire.from_record(wire.to_record(config), RolloutConfig) == config


@given(
    st.builds(
        Failure,
        boundary=st.sampled_from(Boundary),
        kind=texts,
        message=texts,
        stage=texts,
        traceback=st.none() | texts,
    )
)
def test_a_failure_comes_back_the_same(failure: Failure):
    assert wire.from_record(wire.to_record(failure), Failure) == failure


@given(
    st.builds(
        RecordedEvent,
        kind=st.sampled_from(EventKind),
        at=st.datetimes(timezones=st.timezones(), allow_imaginary=False).filter(lambda at: at.utcoffset() is not None),
        name=texts,
        data=st.dictionaries(texts, values.filter(lambda value: "nan" not in repr(value)), max_size=3),
        rollout_id=texts,
        attempt_id=texts,
        index=st.integers(0, 2**31),
    )
)
def test_an_event_comes_back_the_same(event: RecordedEvent):
    assert wire.from_record(wire.to_record(event), RecordedEvent) == event
