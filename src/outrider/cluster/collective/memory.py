"""Plain bytes under what users send and receive, and copies of them that let other threads run."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from outrider.core.errors import InvalidInput

PINNED_BYTES = 256 << 20
"""Up to this size a tensor on a GPU passes through pinned memory: several times as fast, but never given back."""


class _PyBuffer(ctypes.Structure):
    """Python's own description of a buffer; `address_of` reads its first field."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


def address_of(view: memoryview) -> int:
    """Where it lies; good for as long as `view` is kept."""
    found = _PyBuffer()
    _get_buffer(view, ctypes.byref(found), 0)
    try:
        return found.buf or 0
    finally:
        _release_buffer(ctypes.byref(found))


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes with the interpreter's lock let go, as a slice assignment does not."""
    ctypes.memmove(address_of(target), address_of(source), min(target.nbytes, source.nbytes))


class TensorBuffer(NamedTuple):
    """The bytes of a tensor, what it is in words, and what to do once they have been written."""

    view: memoryview
    what: str
    finish: Callable[[], object] | None = None


def readable(tensor: Any) -> memoryview:
    """The bytes of a tensor to send; one on another device, or with gaps, is copied first."""
    if is_torch(tensor):
        tensor = tensor.detach().contiguous()
        return _bytes_of(tensor if tensor.device.type == "cpu" else _near(tensor).copy_(tensor))
    view = _view(tensor)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def writable(tensor: Any) -> TensorBuffer:
    """The bytes of a tensor to receive into; refuses what cannot be written in place, and says why."""
    if is_torch(tensor):
        return _writable_torch(tensor)
    view = _view(tensor)
    what = _describe(tensor, view)
    if view.readonly:
        raise InvalidInput(f"{what} is read-only: nothing can be received into it")
    if not view.c_contiguous:
        raise InvalidInput(f"{what} is not contiguous: receive into a contiguous array, and copy from there")
    return TensorBuffer(view.cast("B") if view.nbytes else memoryview(bytearray()), what)


def _writable_torch(tensor: Any) -> TensorBuffer:
    what = f"a tensor of shape {tuple(tensor.shape)} and type {tensor.dtype} on {tensor.device}"
    if not tensor.is_contiguous():
        raise InvalidInput(f"{what} is not contiguous: receive into a contiguous tensor, and copy from there")
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return TensorBuffer(_bytes_of(tensor), what)
    torch = sys.modules["torch"]
    near = _near(tensor)
    stream = torch.cuda.current_stream(tensor.device) if tensor.device.type == "cuda" else None

    def finish() -> None:
        with torch.cuda.stream(stream):
            tensor.copy_(near)

    return TensorBuffer(_bytes_of(near), what, finish)


def _near(tensor: Any) -> Any:
    """Room for it in the host's memory; torch keeps what is pinned for the next one."""
    is_pinned = tensor.device.type == "cuda" and tensor.nbytes <= PINNED_BYTES
    return sys.modules["torch"].empty_like(tensor, device="cpu", pin_memory=is_pinned)


def _bytes_of(tensor: Any) -> memoryview:
    """As integers of one byte: NumPy has no type for some of torch's."""
    flat = tensor.reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return memoryview(flat) if flat.size else memoryview(bytearray())


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _view(tensor: Any) -> memoryview:
    try:
        return memoryview(tensor)
    except TypeError:
        raise InvalidInput(
            f"a tensor must be a torch tensor, a NumPy array or another buffer, not {type(tensor).__name__}"
        ) from None
    except ValueError as exc:
        raise InvalidInput(f"the memory of this {type(tensor).__name__} cannot be reached: {exc}") from exc


def _describe(tensor: Any, view: memoryview) -> str:
    dtype = getattr(tensor, "dtype", view.format)
    return f"a {type(tensor).__name__} of shape {view.shape} and type {dtype}"
