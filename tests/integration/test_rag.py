"""Questions over a corpus with its real parts: files, an index on disk, other processes, a server of vectors."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from leaks import no_leaks
from outrider.core.chat import Message, ToolCall, assistant
from outrider.core.errors import EnvError, InvalidInput
from outrider.core.task import Task
from outrider.env import Score
from outrider.env.rag import EmbeddingsConfig, RagConfig, RagEnvironments
from outrider.env.rag.corpus import Document, Passage, passages_of
from outrider.env.rag.index import write_index
from outrider.env.rag.retriever import QUICK_PASSAGES, fused
from outrider.env.registry import bundled_tasks, environments_of
from outrider.policy import ChatPolicy
from outrider.policy.scripted.policy import ScriptedPolicy, options_of
from outrider.policy.scripted.rag import RagScript
from outrider.testing import eventually
from outrider.testing.environment import check_environment

TASK = Task(task_id="t", question="Who?", answer="Ann")


@pytest.fixture(autouse=True, scope="module")
def libraries_at_work(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first index of a process starts a thread that its library keeps for good."""
    write_index(tmp_path_factory.mktemp("first"), [Passage(id="1", title="", text="word")])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three documents, of the three kinds that a folder may hold."""
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "mill.md").write_text("# The Old Mill\n\nThe mill was built by Ann Lee.\n")
    (folder / "deep" / "ferry_boat.txt").write_text("The ferry crosses at noon.")
    (folder / "more.jsonl").write_text('{"_id": 7, "name": "Bees", "contents": "Bees make honey from clover."}\n\n')
    (folder / ".hidden.md").write_text("The mill was built by nobody.")
    (folder / "picture.png").write_bytes(b"\xff\xd8 mill")
    return folder


@asynccontextmanager
async def opened(corpus: Path, **config: object) -> AsyncIterator[RagEnvironments]:
    environments = RagEnvironments(RagConfig(corpus=str(corpus), **config))
    try:
        yield environments
    finally:
        await environments.close()


async def searched(environments: RagEnvironments, query: str, **more: object) -> str:
    """What the search tool answers."""
    env = environments.make(TASK)
    arguments = msgspec.json.encode({"query": query, **more}).decode()
    step = await env.step(assistant("", (ToolCall(id="1", name="search", arguments=arguments),)))
    return step.observation[0].content


def index_of(corpus: Path) -> Path:
    [index] = [folder for folder in (corpus.parent / ".outrider-index").iterdir() if folder.is_dir()]
    return index


async def play(environments: RagEnvironments, task: Task, policy: ChatPolicy) -> Score:
    env = environments.make(task)
    messages: list[Message] = [*await env.reset(1)]
    for _ in range(8):
        completion = await policy.complete(messages, tools=env.tools, session=task.task_id)
        step = await env.step(completion.message)
        messages += [completion.message, *step.observation]
        if step.terminated:
            break
    score = await env.score()
    await env.close()
    assert score is not None
    return score


@pytest.mark.parametrize(("model", "low", "high"), [("builtin:solver", 1.0, 1.0), ("builtin:random", 0.0, 0.05)])
async def test_the_bundled_questions_are_answered_by_one_who_searches_and_not_by_one_who_guesses(
    model: str, low: float, high: float, tmp_path: Path
):
    policy = ScriptedPolicy({"rag": RagScript()}, name=model, options=options_of(model))
    async with no_leaks():
        environments = environments_of("rag", {"index_dir": str(tmp_path)})
        await environments.check()
        tasks = bundled_tasks("rag")
        scores = await asyncio.gather(*(play(environments, task, policy) for task in tasks))
        await environments.close()
    assert len(tasks) == 25
    assert low <= sum(score.reward for score in scores) / len(scores) <= high
    assert all({"exact_match", "f1", "contains", "tool_calls"} <= set(score.metrics) for score in scores)


async def test_the_environment_keeps_the_contract_whatever_a_model_says(corpus: Path):
    call = ToolCall(id="1", name="search", arguments='{"query": "mill"}')
    async with opened(corpus) as environments:
        await environments.check()
        await check_environment(lambda: environments.make(TASK), actions=[assistant("", (call,)), "Answer: Ann"])


async def test_no_bundled_answer_can_be_guessed_from_its_question():
    for task in bundled_tasks("rag"):
        answers = task.answer if isinstance(task.answer, list) else [task.answer]
        assert not any(answer.lower() in task.question.lower() for answer in answers)


async def test_a_folder_is_searched_with_its_texts_and_lines_and_without_hidden_files(corpus: Path):
    async with no_leaks(), opened(corpus) as environments:
        assert await searched(environments, "who built the mills?") == (
            "[1] The Old Mill (id: mill.md)\n# The Old Mill\n\nThe mill was built by Ann Lee."
        )
        assert (await searched(environments, "ferry")).startswith("[1] ferry boat (id: deep/ferry_boat.txt)")
        assert await searched(environments, "HONEY") == "[1] Bees (id: 7)\nBees make honey from clover."
        assert await searched(environments, "submarine") == "no passage matches; try other words"


async def test_a_search_gives_as_many_passages_as_asked_for_and_allowed(tmp_path: Path):
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f'{{"id": {n}, "text": "a word {"word " * n}"}}\n' for n in range(9)))
    async with opened(file, top_k=3) as environments:
        assert (await searched(environments, "word")).count("(id:") == 3
        assert (await searched(environments, "word", k=2)).count("(id:") == 2
        assert (await searched(environments, "word", k=99)).count("(id:") == 3
        assert "`int` >= 1" in await searched(environments, "word", k=0)
        assert await searched(environments, "  ") == "error: the query is empty; say what to look for"
        assert "2000 are allowed" in await searched(environments, "word " * 1000)
        assert "untitled" in await searched(environments, "word")
        assert await searched(environments, "\x00 the of ???") == "no passage matches; try other words"


async def test_the_index_is_made_once_and_made_again_when_the_corpus_changes(corpus: Path):
    async with opened(corpus) as environments:
        await environments.check()
    index = index_of(corpus)
    made_at = (index / "manifest.json").stat().st_mtime_ns
    async with opened(corpus) as environments:
        assert "Ann Lee" in await searched(environments, "mill")
    assert (index_of(corpus) / "manifest.json").stat().st_mtime_ns == made_at
    (corpus / "mill.md").write_text("# The Old Mill\n\nThe mill was built by Bob Ray.\n")
    async with opened(corpus) as environments:
        assert "Bob Ray" in await searched(environments, "mill")


@pytest.mark.parametrize(
    "kind", ["cut", "garbage", "gone", "no manifest", "nonsense manifest", "empty folder", "a file"]
)
async def test_a_damaged_index_is_made_again(corpus: Path, kind: str):
    async with opened(corpus) as environments:
        await environments.check()
    index = index_of(corpus)
    for file in list(index.iterdir()):
        content = file.read_bytes()
        match kind:
            case "cut" if file.suffix == ".npy":
                file.write_bytes(content[: len(content) // 2])
            case "garbage" if file.suffix == ".npy":
                file.write_bytes(content[:-8] + b"\xff" * 8)
            case "gone" if file.suffix == ".jsonl":
                file.unlink()
            case "no manifest" if file.name == "manifest.json":
                file.unlink()
            case "nonsense manifest" if file.name == "manifest.json":
                file.write_bytes(b'{"a": 1')
            case "empty folder" | "a file":
                file.unlink()
    if kind == "a file":
        index.rmdir()
        index.write_text("not a folder")
    async with opened(corpus) as environments:
        assert "Ann Lee" in await searched(environments, "mill")


OPENER = """
    import asyncio, os, sys
    from pathlib import Path
    import outrider.env.rag.opening as opening

    made = opening.write_index
    def counted(*args):
        with open(sys.argv[2], "a") as log:
            log.write("made\\n")
        made(*args)
    opening.write_index = counted

    async def main():
        folders = opening.index_folders(Path(sys.argv[1]), None, is_bundled=False)
        retriever = await opening.open_retriever(Path(sys.argv[1]), passage_words=200, folders=folders)
        [passage] = await retriever.search("ann lee", 1)
        await retriever.close()
        print(passage.id)

    asyncio.run(main())
