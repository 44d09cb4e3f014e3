"""Mail between two processes on one GPU, checked and measured: `PYTHONPATH=src:tests python tests/gpu/cuda_mail.py`."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mailing import Remote, World, world
from outrider.cluster.address import WorkerAddress
from outrider.cluster.collective import CollectiveGroup
from outrider.core.errors import CallLate, WorkerDied

MB = 1 << 20
BUSY_CYCLES = 4_000_000_000
"""About two seconds of a GPU."""

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool", "complex64", "float8_e4m3fn", "uint8")
A, B = WorkerAddress("a", 0), WorkerAddress("b", 0)
Mail = CollectiveGroup


def content(n_bytes: int, dtype: str = "uint8", seed: int = 0) -> torch.Tensor:
    made = torch.arange(n_bytes, device="cuda", dtype=torch.int32).add_(seed).remainder_(2 if dtype == "bool" else 113)
    return made.to(torch.uint8).view(getattr(torch, dtype))


def is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    same = left.dtype == right.dtype and left.shape == right.shape and left.device == right.device
    return same and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def count_pulls(mail: Mail) -> None:
    """Keep in `pulls` whether each offer was pulled."""
    gpus, mail.pulls = mail._gpus, []  # type: ignore[attr-defined]  # a mark for this program
    pull = gpus.pull

    def counted(offers: Any, landing: Any) -> Any:
        found = pull(offers, landing)
        mail.pulls.append(found is not None)
        return found

    gpus.pull = counted


def way(mail: Mail, *, is_direct: bool) -> None:
    mail._gpus.has = type(mail._gpus).has.__get__(mail._gpus) if is_direct else lambda _: False


def check_tensors(a: Remote, b: Remote) -> bool:
    """Whether they stayed on the GPU; torch's expandable segments, for one, cannot be shared."""
    cases = [(dtype, n_bytes) for dtype in DTYPES for n_bytes in (MB, 3 * MB + 64, 64 * MB)]

    def receive(mail: Mail) -> tuple[list[bool], list[bool]]:
        good = []
        for dtype, n_bytes in cases:
            target = torch.zeros_like(content(n_bytes, dtype))
            waiting = mail.recv_tensor(target, A, async_op=True)
            mail.send("ready", A)
            waiting.wait(30)
            good.append(is_same(target, content(n_bytes, dtype)))
        return good, mail.pulls

    def send(mail: Mail) -> None:
        for dtype, n_bytes in cases:
            mail.recv(B, timeout=30)
            mail.send_tensor(content(n_bytes, dtype), B, timeout=30)

    receiving = b.start(receive)
    a.do(send)
    good, pulls = receiving.result(60)
    print(f"tensors: {sum(good)} of {len(cases)} right, {sum(pulls)} on the GPU", flush=True)
    assert all(good)
    return all(pulls) and len(pulls) == len(cases)


def check_objects(a: Remote, b: Remote) -> None:
    def item() -> dict[str, Any]:
        weights = {dtype: content(2 * MB, dtype).reshape(64, -1) for dtype in DTYPES}
        gaps = content(8 * MB, "float32").reshape(1024, -1).t()
        parameter = torch.nn.Parameter(content(4 * MB, "float32"))
        return {"weights": weights, "gaps": gaps, "parameter": parameter, "small": content(64), "text": "near"}

    def receive(mail: Mail) -> tuple[bool, bool, list[bool]]:
        before, got, wanted = len(mail.pulls), mail.recv(A, timeout=30), item()
        pairs = [(got["weights"][one], wanted["weights"][one]) for one in DTYPES]
        pairs += [(got[one], wanted[one]) for one in ("gaps", "parameter", "small")]
        is_right = all(is_same(*pair) for pair in pairs)
        is_whole = got["text"] == "near" and type(got["parameter"]) is torch.nn.Parameter
        got["gaps"].add_(1)
        return is_right, is_whole, mail.pulls[before:]

    receiving = b.start(receive)
    a.do(lambda mail: mail.send(item(), B, timeout=30))
    is_right, is_whole, pulls = receiving.result(60)
    print(f"objects: {is_right and is_whole}, on the GPU: {pulls}", flush=True)
    assert is_right
    assert is_whole


def check_buffering(a: Remote, b: Remote) -> None:
    """Nobody waits for these, nor for their order."""

    def send(mail: Mail) -> float:
        begin = time.perf_counter()
        for seed in range(3):
            mail.send_tensor(content(8 * MB, seed=seed), B, timeout=30)
            mail.send(content(8 * MB, seed=seed), B, timeout=30)
        return time.perf_counter() - begin

    def receive(mail: Mail) -> bool:
        target, good = content(8 * MB), []
        for seed in range(3):
            mail.recv_tensor(target, A, timeout=30)
            good += [is_same(target, content(8 * MB, seed=seed))]
            good += [is_same(mail.recv(A, timeout=30), content(8 * MB, seed=seed))]
        near = torch.zeros(8 * MB, dtype=torch.uint8)
        waiting = mail.recv_tensor(near, A, async_op=True)
        mail.send("ready", A)
        waiting.wait(30)
        return all(good) and torch.equal(near, content(8 * MB).cpu())

    def send_when_asked(mail: Mail) -> None:
        mail.recv(B, timeout=30)
        mail.send_tensor(content(8 * MB), B, timeout=30)

    print(f"unasked for, six of 8 MB: sent in {a.do(send) * 1e3:.0f} ms", flush=True)
    receiving = b.start(receive)
    a.do(send_when_asked)
    assert receiving.result(60)


