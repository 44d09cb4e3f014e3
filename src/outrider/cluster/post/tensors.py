"""Torch tensors in pickles: their memory travels as a buffer, where torch's own way copies it into the pickle.

Only plain tensors are taken. One on a GPU travels by way of the CPU, and comes back to the GPU of the same number if
the receiver has it. What shares memory before the journey does not share it afterwards.
"""

import pickle
import sys
from typing import Any

FAR_BYTES = 1 << 20
"""From this size on, a tensor on a GPU may stay there on its journey."""


def with_tensors(pickler: Any) -> Any:
    """A pickler like this one that knows tensors."""

    class TensorPickler(pickler):  # type: ignore[misc]  # the class is known when it is needed
        far: list[tuple[pickle.PickleBuffer, Any]] | None = None
        """If given, large tensors on a GPU go here, with the empty buffers that stand for them."""

        def reducer_override(self, item: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is None or not _is_plain(torch, item):
                return super().reducer_override(item)
            return _reduced(torch, item, self.far)

    return TensorPickler


def _is_plain(torch: Any, item: Any) -> bool:
    return (
        type(item) in {torch.Tensor, torch.nn.Parameter}
        and item.layout is torch.strided
        and item.device.type in {"cpu", "cuda"}
        and not (item.is_quantized or item.is_conj() or item.is_neg() or item.__dict__)
    )


def _reduced(torch: Any, item: Any, far: list[tuple[pickle.PickleBuffer, Any]] | None) -> Any:
    if type(item) is torch.nn.Parameter:
        return type(item), (item.detach(), item.requires_grad)
    if far is not None and item.device.type == "cuda" and item.nbytes >= FAR_BYTES:
        content = pickle.PickleBuffer(bytearray())
        far.append((content, item))
    else:
        near = item.detach().cpu().contiguous()
        content = pickle.PickleBuffer(near.reshape(-1).view(torch.uint8).numpy())
    dtype = str(item.dtype).removeprefix("torch.")
    return rebuilt, (content, dtype, tuple(item.shape), str(item.device), item.requires_grad)


def rebuilt(content: Any, dtype: str, shape: tuple[int, ...], device: str, requires_grad: bool) -> Any:
    """The tensor again, in the memory of `content` if it stays on the CPU, or lies on its GPU already."""
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415 only who receives a tensor needs it

    kind = getattr(torch, dtype)
    if isinstance(content, torch.Tensor):
        return content.view(kind).reshape(shape).requires_grad_(requires_grad)
    view = memoryview(content)
    if view.readonly:
        view = memoryview(bytearray(view))
    tensor = torch.frombuffer(view, dtype=kind).reshape(shape) if view.nbytes else torch.empty(shape, dtype=kind)
    index = torch.device(device).index
    if index is not None and torch.cuda.is_available() and index < torch.cuda.device_count():
        tensor = tensor.to(device)
    return tensor.requires_grad_(requires_grad)