"""


def test_many_processes_that_start_at_once_make_the_index_once(corpus: Path, tmp_path: Path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", textwrap.dedent(OPENER), str(corpus), str(log)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["mill.md\n"] * 4
    assert log.read_text() == "made\n"


HOLDER = """
    import fcntl, os, sys, time
    descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(600)
"""


async def test_whoever_waits_for_a_maker_goes_on_when_it_dies_and_clears_up_after_it(corpus: Path):
    async with opened(corpus) as environments:
        await environments.check()
    index = index_of(corpus)
    (index / "manifest.json").unlink()
    left = index.with_name(f"{index.name}.part-x")
    left.mkdir()
    (left / "half").write_text("done")
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), f"{index}.lock"]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "held\n"
        async with opened(corpus) as environments, asyncio.timeout(60):
            search = asyncio.create_task(searched(environments, "mill"))

            async def waiting() -> bool:
                return Path(f"{index}.lock") in open_files()

            await eventually(waiting, within_seconds=30)
            assert not search.done()
            holder.kill()
            assert "Ann Lee" in await search
    finally:
        holder.kill()
        holder.communicate()
    assert not left.exists()


def open_files() -> set[Path]:
    found = set()
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add(descriptor.readlink())
    return found


async def test_episodes_that_search_at_once_open_the_corpus_together_and_one_cancelled_does_not_stop_the_others(
    corpus: Path,
):
    async with no_leaks(), opened(corpus) as environments, asyncio.timeout(60):
        first = asyncio.create_task(searched(environments, "mill"))
        others = [asyncio.create_task(searched(environments, "mill")) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        assert all("Ann Lee" in found for found in await asyncio.gather(*others))
        assert first.cancelled()


async def test_the_index_goes_to_the_cache_where_there_is_no_room_beside_the_corpus(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (corpus.parent / ".outrider-index").write_text("in the way")
    async with opened(corpus) as environments:
        assert "Ann Lee" in await searched(environments, "mill")
    assert any((tmp_path / "cache" / "outrider" / "rag").iterdir())
    async with opened(corpus, index_dir=str(corpus / "mill.md")) as environments:
        with pytest.raises(InvalidInput, match=r"no place for the index.*give a folder as `index_dir`"):
            await environments.check()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no text"),
        (b'{"text": "  "}', "has no text"),
        (b'{"text": "?!"}', "has no words"),
        (b'{"text": "a b"}\n{"text": ', "c.jsonl line 2 is not JSON"),
        (b'["a"]', "c.jsonl line 1 is not a JSON object"),
        (b'{"id": 1, "title": "a"}', "c.jsonl line 1 has no text"),
        (b'{"text": 5}', "c.jsonl line 1 has no text"),
        (
            b'{"id": 1, "text": "a"}\n\n{"id": "1", "text": "b"}',
            "c.jsonl line 3: the id '1' is also that of c.jsonl line 1",
        ),
        (b'{"text": "caf\xe9"}', "c.jsonl in the corpus is not UTF-8"),
        (None, "there is no corpus at"),
    ],
)
async def test_a_corpus_that_cannot_be_used_is_refused_with_the_place(
    content: bytes | None, problem: str, tmp_path: Path
):
    file = tmp_path / "c.jsonl"
    if content is not None:
        file.write_bytes(content)
    async with no_leaks(), opened(file) as environments:
        with pytest.raises(InvalidInput, match=problem):
            await environments.check()
        with pytest.raises(InvalidInput, match=problem):
            await searched(environments, "a")


async def test_a_missing_library_is_found_before_a_run(corpus: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with opened(corpus) as environments:
        with pytest.raises(InvalidInput, match=r"pip install -e \S+\[rag\]"):
            await environments.check()


def test_a_task_without_an_answer_and_wrong_settings_are_refused(corpus: Path):
    with pytest.raises(InvalidInput, match="has no answer"):
        RagEnvironments(RagConfig(corpus=str(corpus))).make(Task(task_id="t", question="Who?"))
    for config in ({"top_k": 0}, {"top_kk": 5}, {"scorer": "exact"}, {"embeddings": {"model": "m"}}):
        with pytest.raises(InvalidInput):
            environments_of("rag", config)


async def test_a_large_corpus_is_searched_off_the_event_loop_with_the_same_results(tmp_path: Path):
    file = tmp_path / "large.jsonl"
    n = QUICK_PASSAGES + 1
    file.write_text("".join(f'{{"text": "number{i} even{i % 2}"}}\n' for i in range(n)))
    async with no_leaks(), opened(file, top_k=2) as environments:
        assert (
            await searched(environments, f"number{n - 1}") == f"[1] untitled (id: {n})\nnumber{n - 1} even{(n - 1) % 2}"
        )
        found = await searched(environments, "even1")
        assert found.splitlines()[0] == "[1] untitled (id: 2)"


def test_long_documents_become_passages_of_bounded_length():
    paragraph = "One two three four. " * 10
    text = "\n\n".join(["Short.", paragraph, "word " * 120, "Last."])
    passages = list(passages_of(Document(id="d", title="T", text=text), 50))
    assert [passage.id for passage in passages[:3]] == ["d", "d#2", "d#3"]
    assert all(len(passage.text.split()) <= 50 for passage in passages)
    assert " ".join(" ".join(passage.text for passage in passages).split()) == " ".join(text.split())


def test_a_row_that_two_rankings_have_goes_before_one_that_only_one_has():
    assert fused([[1, 2, 3], [4, 2]]) == [2, 1, 4, 3]
    assert fused([[], []]) == []


class VectorServer:
    """Answers with vectors of two numbers: how much a text is about water, and how much about anything else."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.statuses: list[int] = []
        self.reply: Callable[[list[str]], object] = self.vectors
        self.base_url = ""

    def vectors(self, texts: list[str]) -> object:
        wet = [float(any(word in text.lower() for word in ("ferry", "boat", "ship", "water"))) for text in texts]
        data = [{"index": i, "embedding": [2.0 * each, 1.0 - each]} for i, each in enumerate(wet)]
        return {"data": data[::-1]}

    async def handle(self, request: web.Request) -> web.Response:
        self.n_calls += 1
        if self.statuses:
            return web.json_response(
                {"error": {"message": "no"}}, status=self.statuses.pop(0), headers={"Retry-After": "0"}
            )
        body = await request.json()
        assert body["model"] == "toy"
        return web.json_response(self.reply(body["input"]))


