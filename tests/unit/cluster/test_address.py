"""Addresses: written and read back, up and down the tree, ordered by number."""

import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cluster.address import WorkerAddress
from outrider.core.errors import InvalidInput

names = st.text(st.characters(exclude_characters=":"), min_size=1).filter(str.strip)
paths = st.lists(st.integers(0, 2**31 - 1), max_size=5)


class Envelope(msgspec.Struct, frozen=True):
    to: WorkerAddress


@given(names, paths)
def test_an_address_is_read_back_from_its_name_from_msgpack_and_from_a_pickle(name, path):
    address = WorkerAddress(name, path)
    assert WorkerAddress.from_name(address.get_name()) == address
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Envelope(address)), type=Envelope).to == address
    assert pickle.loads(pickle.dumps(address)) == address


@given(names, paths, st.integers(0, 100))
def test_a_child_knows_its_parent_and_its_rank(name, path, rank):
    parent = WorkerAddress(name, path)
    child = parent.get_child_address(rank)
    assert child.get_parent_address() == parent
    assert child.rank == rank
    assert child.rank_path == (*path, rank)
    assert child.get_parent_rank() == (path[-1] if path else 0)
    assert child.group_name == parent.get_name()
    assert WorkerAddress.child_of(parent.get_name(), rank) == child


def test_a_root_group_has_no_parent():
    group = WorkerAddress("Actor")
    assert group.get_parent_address() is None
    assert (group.get_name(), group.rank, group.get_parent_rank()) == ("Actor", 0, 0)
    assert group.group_name == "Actor"


def test_a_list_a_tuple_and_a_lone_rank_make_the_same_address():
    assert WorkerAddress("Actor", [0, 1]) == WorkerAddress("Actor", (0, 1))
    assert len({WorkerAddress("Actor", 3), WorkerAddress("Actor", [3]), WorkerAddress("Actor", (3,))}) == 1


def test_ranks_of_another_integer_type_become_plain_integers():
    for ranks in (True, np.int64(1), np.arange(1, 2)):
        assert WorkerAddress("A", ranks).get_name() == "A:1"
        assert type(WorkerAddress("A", ranks).rank) is int


def test_addresses_sort_by_rank_as_numbers():
    unsorted = [WorkerAddress("B", 0), WorkerAddress("A", 10), WorkerAddress("A", (9, 1)), WorkerAddress("A", 9)]
    assert list(map(str, sorted(unsorted))) == ["A:9", "A:9:1", "A:10", "B:0"]


def test_an_address_cannot_be_changed():
    with pytest.raises(AttributeError):
        WorkerAddress("A").ranks = (1,)


def test_a_path_of_ranks_leads_to_a_grandchild():
    assert WorkerAddress.child_of("Server:1", [0, 2]).get_name() == "Server:1:0:2"


@pytest.mark.parametrize(
    ("root", "ranks", "message"),
    [
        ("", (), "not empty"),
        ("  ", (), "not empty"),
        ("a:b", (), "may not hold ':'"),
        ("a", -1, "not -1"),
        ("a", [0, -2], "not -2"),
        ("a", 2**31, "at most"),
        ("a", "0", "neither a rank"),
        ("a", 1.5, "neither a rank"),
    ],
)
def test_what_is_no_address_is_refused(root, ranks, message):
    with pytest.raises(InvalidInput, match=message):
        WorkerAddress(root, ranks)


@pytest.mark.parametrize("name", ["A:", "A:x", "A:-1", "A:+1", "A:1 ", "A::1", "A:1.0", "A:²", "A:" + "9" * 5000])
def test_a_name_with_a_piece_that_is_no_rank_is_refused_and_the_piece_is_shown(name):
    with pytest.raises(InvalidInput, match="is not a rank"):
        WorkerAddress.from_name(name)


def test_a_message_with_a_bad_address_is_refused_when_it_is_read():
    with pytest.raises(InvalidInput, match="may not hold"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"to": {"root_group_name": "a:b"}}), type=Envelope)
