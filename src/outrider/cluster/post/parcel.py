"""Any Python object as parts of a frame: its pickle, and behind it the large buffers as they lie in memory.

Objects of users cross processes here, classes of their own included, so this is the one place where Outrider pickles.
"""

import io
import pickle
from collections.abc import Sequence
from functools import cache
from typing import Any

from outrider.cluster.post.tensors import with_tensors
from outrider.cluster.post.wire import Part
from outrider.core.errors import InvalidInput


@cache
def pickler() -> Any:
    """The class that pickles; it also knows classes and functions that cannot be imported elsewhere."""
    try:
        import cloudpickle  # type: ignore[import-untyped]  # noqa: PLC0415 comes with an extra
    except ImportError as exc:
        raise InvalidInput("workers need cloudpickle: pip install 'outrider[ray]'") from exc
    return with_tensors(cloudpickle.Pickler)


def pack(item: Any) -> list[Part]:
    """The parts that stand for `item`; its buffers are not copied, so leave them alone until the parts are sent."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler()(file, protocol=5, buffer_callback=buffers.append).dump(item)
    return [file.getbuffer(), *(_flat(buffer) for buffer in buffers)]


def _flat(buffer: pickle.PickleBuffer) -> memoryview:
    return buffer.raw()


def unpack(parts: Sequence[Part]) -> Any:
    """The object again. It shares memory with the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 only proven members of the cluster are heard