@pytest.fixture
async def vector_server() -> AsyncIterator[VectorServer]:
    server = VectorServer()
    app = web.Application()
    app.router.add_post("/v1/embeddings", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()


def embeddings(server: VectorServer, **more: object) -> EmbeddingsConfig:
    return EmbeddingsConfig(**{"base_url": server.base_url, "model": "toy", "api_key_env": "none", **more})


async def test_with_vectors_a_passage_is_found_by_its_meaning(corpus: Path, vector_server: VectorServer):
    async with no_leaks():
        async with opened(corpus, embeddings=embeddings(vector_server, batch_size=2), top_k=1) as environments:
            await environments.check()
            assert vector_server.n_calls == 3
            assert "ferry" in await searched(environments, "water vessel")
        async with opened(corpus, embeddings=embeddings(vector_server), top_k=1) as environments:
            assert "ferry" in await searched(environments, "ship")
    assert vector_server.n_calls == 5


async def test_vectors_are_asked_for_again_when_the_server_is_busy(corpus: Path, vector_server: VectorServer):
    vector_server.statuses = [429, 503]
    async with opened(corpus, embeddings=embeddings(vector_server)) as environments:
        assert "ferry" in await searched(environments, "boats")


@pytest.mark.parametrize(
    ("statuses", "reply", "problem"),
    [
        ([401], None, "No key was sent"),
        ([500, 500, 500, 500], None, "answered 500"),
        ([], lambda texts: {"data": []}, "gave 0 vectors for 3 texts"),
        ([], lambda texts: {"data": "none"}, "did not answer with vectors"),
        ([], lambda texts: {"data": [{"embedding": [1.0] * i} for i in range(len(texts))]}, "different lengths"),
        ([], lambda texts: {"data": [{"embedding": []} for _ in texts]}, "different lengths or none"),
        ([], lambda texts: {"data": [{"embedding": [1e39]} for _ in texts]}, "not finite"),
    ],
)
async def test_a_server_that_gives_no_vectors_is_found_before_a_run(
    statuses: list[int],
    reply: Callable[[list[str]], object] | None,
    problem: str,
    corpus: Path,
    vector_server: VectorServer,
):
    vector_server.statuses = statuses
    vector_server.reply = reply or vector_server.reply
    async with no_leaks(), opened(corpus, embeddings=embeddings(vector_server)) as environments:
        with pytest.raises(InvalidInput, match=problem):
            await environments.check()


async def test_a_key_for_vectors_that_others_could_read_is_warned_of(
    corpus: Path, vector_server: VectorServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The server is reached by an address of this host that is not one of loopback."""
    monkeypatch.setenv("VECTOR_KEY", "canary-vectors")
    here = embeddings(vector_server, api_key_env="VECTOR_KEY")
    async with opened(corpus, embeddings=here) as environments:
        await environments.check()
    assert "unencrypted" not in caplog.text
    there = msgspec.structs.replace(here, base_url=vector_server.base_url.replace("127.0.0.1", "0.0.0.0"))
    async with opened(corpus, embeddings=there) as environments:
        await environments.check()
    assert caplog.text.count("the key in VECTOR_KEY goes to http://0.0.0.0") == 1
    assert "canary" not in caplog.text


async def test_a_server_that_fails_in_the_middle_of_a_run_is_a_failure_of_the_environment(
    corpus: Path, vector_server: VectorServer
):
    async with opened(corpus, embeddings=embeddings(vector_server, max_retries=0)) as environments:
        await environments.check()
        vector_server.statuses = [500]
        with pytest.raises(EnvError, match="no vectors"):
            await searched(environments, "ship")
        vector_server.reply = lambda texts: {"data": [{"embedding": [1.0, 2.0, 3.0]} for _ in texts]}
        with pytest.raises(EnvError, match="another model than before"):
            await searched(environments, "ship")
