"""Roll out an agent of your own on all nodes of a Ray cluster.

On the cluster, as a job; the folder goes along, so that each node finds this module:

    ray job submit --address http://HEAD:8265 --working-dir examples/cluster -- \
        python squares.py --store postgresql://USER@HOST/DATABASE --rollouts 1000

On this machine, on a Ray that is started for it and a store in a file:

    cd examples/cluster && python squares.py

The same without a line of Python: `outrider enqueue`, then `outrider work --ray --agent squares:agent --until-done`.

Extra: `ray`.
"""

import argparse
import asyncio

from outrider import Context, RolloutRequest, open_store
from outrider.cluster.rollouts.launcher import cluster_launcher
from outrider.cluster.rollouts.opening import open_cluster
from outrider.runner import RunnerConfig
from outrider.runner.kit import EpisodeSpec
from outrider.runner.supervisor import Scale, Supervisor
from outrider.runner.worker import WorkerSpec
from outrider.store import StoreUrl

PER_NODE = 2
"""Workers on each node."""


async def agent(task: dict[str, int], ctx: Context) -> float:
    """Where a real agent would ask a model, this one computes."""
    await asyncio.sleep(0.01)
    answer = task["number"] ** 2
    ctx.log("answered", answer=answer)
    return 1.0 if answer % 2 == task["number"] % 2 else 0.0


async def main(store_url: StoreUrl, n_rollouts: int) -> None:
    requests = [RolloutRequest(input={"number": number}) for number in range(n_rollouts)]
    with open_cluster("", store_url) as cluster:
        assert cluster is not None
        async with open_store(store_url) as store:
            ids = [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)]
            config = RunnerConfig(max_env_num_per_worker=8)
            supervisor = Supervisor(
                store,
                WorkerSpec(store_url=store_url, episodes=EpisodeSpec(agent="squares:agent"), config=config),
                scale=Scale(minimum=1, maximum=PER_NODE * cluster.num_nodes),
                launcher=cluster_launcher(cluster, lambda _: None),
                on_line=print,
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(supervisor.run())
                ended = await store.wait_for_rollouts(ids, timeout=3600)
                supervisor.drain()
    workers = {rollout.worker_id for rollout in ended}
    print(f"{len(ended)} rollouts ended on {len(workers)} workers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="sqlite:///squares.db")
    parser.add_argument("--rollouts", type=int, default=200)
    given = parser.parse_args()
    asyncio.run(main(StoreUrl(given.store), given.rollouts))