def check_streams(a: Remote, b: Remote) -> None:
    """Work that is under way on streams of the users' own is waited for, on both sides."""

    def send(mail: Mail) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(5):
                torch.cuda._sleep(50_000_000)
                mail.send_tensor(content(64 * MB, seed=seed), B, timeout=30)

    def receive(mail: Mail) -> bool:
        good, target = [], torch.zeros(64 * MB, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(5):
                torch.cuda._sleep(50_000_000)
                target.zero_()
                mail.recv_tensor(target, A, timeout=30)
                good.append(is_same(target, content(64 * MB, seed=seed)))
        return all(good)

    receiving = b.start(receive)
    a.do(send)
    assert receiving.result(60)


def busy_receive(mail: Mail, source: WorkerAddress) -> tuple[str, float, bool]:
    """Ask while the own stream is busy, so that the copy begins two seconds later; then whether the GPU still works."""
    target = torch.zeros(64 * MB, dtype=torch.uint8, device="cuda")
    torch.cuda._sleep(BUSY_CYCLES)
    begin = time.perf_counter()
    try:
        mail.recv_tensor(target, source, timeout=20)
        found = str(int(target[0]))
    except WorkerDied as exc:
        found = type(exc).__name__
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return found, took, is_same(content(MB), content(MB))


def check_deaths(made: World) -> None:
    def send(mail: Mail, to: WorkerAddress) -> None:
        mail.send_tensor(content(64 * MB), to)

    for victim in ("sender", "receiver"):
        rank = 0 if victim == "sender" else 1
        one, other = made.remote(f"c:{rank}"), made.remote(f"d:{rank}")
        for remote in (one, other):
            remote.do(lambda mail: content(MB).sum().item())
        receiving = other.start(partial(busy_receive, source=one.address))
        time.sleep(0.3)
        sending = one.start(partial(send, to=other.address))
        time.sleep(0.5)
        begin = time.perf_counter()
        (one if victim == "sender" else other).kill()
        if victim == "sender":
            found, took, works = receiving.result(30)
            print(
                f"sender killed: {found} at the receiver {took - 0.8:.2f} s later; its GPU works: {works}", flush=True
            )
            assert (found, works) == ("WorkerDied", True)
        else:
            error = sending.exception(30)
            took, works = time.perf_counter() - begin, one.do(lambda mail: is_same(content(MB), content(MB)))
            print(f"receiver killed: {type(error).__name__} at the sender {took:.2f} s later; GPU works: {works}")
            assert isinstance(error, WorkerDied)
            assert works


def check_withdrawal(a: Remote, b: Remote) -> None:
    """A sender gives up while the receiver is about to copy, frees the memory, and sends something else."""

    def send(mail: Mail) -> str:
        try:
            mail.send_tensor(content(64 * MB, seed=1), B, timeout=0.5)
        except CallLate:
            torch.cuda.empty_cache()
            mail.send_tensor(content(64 * MB, seed=2), B, timeout=20)
            return "late"
        return "in time"

    receiving = b.start(partial(busy_receive, source=A))
    time.sleep(0.3)
    how, (found, _, works) = a.do(send), receiving.result(30)
    print(f"given up by its sender: it was {how}; received {found}; the GPU works: {works}", flush=True)
    assert (found, works) == ("2" if how == "late" else "1", True)


def measure(a: Remote, b: Remote, n_bytes: int, n_times: int, kind: str) -> float:
    """The median of bytes in a second, from the call that sends to the end of the one that receives."""

    def receive(mail: Mail) -> list[float]:
        ends, target = [], torch.zeros(n_bytes, dtype=torch.uint8, device="cuda")
        for _ in range(n_times):
            if kind == "tensor":
                waiting = mail.recv_tensor(target, A, async_op=True)
                mail.send(None, A)
                waiting.wait(60)
            else:
                waiting = mail.recv(A, async_op=True)
                mail.send(None, A)
                target = waiting.wait(60)["x"]
            torch.cuda.synchronize()
            ends.append(time.perf_counter())
        return ends

    def send(mail: Mail) -> list[float]:
        begins, source = [], content(n_bytes)
        for _ in range(n_times):
            mail.recv(B, timeout=60)
            torch.cuda.synchronize()
            begins.append(time.perf_counter())
            mail.send_tensor(source, B, timeout=60) if kind == "tensor" else mail.send({"x": source}, B, timeout=60)
        return begins

    receiving = b.start(receive)
    begins = a.do(send)
    took = [end - begin for begin, end in zip(begins, receiving.result(120), strict=True)]
    return n_bytes / statistics.median(took[2:]) / 1e9


def timed(action: Callable[[], Any]) -> float:
    took = []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        action()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[2:])


def main() -> None:
    with world(a=1, b=1, c=2, d=2) as made:
        a, b = made.remote("a:0"), made.remote("b:0")
        b.do(count_pulls)
        for remote in (a, b):
            remote.do(lambda mail: content(MB).sum().item())
        is_shared = check_tensors(a, b)
        check_objects(a, b)
        check_buffering(a, b)
        check_streams(a, b)
        if is_shared:
            check_withdrawal(a, b)
            check_deaths(made)
        for n_bytes in (MB, 4 * MB, 16 * MB, 64 * MB, 1024 * MB):
            source, target = content(n_bytes), content(n_bytes)
            line = [f"{n_bytes // MB} MB: plain copy {n_bytes / timed(partial(target.copy_, source)) / 1e9:.1f}"]
            for kind in ("tensor", "object"):
                for is_direct in (True, False):
                    b.do(partial(way, is_direct=is_direct))
                    speed = measure(a, b, n_bytes, 12 if n_bytes < 1024 * MB else 6, kind)
                    line.append(f"{kind} {'on the GPU' if is_direct else 'by the host'} {speed:.2f}")
            print("; ".join(line), "GB/s", flush=True)


if __name__ == "__main__":
    main()
