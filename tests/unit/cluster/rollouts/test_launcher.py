"""What a launcher hands on."""

from outrider.agent.mcp import McpServer
from outrider.cluster.rollouts.launcher import forwarded
from outrider.policy.spec import PolicySpec
from outrider.runner.kit import EnvironmentSpec, EpisodeSpec


def test_workers_get_the_variables_that_the_run_names_and_no_others():
    here = dict.fromkeys(
        ("OPENAI_BASE_URL", "OWN_KEY", "JUDGE_KEY", "SEARCH_KEY", "TOKEN", "PATH", "AWS_SECRET", "VECTORS"), "x"
    )
    episodes = EpisodeSpec(
        policy=PolicySpec(model="a", api_key_env=("OWN_KEY",)),
        policies={"judge": PolicySpec(model="b", api_key_env=("JUDGE_KEY",))},
        environments={"rag": EnvironmentSpec(name="rag", config={"embeddings": {"api_key_env": "VECTORS"}})},
        mcp=(
            McpServer(name="search", command="search", variables=("SEARCH_KEY", "NOT_SET")),
            McpServer(name="there", url="http://there", bearer_variable="TOKEN"),
        ),
    )
    assert forwarded(here, episodes).keys() == {
        "OPENAI_BASE_URL",
        "OWN_KEY",
        "JUDGE_KEY",
        "SEARCH_KEY",
        "TOKEN",
        "VECTORS",
    }
    assert forwarded(here, EpisodeSpec(agent="module:function")).keys() == {"OPENAI_BASE_URL"}
