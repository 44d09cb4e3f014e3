"""The rag environments: questions that only a corpus can answer, and a search over it."""

import asyncio
import importlib.util
import logging
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from outrider.core.errors import EnvError, InvalidInput, ToolRefusal
from outrider.core.extras import install_command
from outrider.core.task import Task
from outrider.env.protocol import Environment, Environments
from outrider.env.question import QuestionEnvironment
from outrider.env.rag.config import RagConfig
from outrider.env.rag.corpus import Passage
from outrider.env.rag.opening import index_folders, open_retriever
from outrider.env.rag.retriever import Retriever
from outrider.env.scoring import FORM_FIELDS, scorer_by_form
from outrider.env.tools import Tool, tool

_log = logging.getLogger(__name__)

BUNDLED_CORPUS = Path(__file__).parent.parent / "bundled" / "corpus"

INSTRUCTIONS = (
    "Answer the question from the documents that the search tool finds; what you know otherwise is of no use here. "
    "Search as often as you need, with the words that the documents are likely to use. "
    "Then reply with the answer alone, as short as possible, in the form\nAnswer: the answer"
)

LONGEST_QUERY = 2_000


class SearchArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What the search is asked."""

    query: Annotated[str, Meta(description="The words to look for")]
    k: Annotated[int, Meta(ge=1, description="How many passages to give")] | None = None


class RagEnvironments(Environments):
    """Opens the corpus when it is first searched; the episodes of a worker share it."""

    Config = RagConfig
    task_fields = FORM_FIELDS

    def __init__(self, config: RagConfig) -> None:
        self._config = config
        self._corpus = BUNDLED_CORPUS if config.corpus is None else Path(config.corpus)
        self._scorer = scorer_by_form(config.scorer, config.scorer_config, usual="exact_match")
        self._tools = (self._search_tool(),)
        self._instructions = INSTRUCTIONS if config.instructions is None else config.instructions
        self._opening = asyncio.Lock()
        self._opened: Retriever | None = None

    def make(self, task: Task) -> Environment:
        """Refuses a task whose answers could not be scored, before a model works on it."""
        self._scorer.check_task(task)
        return QuestionEnvironment(task, instructions=self._instructions, tools=self._tools, scorer=self._scorer)

    async def check(self) -> None:
        """Also makes the index, so that workers find it, and asks for a first vector."""
        if importlib.util.find_spec("bm25s") is None or importlib.util.find_spec("numpy") is None:
            raise InvalidInput(f"searching a corpus needs libraries: {install_command('rag')}")
        await self._scorer.check()
        if self._config.embeddings is not None:
            from outrider.env.rag.embeddings import server_of  # noqa: PLC0415 it brings the HTTP client along
            from outrider.policy.opening import exposed_secrets  # noqa: PLC0415

            for warning in exposed_secrets(server_of(self._config.embeddings)):
                _log.warning("%s", warning)
        try:
            await (await self._retriever()).search("check", 1)
        except EnvError as exc:
            raise InvalidInput(str(exc)) from exc

    async def close(self) -> None:
        async with self._opening:
            retriever, self._opened = self._opened, None
        try:
            if retriever is not None:
                await retriever.close()
        finally:
            await self._scorer.close()

    async def _retriever(self) -> Retriever:
        async with self._opening:
            if self._opened is None:
                folders = index_folders(self._corpus, self._config.index_dir, is_bundled=self._corpus == BUNDLED_CORPUS)
                self._opened = await open_retriever(
                    self._corpus,
                    passage_words=self._config.passage_words,
                    folders=folders,
                    embeddings=self._config.embeddings,
                )
            return self._opened

    def _search_tool(self) -> Tool:
        description = (
            f"Searches the documents; gives the best passages with title and id, at most {self._config.top_k}."
        )
        return tool("search", description, SearchArguments, self._search)

    async def _search(self, arguments: SearchArguments) -> str:
        query = arguments.query.strip()
        if not query:
            raise ToolRefusal("the query is empty; say what to look for")
        if len(query) > LONGEST_QUERY:
            raise ToolRefusal(f"the query has {len(query)} characters; {LONGEST_QUERY} are allowed")
        k = min(arguments.k or self._config.top_k, self._config.top_k)
        passages = await (await self._retriever()).search(query, k)
        if not passages:
            return "no passage matches; try other words"
        return "\n\n".join(_shown(number, passage) for number, passage in enumerate(passages, start=1))


def _shown(number: int, passage: Passage) -> str:
    return f"[{number}] {passage.title or 'untitled'} (id: {passage.id})\n{passage.text}"
