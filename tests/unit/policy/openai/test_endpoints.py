"""Which of several servers a conversation goes to."""

import pytest
from yarl import URL

from outrider.policy.openai.endpoints import Endpoint, Endpoints


@pytest.fixture
def servers(clock):
    return [Endpoint(URL(f"http://server{number}/v1"), 100, clock) for number in range(3)]


async def test_new_sessions_go_to_the_least_loaded_server_and_stay_there(servers):
    endpoints = Endpoints(servers)
    async with servers[0].gate.permit(), servers[1].gate.permit():
        first = endpoints.choose("a")
        assert first is servers[2]
    async with servers[2].gate.permit():
        assert endpoints.choose("a") is first
        assert endpoints.choose("b") is not first


def test_sessions_that_come_one_after_the_other_are_spread(servers):
    endpoints = Endpoints(servers)
    chosen = [endpoints.choose(str(number)) for number in range(6)]
    assert {server: chosen.count(server) for server in servers} == dict.fromkeys(servers, 2)


def test_a_session_moves_when_its_server_is_gone_and_the_others_stay(servers):
    endpoints = Endpoints(servers)
    homes = {name: endpoints.choose(name) for name in "abc"}
    homes["a"].failed(is_gone=True)
    assert endpoints.choose("a") is not homes["a"]
    assert endpoints.choose("b") is homes["b"]
    assert endpoints.choose("c") is homes["c"]


def test_it_takes_several_faults_in_a_row_to_fail_a_server_that_can_be_reached(servers):
    server = servers[0]
    for _ in range(2):
        server.failed(is_gone=False)
    server.answered()
    for _ in range(2):
        server.failed(is_gone=False)
    assert not server.has_failed
    server.failed(is_gone=False)
    assert server.has_failed


async def test_a_failed_server_gets_one_call_after_a_while_and_is_back_once_it_answers(servers, clock):
    endpoints = Endpoints(servers[:2])
    servers[0].failed(is_gone=True)
    await clock.advance(4.9)
    assert {endpoints.choose(str(number)) for number in range(4)} == {servers[1]}
    await clock.advance(0.1)
    assert endpoints.choose("new") is servers[0]
    async with servers[0].gate.permit():
        assert endpoints.choose("another") is servers[1]
    servers[0].answered()
    assert endpoints.choose("a third") is servers[0]


async def test_a_server_that_keeps_failing_is_left_alone_for_longer_and_longer(servers, clock):
    waits = []
    for _ in range(8):
        servers[0].failed(is_gone=True)
        servers[0].failed(is_gone=True)  # others that were under way
        waits.append(servers[0].rests_until - clock.monotonic())
        await clock.advance(waits[-1])
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 120.0, 120.0]


def test_if_all_have_failed_the_one_that_is_due_first_is_tried(servers, clock):
    endpoints = Endpoints(servers)
    for server in servers:
        server.failed(is_gone=True)
    servers[1]._rests_until -= 1
    assert endpoints.choose("a") is servers[1]


def test_calls_without_a_session_are_not_remembered(servers):
    endpoints = Endpoints(servers)
    endpoints.choose("")
    assert endpoints.n_sessions == 0


def test_sessions_that_were_not_heard_of_for_long_are_forgotten(servers):
    endpoints = Endpoints(servers, max_sessions=10)
    for number in range(100):
        endpoints.choose(str(number))
        endpoints.choose("kept")
    assert endpoints.n_sessions == 10
    assert sum(server.n_sessions for server in servers) == 10
    assert "kept" in endpoints._sessions


def test_an_address_keeps_the_query_of_its_base_url(clock):
    endpoint = Endpoint(URL("http://host/openai?api-version=7"), 1, clock)
    assert str(endpoint.chat_url) == "http://host/openai/chat/completions?api-version=7"
    assert str(endpoint.url("models")) == "http://host/openai/models?api-version=7"
