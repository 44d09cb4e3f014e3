"""The directory: who is asked for is found, waited for while it is being started, or known to be gone."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from outrider.cluster.address import WorkerAddress
from outrider.cluster.directory import Directory, DirectoryClient
from outrider.cluster.info import WorkerInfo
from outrider.cluster.post import Endpoint, Post
from outrider.core.errors import ClusterError, InvalidInput, UnknownWorker, WorkerDied
from posting import KEY


def worker(name: str) -> WorkerInfo:
    address = WorkerAddress.from_name(name)
    return WorkerInfo(
        address=address,
        rank=address.rank,
        node_id=0,
        gpu_id=-1,
        node_ip="127.0.0.1",
        available_gpus=(),
        group_world_size=2,
        pid=1,
    )


class Someone:
    """A process of the cluster, as far as the directory can tell."""

    def __init__(self, name: str, directory: Endpoint) -> None:
        self.post = Post(name, KEY)
        self.directory = DirectoryClient(self.post, directory)

    def join(self) -> None:
        self.post.run(self.directory.join(worker(self.post.name)), timeout=30)


@pytest.fixture
def driver() -> Iterator[Someone]:
    post = Post("driver", KEY)
    Directory(post)
    someone = Someone("asker", post.endpoint)
    yield someone
    someone.post.close()
    post.close()


@pytest.fixture
def team(driver: Someone) -> Iterator[list[Someone]]:
    """A declared group of two, none of whom has come."""
    driver.post.run(driver.directory.declare("Team", 2), timeout=30)
    members = [Someone(f"Team:{rank}", driver.directory.endpoint) for rank in range(2)]
    yield members
    for member in members:
        member.post.close()


def find(driver: Someone, name: str, patience: float = 0.2):
    return driver.directory.find(WorkerAddress.from_name(name), patience=patience)


def test_a_worker_that_is_being_started_is_waited_for(driver, team):
    finding = driver.post.submit(find(driver, "Team:1"))
    time.sleep(0.3)
    assert not finding.done()
    team[1].join()
    assert finding.result(30) == team[1].post.endpoint
    infos = driver.post.run(driver.directory.group("Team"), timeout=30)
    assert [None if info is None else info.address.get_name() for info in infos] == [None, "Team:1"]


def test_a_group_that_is_declared_in_time_is_found(driver):
    finding = driver.post.submit(find(driver, "Late:0", patience=5))
    driver.post.run(driver.directory.declare("Late", 1), timeout=30)
    late = Someone("Late:0", driver.directory.endpoint)
    late.join()
    assert finding.result(30) == late.post.endpoint
    late.post.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Taem:0", "no group 'Taem' was started; did you mean 'Team'"),
        ("Nobody:0", "no group 'Nobody' was started; there are: Team"),
        ("Team:7", "Team has workers 0 to 1, and no 7"),
    ],
)
def test_a_name_that_nobody_has_is_told_from_one_that_is_late(driver, team, name, message):
    with pytest.raises(UnknownWorker, match=message):
        driver.post.run(find(driver, name), timeout=30)


def test_the_death_of_a_worker_is_told_to_all_who_ask(driver, team):
    team[0].join()
    address = WorkerAddress.from_name("Team:0")
    waiting = [driver.post.submit(driver.directory.until_dead(address)) for _ in range(500)]
    assert driver.post.run(find(driver, "Team:0"), timeout=30) == team[0].post.endpoint
    team[0].post.close()
    assert {future.result(30) for future in waiting} == {"its process ended or its node is gone"}
    with pytest.raises(WorkerDied, match="worker Team:0 is gone: its process ended"):
        driver.post.run(find(driver, "Team:0"), timeout=30)


def test_a_worker_that_never_came_is_gone_once_its_starter_says_so(driver, team):
    finding = driver.post.submit(find(driver, "Team:0"))
    driver.post.run(driver.directory.gone(WorkerAddress.from_name("Team:0"), "its __init__ raised"), timeout=30)
    with pytest.raises(WorkerDied, match="its __init__ raised"):
        finding.result(30)


def test_a_worker_that_is_started_again_is_waited_for_again(driver, team):
    team[0].join()
    team[0].post.close()
    address = WorkerAddress.from_name("Team:0")
    driver.post.run(driver.directory.until_dead(address), timeout=30)
    driver.post.run(driver.directory.expect(address), timeout=30)
    finding = driver.post.submit(find(driver, "Team:0"))
    again = Someone("Team:0", driver.directory.endpoint)
    again.join()
    assert finding.result(30) == again.post.endpoint
    again.post.close()


def test_a_name_stands_for_one_group_until_that_is_closed(driver, team):
    with pytest.raises(InvalidInput, match="there is a group 'Team' already"):
        driver.post.run(driver.directory.declare("Team", 3), timeout=30)
    team[0].join()
    dying = driver.post.submit(driver.directory.until_dead(WorkerAddress.from_name("Team:0")))
    driver.post.run(find(driver, "Team:0"), timeout=30)
    driver.post.run(driver.directory.dismiss("Team"), timeout=30)
    assert dying.result(30) == "its group was closed"
    with pytest.raises(WorkerDied, match="its group was closed"):
        driver.post.run(find(driver, "Team:0"), timeout=30)
    driver.post.run(driver.directory.declare("Team", 3), timeout=30)


def test_two_workers_cannot_have_one_address(driver, team):
    team[0].join()
    twin = Someone("Team:0", driver.directory.endpoint)
    with pytest.raises(InvalidInput, match="there is a worker Team:0 already"):
        twin.join()
    twin.post.close()


async def test_a_cluster_whose_program_is_gone_says_so():
    post = Post("driver", KEY)
    Directory(post)
    someone = Someone("asker", post.endpoint)
    asking = someone.post.submit(someone.directory.find(WorkerAddress.from_name("Team:0"), patience=30))
    await asyncio.to_thread(someone.post.run, someone.directory.declare("Other", 1), 5)
    post.close()
    with pytest.raises(ClusterError, match="the program that started this cluster is gone"):
        asking.result(30)
    someone.post.close()
