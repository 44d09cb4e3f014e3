"""Leases of workers that are gone."""

import os
import socket
import subprocess
import sys

from outrider.cli.leases import take_leases_of_the_dead
from outrider.core.status import RolloutStatus
from outrider.store import open_store


async def test_leases_of_processes_that_have_ended_go_back_at_once_and_others_stay():
    host = socket.gethostname()
    with subprocess.Popen([sys.executable, "-c", ""]) as unasked, subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        os.waitid(os.P_PID, unasked.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
        workers = {
            "ended": f"0@{host}:{ended.pid}",
            "unasked": f"1@{host}:{unasked.pid}",
            "beside": f"0@{host}:{ended.pid}/crew-1",
            "alive": f"2@{host}:{os.getpid()}",
            "elsewhere": f"3@another-{host}:{ended.pid}",
            "named": "by hand",
        }
        async with open_store("memory://") as store:
            for name, worker_id in workers.items():
                await store.start_rollout(None, worker_id=worker_id, rollout_id=name)
            await take_leases_of_the_dead(store)
            queued = await store.query_rollouts(status=RolloutStatus.REQUEUING)
    assert {rollout.rollout_id for rollout in queued} == {"ended", "unasked", "beside"}
