import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from outrider.core.chat import Image, Message, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.core.errors import ContextOverflow, InvalidInput, PolicyError
from outrider.policy import ChatPolicy, Completion, FinishReason, Sampling, Tokens, Usage
from outrider.policy.recording import RecordingPolicy, ReplayPolicy, open_recording, open_replay
from outrider.policy.recording.call import request_of

QUESTION = (system("Be brief."), user("What is 1 + 1?"))
SEARCH = ToolSpec(name="search", description="", parameters={"type": "object", "properties": {}})


class Numbered(ChatPolicy):
    """Answers with the number of the call and its session, as no model would twice."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.closed = False

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling | None = None,
        session: str = "",
    ) -> Completion:
        self.n_calls += 1
        number = self.n_calls
        await asyncio.sleep(0)
        if messages[-1].content == "fail":
            raise PolicyError("the server is down")
        if messages[-1].content == "too long":
            raise ContextOverflow("9 tokens, the model reads 8")
        return Completion(message=assistant(f"{number} for {session}"), usage=Usage(prompt_tokens=number))

    async def check(self, sampling: Sampling | None = None, probe=None) -> None:
        raise InvalidInput("checked")

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def recorder(path: Path, inner: ChatPolicy | None = None) -> AsyncIterator[RecordingPolicy]:
    policy = await open_recording(inner or Numbered(), str(path))
    try:
        yield policy
    finally:
        await policy.close()


@asynccontextmanager
async def replay(path: Path) -> AsyncIterator[ReplayPolicy]:
    policy = await open_replay(str(path))
    try:
        yield policy
    finally:
        await policy.close()


async def said(policy: ChatPolicy, *messages: Message, session: str = "", sampling: Sampling | None = None) -> str:
    completion = await policy.complete(messages or QUESTION, session=session, sampling=sampling)
    return completion.message.content


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


async def test_a_conversation_replays_answer_by_answer(path: Path):
    async def converse(policy: ChatPolicy) -> list[Message]:
        messages = list(QUESTION)
        for i in range(5):
            messages += [(await policy.complete(messages, tools=(SEARCH,))).message, user(f"and {i}?")]
        return messages

    async with recorder(path) as policy:
        recorded = await converse(policy)
    async with replay(path) as policy:
        assert await converse(policy) == recorded


async def test_every_field_of_a_completion_comes_back(path: Path):
    completion = Completion(
        message=Message(
            role="assistant",
            content="Grüße \u2028 \0",
            reasoning="hm",
            tool_calls=(ToolCall(id="c", name="search", arguments='{"q": '),),
        ),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1),
        tokens=Tokens(prompt_ids=b"\0\1\2\3", completion_ids=b"\xff" * 4, logprobs=b"\0" * 4),
        model="m",
        policy_version=7,
        n_retries=2,
    )

    class Fixed(Numbered):
        async def complete(self, messages: Sequence[Message], **_: object) -> Completion:
            return completion

    picture = user("look", (Image(data=b"\x89PNG\r\n"),))
    async with recorder(path, Fixed()) as policy:
        await policy.complete((picture,))
    async with replay(path) as policy:
        assert await policy.complete((picture,)) == completion


async def test_equal_requests_of_a_session_replay_in_order_and_then_from_the_first(path: Path):
    async with recorder(path) as policy:
        recorded = [await said(policy, session="a") for _ in range(3)]
    async with replay(path) as policy:
        assert [await said(policy, session="a") for _ in range(4)] == [*recorded, recorded[0]]


async def test_equal_requests_of_different_rollouts_replay_each_its_own_answer_in_any_order(path: Path):
    async with recorder(path) as policy:
        recorded = {session: await said(policy, session=session) for session in "abc"}
    async with replay(path) as policy:
        assert {session: await said(policy, session=session) for session in "cab"} == recorded


async def test_a_session_that_was_not_recorded_gets_what_nobody_has_used(path: Path):
    async with recorder(path) as policy:
        for session in "abc":
            await said(policy, session=session)
    async with replay(path) as policy:
        assert await said(policy, session="b") == "2 for b"
        assert [await said(policy, session="new") for _ in range(2)] == ["1 for a", "3 for c"]
        assert await said(policy, session="a") == "1 for a"
        with pytest.raises(PolicyError, match="no answer for new: all its recorded answers are used up"):
            await said(policy, session="new")


async def test_an_overflow_replays_as_one_and_other_failures_are_not_recorded(path: Path):
    async with recorder(path) as policy:
        with pytest.raises(ContextOverflow):
            await said(policy, user("too long"))
        with pytest.raises(PolicyError):
            await said(policy, user("fail"))
    async with replay(path) as policy:
        with pytest.raises(ContextOverflow, match="the model reads 8"):
            await said(policy, user("too long"))
        with pytest.raises(PolicyError, match="message 1"):
            await said(policy, user("fail"))


@pytest.mark.parametrize(
    ("asked", "sampling", "tools", "message"),
    [
        (
            (*QUESTION, assistant("1 for s"), user("Why not?")),
            None,
            (),
            r"message 4 \(user\) differs from the nearest one, in line 2; it is now 'Why not\?'",
        ),
        ((user("What is 1 + 1?"),), None, (), r"message 1 \(user\) differs"),
        (
            (*QUESTION, assistant("1 for s"), user("Why?"), user("Really?")),
            None,
            (),
            "message 5 .* differs from the nearest one, in line 2, which has 4 messages",
        ),
        (QUESTION[:1], None, (), "ends after 1 messages, but the nearest one, in line 1 goes on, to 2"),
        (QUESTION, None, (SEARCH,), "its tools differ from those of the nearest one, in line 1"),
        (QUESTION, Sampling(temperature=0.5), (), "its sampling differs .*temperature=None.*, now .*temperature=0.5"),
        (
            (*QUESTION, assistant("", (ToolCall(id="1", name="search"),))),
            None,
            (),
            r"message 3 \(assistant\) .* now 'search'",
        ),
        ((), None, (), "ends after 0 messages"),
    ],
)
async def test_what_was_not_recorded_is_an_error_that_says_what_first_differs(
    path: Path, asked: tuple[Message, ...], sampling: Sampling | None, tools: tuple[ToolSpec, ...], message: str
):
    async with recorder(path) as policy:
        await said(policy, session="s")
        await said(policy, *QUESTION, assistant("1 for s"), user("Why?"), session="s")
    async with replay(path) as policy:
        with pytest.raises(PolicyError, match=message) as caught:
            await policy.complete(asked, sampling=sampling, tools=tools, session="s")
    assert caught.value.stage == "policy.replay"


async def test_many_calls_at_once_are_each_one_line(path: Path):
    async with recorder(path) as policy:
        await asyncio.gather(*(said(policy, session=str(i)) for i in range(500)))
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert sorted(int(line["session"]) for line in lines) == list(range(500))


async def test_an_answer_is_in_the_file_before_it_is_seen(path: Path):
    async with recorder(path) as policy:
        for i in range(3):
            answer = await said(policy)
            assert answer in path.read_text().splitlines()[i]


async def test_a_cancelled_call_leaves_no_half_line_and_harms_no_other(path: Path):
    async with recorder(path) as policy:
        calls = [asyncio.ensure_future(said(policy, session=str(i))) for i in range(50)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for one in calls[::2]:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    sessions = {msgspec.json.decode(line)["session"] for line in path.read_bytes().splitlines()}
    assert sessions >= {str(i) for i in range(1, 50, 2)}


@pytest.mark.parametrize("garbage", [b'{"schema":1,"session":"x","req', b"\xff\xfe\x00", b"\0\0\0\0"])
async def test_an_unfinished_line_is_skipped_wherever_it_is(
    path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
):
    async with recorder(path) as policy:
        await said(policy, session="a")
    path.write_bytes(path.read_bytes() + garbage)
    async with recorder(path) as policy:
        await said(policy, session="b")
    path.write_bytes(path.read_bytes() + b"\n" + garbage)
    with caplog.at_level(logging.WARNING):
        async with replay(path) as policy:
            assert await said(policy, session="a") == "1 for a"
            assert await said(policy, session="b") == "1 for b"
    assert "2 unfinished lines were skipped" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no recorded call"),
        (b"\n\n", "no recorded call"),
        (b'{"question": "?"}\n', ":1: not a recorded call"),
        (b"[1, 2]\n", ":1: not a recorded call"),
    ],
)
async def test_a_file_that_is_no_recording_is_refused(path: Path, content: bytes, message: str):
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        await open_replay(str(path))


async def test_a_recording_of_a_later_version_is_refused(path: Path):
    async with recorder(path) as policy:
        await said(policy)
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":99'))
    with pytest.raises(InvalidInput, match="schema 99"):
        await open_replay(str(path))


async def test_a_disk_that_is_full_fails_the_call_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    import os

    real, full = os.write, [True]

    def write(descriptor: int, data: bytes) -> int:
        if full[0]:
            real(descriptor, bytes(data)[:10])
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    async with recorder(path) as policy:
        await said(policy, session="a")
        monkeypatch.setattr("outrider.policy.recording.record.os.write", write)
        with pytest.raises(PolicyError, match=r"cannot record a call: .*No space left"):
            await said(policy, session="b")
        full[0] = False
        await said(policy, session="c")
        monkeypatch.undo()
    assert [msgspec.json.decode(line)["session"] for line in path.read_bytes().splitlines()] == ["a", "b", "c"]


async def test_closing_closes_the_inner_policy_once_and_calls_after_it_fail(path: Path):
    inner = Numbered()
    policy = await open_recording(inner, str(path))
    with pytest.raises(InvalidInput, match="checked"):
        await policy.check()
    await policy.close()
    await policy.close()
    assert inner.closed
    with pytest.raises(PolicyError, match="closed"):
        await said(policy)


def test_equal_requests_have_equal_digests_whatever_the_order_of_keys():
    first = ToolSpec(name="t", description="", parameters={"a": 1, "b": {"c": 2, "d": 3}})
    second = ToolSpec(name="t", description="", parameters={"b": {"d": 3, "c": 2}, "a": 1})
    assert request_of(QUESTION, (first,), None) == request_of(list(QUESTION), [second], Sampling())


def test_requests_that_differ_have_other_digests():
    call = ToolCall(id="1", name="f")
    requests = [
        request_of((), (), None),
        request_of(QUESTION, (), None),
        request_of(QUESTION[::-1], (), None),
        request_of((user("a"), user("b")), (), None),
        request_of((user("ab"),), (), None),
        request_of((user("a", (Image(data=b"1"),)),), (), None),
        request_of((user("a", (Image(data=b"2"),)),), (), None),
        request_of((tool_result(call, "a"),), (), None),
        request_of(QUESTION, (SEARCH,), None),
        request_of(QUESTION, (), Sampling(seed=0)),
        request_of(QUESTION, (), Sampling(seed=1)),
        request_of(QUESTION, (), Sampling(temperature=0.0)),
    ]
    assert len({request.digest for request in requests}) == len(requests)
