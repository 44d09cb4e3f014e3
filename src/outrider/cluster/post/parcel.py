"""Any Python object as parts of a frame: its pickle, and behind it the large buffers as they lie in memory.

Objects of users cross processes here, classes of their own included, so this is the one place where Outrider pickles.
"""

import io
import pickle
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from outrider.cluster.post.tensors import with_tensors
from outrider.cluster.post.wire import Part
from outrider.core.errors import InvalidInput
from outrider.core.extras import install_command

MAIN = b"__main__"
"""Stands in pickles of classes that only their own program knows."""


@cache
def pickler() -> Any:
    """The class that pickles; it also knows classes and functions that cannot be imported elsewhere."""
    try:
        import cloudpickle  # type: ignore[import-untyped]  # noqa: PLC0415 comes with an extra
    except ImportError as exc:
        raise InvalidInput(f"a cluster needs cloudpickle: {install_command('cluster')}") from exc
    return with_tensors(cloudpickle.Pickler)


def pack(item: Any, far: dict[int, Any] | None = None) -> list[Part]:
    """The parts that stand for `item`; its buffers are not copied, so leave them alone until the parts are sent.

    If `far` is given, large tensors on a GPU are put there, by the numbers of the parts that are left empty for them.
    """
    buffers: list[pickle.PickleBuffer] = []
    data = None if "torch" in sys.modules else _plain(item, buffers)
    if data is None:
        buffers.clear()
        file = io.BytesIO()
        thorough = pickler()(file, protocol=5, buffer_callback=buffers.append)
        thorough.far = None if far is None else []
        thorough.dump(item)
        data = file.getbuffer()
        if far is not None:
            numbers = {id(buffer): number for number, buffer in enumerate(buffers, 1)}
            far.update((numbers[id(content)], tensor) for content, tensor in thorough.far)
    return [data, *(buffer.raw() for buffer in buffers)]


def _plain(item: Any, buffers: list[pickle.PickleBuffer]) -> Part | None:
    """Python's own pickle, at a fifth of the time; None if the item, or perhaps something in it, needs more."""
    try:
        data = pickle.dumps(item, protocol=5, buffer_callback=buffers.append)
    except Exception:  # noqa: BLE001 who knows more tries next, and raises what is to be raised
        return None
    return None if MAIN in data else data


def unpack(parts: Sequence[Part]) -> Any:
    """The object again. It shares memory with the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 only proven members of the cluster are heard
