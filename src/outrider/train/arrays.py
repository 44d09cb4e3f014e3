"""NumPy as the rest of `train` uses it, and the packed arrays of turn records in its form."""

from typing import Any, TypeVar

from outrider.core.errors import InvalidInput
from outrider.core.extras import install_command

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError as exc:
    raise InvalidInput(f"samples and batches need: {install_command('train')}") from exc

__all__ = ["PACKED_FLOAT", "PACKED_INT", "Bools", "Floats", "Ints", "NDArray", "frozen", "np", "unpacked"]

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

PACKED_INT = np.dtype("<i4")
PACKED_FLOAT = np.dtype("<f4")
"""How turn records pack token ids and log-probabilities."""

_Array = TypeVar("_Array", bound=NDArray[Any])


def unpacked(data: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    """The array packed in `data`, read-only, in the machine's own byte order; not copied if that is the packed one."""
    return np.frombuffer(data, dtype=kind).astype(kind.newbyteorder("="), copy=False)


def frozen(array: _Array) -> _Array:
    """The array itself, never to be written to again."""
    array.flags.writeable = False
    return array
