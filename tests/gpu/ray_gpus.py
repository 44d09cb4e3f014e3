"""Workers on the GPU of a Ray node, checked and measured: `PYTHONPATH=src python tests/gpu/ray_gpus.py`."""

import os
import statistics
import time
from typing import Any

import ray
import torch

from outrider.cluster import Cluster, PackedPlacementStrategy, Worker
from outrider.core.errors import InvalidInput, WorkerDied

MB = 1 << 20
SECONDS = 60.0
N_ROUNDS = 20
GROUP = "pair"


class OnGpu(Worker):
    """Says what it was given, and sends tensors to and fro."""

    def seen(self) -> dict[str, Any]:
        return {
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "ray": [int(number) for number in ray.get_gpu_ids()],
            "info": list(self.worker_info.available_gpus),
            "torch": torch.cuda.device_count(),
            "sum": float(torch.ones(1000, device="cuda").sum()),
        }

    def pid(self) -> int:
        return os.getpid()

    def send_all(self, sizes: list[int]) -> list[float]:
        """Seconds of each round trip, for each size the median."""
        found = []
        for n_bytes in sizes:
            tensor = torch.arange(n_bytes // 4, dtype=torch.int32, device="cuda")
            back = torch.empty_like(tensor)
            rounds = []
            for _ in range(N_ROUNDS):
                began = time.perf_counter()
                self.send_tensor(tensor, GROUP, 1, timeout=SECONDS)
                self.recv_tensor(back, GROUP, 1, timeout=SECONDS)
                torch.cuda.synchronize()
                rounds.append(time.perf_counter() - began)
            assert torch.equal(back, tensor + 1), n_bytes
            found.append(statistics.median(rounds))
        self.send({"weights": torch.full((MB,), 3.0, device="cuda"), "step": 7}, GROUP, 1, timeout=SECONDS)
        return found

    def return_all(self, sizes: list[int]) -> tuple[str, float, int]:
        for n_bytes in sizes:
            tensor = torch.empty(n_bytes // 4, dtype=torch.int32, device="cuda")
            for _ in range(N_ROUNDS):
                self.recv_tensor(tensor, GROUP, 0, timeout=SECONDS)
                self.send_tensor(tensor + 1, GROUP, 0, timeout=SECONDS)
        found = self.recv(GROUP, 0, timeout=SECONDS)
        return str(found["weights"].device), float(found["weights"].sum()), found["step"]

    def wait_for(self, rank: int) -> None:
        self.recv_tensor(torch.empty(MB, device="cuda"), GROUP, rank)


@ray.remote(num_gpus=0.5)
class RaysOwn:
    """The same by Ray's tensor transport, as far as it goes."""

    @ray.method(tensor_transport="cuda_ipc")
    def make(self, n_bytes: int) -> Any:
        return torch.arange(n_bytes // 4, dtype=torch.int32, device="cuda")

    def take(self, tensor: Any) -> int:
        return int(tensor[-1])


def check_group(cluster: Cluster) -> None:
    one = OnGpu.create_group().launch(cluster, PackedPlacementStrategy(), name="one")
    print("one worker on the GPU:", one.seen().wait(SECONDS))
    try:
        OnGpu.create_group().launch(cluster, PackedPlacementStrategy(), name="two")
    except InvalidInput as exc:
        print("a second is refused:", str(exc).splitlines()[0])
    one.close()


def check_mail(cluster: Cluster) -> None:
    pair = OnGpu.create_group().launch(cluster, PackedPlacementStrategy(num_gpus_per_process=0.5), name=GROUP)
    print("two workers on it:", pair.seen().wait(SECONDS))
    sizes = [4 * MB, 64 * MB, 1024 * MB]
    returned = pair.execute_on(1).return_all(sizes)
    times = pair.execute_on(0).send_all(sizes).wait(3 * SECONDS)[0]
    for n_bytes, seconds in zip(sizes, times, strict=True):
        print(f"{n_bytes // MB} MB: {2 * n_bytes / seconds / 1e9:.1f} GB/s")
    print("objects:", returned.wait(SECONDS))
    waiting = pair.execute_on(0).wait_for(1)
    os.kill(pair.execute_on(1).pid().wait(SECONDS)[0], 9)
    began = time.perf_counter()
    try:
        waiting.wait(SECONDS)
    except WorkerDied as exc:
        print(f"killed: {exc} after {time.perf_counter() - began:.3f} s")


def measure_ray() -> None:
    left, right = RaysOwn.remote(), RaysOwn.remote()
    for n_bytes in (4 * MB, 64 * MB, 1024 * MB):
        rounds = []
        for _ in range(N_ROUNDS):
            made = left.make.remote(n_bytes)
            ray.wait([made])
            began = time.perf_counter()
            ray.get(right.take.remote(made))
            rounds.append(time.perf_counter() - began)
        print(f"Ray's own, {n_bytes // MB} MB: {statistics.median(rounds) * 1e3:.2f} ms for a reference to it")


if __name__ == "__main__":
    with Cluster() as cluster:
        check_group(cluster)
        check_mail(cluster)
    ray.init(num_gpus=1)
    measure_ray()
