"""Which variables the episodes of a worker need, and what its record holds of them."""

from outrider.agent.mcp import McpServer
from outrider.core import wire
from outrider.policy.spec import PolicySpec
from outrider.runner.keys import key_names, needed_names
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec
from outrider.runner.worker import WorkerSpec
from outrider.store import StoreUrl

EPISODES = EpisodeSpec(
    policy=PolicySpec(model="a", api_key_env=("OWN", "none"), headers={"X-Api-Key": "env:HEADER", "X-Title": "b"}),
    policies={"judge": PolicySpec(model="b", api_key_env=("JUDGE",), extra_body={"a": [{"b": "env:BODY"}]})},
    environments={
        "rag": EnvironmentSpec(name="rag", config={"embeddings": {"api_key_env": "VECTORS"}}),
        "math": EnvironmentSpec(name="math", config={"scorer": {"api_key_env": ["SCORER"], "headers": ["env:DEEP"]}}),
    },
    mcp=(
        McpServer(name="search", command="search", variables=("FOLDER", "TOOL_TOKEN")),
        McpServer(name="there", url="http://there", bearer_variable="BEARER"),
    ),
)
KEYS = {"OWN", "HEADER", "JUDGE", "BODY", "VECTORS", "SCORER", "DEEP", "BEARER"}


def test_what_settings_name_as_keys_is_found_however_deep():
    assert key_names(EPISODES) == KEYS
    assert needed_names(EPISODES) == KEYS | {"FOLDER", "TOOL_TOKEN", "OPENAI_API_KEY", "PGPASSWORD"}
    assert key_names(EpisodeSpec(agent="my:agent")) == set()
    assert needed_names(EpisodeSpec(agent="my:agent")) == {"PGPASSWORD"}


def test_the_record_of_a_worker_holds_the_keys_that_it_needs_and_the_names_of_others(monkeypatch):
    for name in ("OWN", "FOLDER", "TOOL_TOKEN", "OTHER_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, f"value of {name}")
    spec = WorkerSpec(store_url=StoreUrl("memory://"), episodes=EPISODES, pass_env=("HF_TOKEN",)).with_keys()
    over_there = wire.from_record(wire.to_private_record(spec), WorkerSpec).withheld
    wanted = {"OWN": "value of OWN", "TOOL_TOKEN": "value of TOOL_TOKEN", "OTHER_TOKEN": ""}
    assert {name: over_there[name].reveal() for name in wanted} == wanted
    assert not {"FOLDER", "HF_TOKEN"} & over_there.keys()
    assert b"value of OWN" not in wire.to_record(spec)
