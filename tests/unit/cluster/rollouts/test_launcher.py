"""What a launcher hands on."""

from outrider.agent.mcp import McpServer
from outrider.cluster.rollouts.launcher import forwarded
from outrider.core.secret import Secret
from outrider.runner.kit import EpisodeSpec
from outrider.runner.worker import WorkerSpec
from outrider.store import StoreUrl


def test_workers_get_what_models_and_tools_need_and_what_is_passed_but_no_keys():
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "TOOL_FOLDER", "TOOL_TOKEN", "PATH", "HF_TOKEN", "OUTRIDER_HISTORY")
    here = dict.fromkeys(names, "x")
    tools = McpServer(name="search", command="search", variables=("TOOL_FOLDER", "TOOL_TOKEN", "NOT_SET"))
    spec = WorkerSpec(
        store_url=StoreUrl("memory://"),
        episodes=EpisodeSpec(mcp=(tools,)),
        pass_env=("HF_TOKEN",),
        withheld=dict.fromkeys(("OPENAI_API_KEY", "TOOL_TOKEN"), Secret("x")),
    )
    assert forwarded(here, spec).keys() == {"OPENAI_BASE_URL", "OUTRIDER_HISTORY", "TOOL_FOLDER", "HF_TOKEN"}
