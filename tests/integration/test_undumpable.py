"""The processes of a run that hold keys are undumpable, whoever has started them."""

import subprocess
import sys

import pytest

ASK = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"

PROCESSES = {
    "command": f"""
import atexit, sys
from outrider.cli import main
atexit.register(lambda: exec({ASK!r}))
sys.argv = ["outrider", "--version"]
main()
""",
    "worker process": f"""
import sys
import outrider.runner.process as process
process.WorkerEnd = lambda _: exec({ASK!r}) or exit()
sys.argv = ["process", "3"]
process.main()
""",
    "worker on a cluster": f"""
from outrider.cluster.rollouts.worker import RolloutWorker
RolloutWorker(None, "/none")
{ASK}
""",
    "pool on a cluster": f"""
from outrider.cluster.rollouts.node_pool import NodePool
NodePool(None, "/none")
{ASK}
""",
    "machine that is served": f"""
import outrider.pool.osworld_protocol.__main__ as served
async def serve(*_): exec({ASK!r})
served._serve = serve
served.main(["--port", "0"])
""",
}


@pytest.mark.parametrize("kind", PROCESSES)
def test_a_process_with_keys_is_undumpable(kind):
    command = [sys.executable, "-c", PROCESSES[kind]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split()[-1:] == ["0"], done.stderr


def test_what_it_starts_is_not():
    code = f"from outrider.core.undumpable import become_undumpable as b; import subprocess, sys; b()\n{ASK}\n"
    code += f"sys.stdout.flush(); subprocess.run([sys.executable, '-c', {ASK!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "1"]
