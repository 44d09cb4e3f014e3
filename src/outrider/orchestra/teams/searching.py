"""Searching together: who says what to search for, who answers from what was found, and how the team looks it up."""

from outrider.core.errors import AgentError
from outrider.orchestra.agent import PROGRAM, Agent
from outrider.orchestra.caller import Reply
from outrider.orchestra.team import Team
from outrider.orchestra.verdict import Tag

TOOL = "search"

SEARCH = Agent(
    name="search",
    parse=Tag("search"),
    prompt="""\
<question>{question}</question>

<team>{context}</team>

You are the searcher. Say what to search for next, in words that the documents are likely to use and that were not
searched for before, as <search>words</search>.""",
)

ANSWER = Agent(
    name="answer",
    reads=(SEARCH.name, PROGRAM),
    prompt="""\
<question>{question}</question>

<team>{context}</team>

You answer the question from what the search has found. Reply with the answer alone, as short as possible, in the form
Answer: the answer""",
)


async def look_up(team: Team, asked: Reply) -> None:
    """Search for what was asked, or else for the question; what is found is put into the context."""
    if not any(tool.name == TOOL for tool in team.ctx.env.tools):
        raise AgentError(f"the team searches, and its environment has no tool {TOOL!r}; rag has one", stage="team.use")
    found = await team.use(TOOL, query=asked.value or team.task.question)
    team.note(found)
