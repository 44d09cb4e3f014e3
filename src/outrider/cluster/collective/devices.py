"""Tensors on a GPU that two workers share: the receiver copies them on the GPU, from where they lie at the sender.

The sender offers them. A receiver that asks for them, or does so before `patience` is over, pulls them; otherwise they
are refused and go through the host's memory, as those between two GPUs do. So sending stays buffered.

The driver's own calls are used: torch's handles keep what was offered for ever if nobody opens it, and wrap a tensor
anew each time it is sent.

Invariants:
- What is offered is kept until the receiver has answered, or the offer is withdrawn.
- A letter counts as arrived when the copies have ended on the GPU; they follow the work of the receiver's own stream.
- Nothing of the sender's memory stays mapped after the copies.
"""

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import msgspec

from outrider.cluster.collective.memory import is_torch, readable
from outrider.cluster.post.tensors import FAR_BYTES

HOST_BYTES_PER_SECOND = 2e9
LAZY_PEER_ACCESS = 1
MANY_PARTS = 1000
"""More than a frame should hold."""


def patience(n_bytes: int) -> float:
    """Seconds for which a pull may be waited for: about what the way through the host's memory takes."""
    return n_bytes / HOST_BYTES_PER_SECOND


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Where a part of a letter lies: in memory of the sender's on a GPU, which may have another number elsewhere."""

    part: int
    n_bytes: int
    gpu: str
    number: int
    handle: bytes
    offset: int


class Landing(NamedTuple):
    """What a receiver brings: the streams of its thread by GPU, and the tensor to fill, or None for new ones."""

    streams: Mapping[int, Any]
    tensor: Any = None


class Gpus:
    """The GPUs of this process, as far as torch is in use; without it there are none."""

    def is_far(self, tensor: Any) -> bool:
        """Whether it is worth an offer."""
        return is_torch(tensor) and tensor.device.type == "cuda" and tensor.nbytes >= FAR_BYTES

    def ready(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors without gaps, when the calling thread's work on them has ended."""
        found = [tensor.detach().contiguous() for tensor in tensors]
        for device in {tensor.device for tensor in found}:
            sys.modules["torch"].cuda.current_stream(device).synchronize()
        return found

    def offers(self, tensors: Mapping[int, Any]) -> tuple[Offer, ...]:
        """How another process finds them, by part; none if they lie in memory that cannot be shared."""
        try:
            return tuple(self._offer(part, tensor) for part, tensor in tensors.items())
        except OSError:
            return ()

    def _offer(self, part: int, tensor: Any) -> Offer:
        base, handle, at, number = ctypes.c_uint64(), _Handle(), tensor.data_ptr(), tensor.device.index
        with _context(number):
            _call("cuMemGetAddressRange_v2", ctypes.byref(base), None, ctypes.c_uint64(at))
            _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return Offer(part, tensor.nbytes, _uuids()[number], number, bytes(handle), at - base.value)

    def has(self, offers: Sequence[Offer]) -> bool:
        return {offer.gpu for offer in offers} <= set(_uuids())

    def landing(self, tensor: Any = None) -> Landing:
        """To be made on the thread that uses what comes."""
        streams = {number: sys.modules["torch"].cuda.current_stream(number) for number in range(len(_uuids()))}
        return Landing(streams, tensor)

    def pull(self, offers: Sequence[Offer], landing: Landing) -> dict[int, Any] | None:
        """Copy what is offered, by part; None if that is impossible. Blocks until the copies have ended."""
        try:
            with ExitStack() as stack:
                opened: dict[bytes, int] = {}
                return {offer.part: self._pull(offer, landing, opened, stack) for offer in offers}
        except (OSError, RuntimeError):
            return None

    def _pull(self, offer: Offer, landing: Landing, opened: dict[bytes, int], stack: ExitStack) -> Any:
        number = offer.number if landing.tensor is None else landing.tensor.device.index
        if number not in landing.streams or _uuids()[number] != offer.gpu:
            raise OSError("another GPU is wanted")
        torch, stream = sys.modules["torch"], landing.streams[number]
        with torch.cuda.stream(stream), _context(number):
            target = landing.tensor
            if target is None:
                target = torch.empty(offer.n_bytes, dtype=torch.uint8, device=f"cuda:{number}")
            if offer.handle not in opened:
                opened[offer.handle] = stack.enter_context(_opened(offer.handle, number, stream))
            source, n_bytes = opened[offer.handle] + offer.offset, ctypes.c_size_t(offer.n_bytes)
            ends = ctypes.c_uint64(target.data_ptr()), ctypes.c_uint64(source)
            _call("cuMemcpyDtoDAsync_v2", *ends, n_bytes, ctypes.c_void_p(stream.cuda_stream))
        return target


class _Handle(ctypes.Structure):
    _fields_ = (("content", ctypes.c_ubyte * 64),)


@contextmanager
def _opened(handle: bytes, number: int, stream: Any) -> Iterator[int]:
    """Memory of another process; it is let go when the work of the stream has ended."""
    found = ctypes.c_uint64()
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(found), _Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
    try:
        yield found.value
    finally:
        stream.synchronize()
        with _context(number):
            _call("cuIpcCloseMemHandle", found)


def _uuids() -> Sequence[str]:
    """What tells the GPUs apart, by their numbers; none before torch has begun to use them."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return _all_uuids(cuda) if getattr(cuda, "is_initialized", bool)() else ()


@cache
def _all_uuids(cuda: Any) -> Sequence[str]:
    return [str(getattr(cuda.get_device_properties(number), "uuid", "")) for number in range(cuda.device_count())]


@contextmanager
def _context(number: int) -> Iterator[None]:
    """What torch uses on this GPU, for calls of the driver from any thread."""
    _call("cuCtxPushCurrent_v2", _primary(number))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@cache
def _primary(number: int) -> ctypes.c_void_p:
    device, found = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), number)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
    return found


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        raise OSError(f"{name} of the CUDA driver failed with {status}")


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


class Cargo:
    """The parts of a letter on their way out; those that lie on a GPU are empty until they are brought near."""

    def __init__(self, parts: list[memoryview], far: Mapping[int, Any]) -> None:
        self.parts = parts
        self.far = far
        self.lengths = tuple(far[at].nbytes if at in far else part.nbytes for at, part in enumerate(parts))

    @property
    def is_mostly_far(self) -> bool:
        n_far = sum(tensor.nbytes for tensor in self.far.values())
        return len(self.parts) <= MANY_PARTS and sum(self.lengths) - n_far <= n_far // 16

    def bring_near(self) -> None:
        """Copy them into the host's memory."""
        for part, tensor in self.far.items():
            self.parts[part] = readable(tensor)
        self.far = {}
