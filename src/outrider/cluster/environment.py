"""Environment variables of workers: those that place them in their group, and those their driver has changed."""

import os
from collections.abc import Mapping
from pathlib import Path

from outrider.cluster.address import WorkerAddress
from outrider.cluster.placement.place import Placement

_AT_IMPORT = dict(os.environ)

_OF_ONE_PROCESS = frozenset(
    {"PWD", "OLDPWD", "SHLVL", "_"}  # of a shell
    | {"COLUMNS", "LINES", "TERM", "TERMCAP", "TMUX", "TMUX_PANE", "STY", "WINDOWID", "SSH_TTY"}  # of a terminal
    | {"HOSTNAME", "HOST"}  # of a machine
    | {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}  # set by the engine
    | {"ASCEND_RT_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
)
_PREFIXES_OF_ONE_PROCESS = ("RAY_", "PYTEST_")


def worker_environment(
    address: WorkerAddress, place: Placement, *, world_size: int, master_addr: str, master_port: int
) -> dict[str, str]:
    """What tells a worker who it is in its group, under the names that `torch.distributed` reads, and its own name.

    `NODE_RANK` counts the nodes that the group uses, as `torchrun` does.
    """
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "NODE_RANK": str(place.node_rank),
        "GROUP_NAME": address.group_name,
        "WORKER_NAME": address.get_name(),
    }


def variables_at_start(source: Path = Path("/proc/self/environ")) -> dict[str, str]:
    """The environment this process was started with, where the system tells; else that of this module's import.

    A process that writes its title over its arguments, as Ray's workers do, may have lost the original.
    """
    try:
        entries = [entry for entry in source.read_bytes().split(b"\0") if entry]
    except OSError:
        return dict(_AT_IMPORT)
    if not entries or any(b"=" not in entry for entry in entries):
        return dict(_AT_IMPORT)
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def changed_variables(now: Mapping[str, str], at_start: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program has set or changed since its start, for its workers to have too.

    Left out are those it removed, and those that belong to one process, terminal or machine, or to Ray.
    """
    return {
        name: value
        for name, value in now.items()
        if at_start.get(name) != value and name not in _OF_ONE_PROCESS and not name.startswith(_PREFIXES_OF_ONE_PROCESS)
    }
