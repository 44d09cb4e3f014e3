"""Results and conversations out of recorded events."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from outrider.core.attempt import Attempt, Failure
from outrider.core.chat import Image, Message, ToolCall, assistant, system, tool_result, user
from outrider.core.errors import Boundary
from outrider.core.event import Event, EventKind
from outrider.core.rollout import Rollout, RolloutConfig
from outrider.core.status import AttemptStatus, Mode, RolloutStatus
from outrider.core.turn import RESET, StepRecord, Transcript, TurnRecord, to_data
from outrider.evaluate.conversation import Conversation, Entry, EntryKind, entries_of
from outrider.evaluate.markup import MAX_IMAGE_BYTES, MAX_TEXT, Omissions, conversation_html, pretty_json
from outrider.evaluate.results import result_line

AT = datetime(2025, 6, 1, tzinfo=UTC)
CALL = ToolCall(id="c1", name="calculator", arguments='{"expression": "6*7"}')
HOSTILE = '</pre></script><script>alert(1)</script><img src=x onerror="alert(2)"><!-- &lt; \x1b[31m'


class Episode:
    """Records an episode as agents do."""

    def __init__(self, *opening: Message) -> None:
        self.events: list[Event] = []
        self.messages: list[Message] = []
        self._transcript = Transcript()
        self._seconds = 0.0
        self.step(*opening, name=RESET)

    def step(self, *observation: Message, name: str = "", **facts: Any) -> None:
        record = StepRecord(observation=observation, seconds=0.25, **facts)
        self.event(EventKind.STEP, name, to_data(record))
        self._transcript.extend(observation)
        self.messages.extend(observation)

    def turn(self, reply: Message, request: list[Message] | None = None, **facts: Any) -> None:
        if request is not None:
            self.messages = list(request)
        kept, added = self._transcript.ask(self.messages)
        defaults = {"prompt_tokens": 100, "completion_tokens": 10, "cached_tokens": 50, "seconds": 0.5}
        record = TurnRecord(kept=kept, added=added, reply=reply, **{**defaults, **facts})
        self.event(EventKind.TURN, "", to_data(record))
        self._transcript.extend((reply,))
        self.messages.append(reply)

    def event(self, kind: EventKind, name: str, data: Any) -> None:
        self._seconds += 1.0
        self.events.append(Event(kind=kind, at=AT + timedelta(seconds=self._seconds), name=name, data=data))

    def entries(self) -> tuple[Entry, ...]:
        return entries_of(self.events, began_at=AT)


def solved() -> Episode:
    episode = Episode(system("Be brief."), user("6 * 7?"))
    episode.turn(assistant("", (CALL,)), finish_reason="tool_calls", n_retries=1)
    episode.step(tool_result(CALL, "42"), reward=0.5)
    episode.turn(assistant("42"))
    episode.step(terminated=True)
    data = {"reward": 1.0, "output": "42", "metrics": {"tool_calls": 1, "nan": float("nan"), "text": "x"}}
    episode.event(EventKind.REWARD, "result", data)
    return episode


def rollout(**facts: Any) -> Rollout:
    task = {"task_id": "q7", "question": "6 * 7?", "answer": "42", "metadata": {"level": 3, "Subject": "algebra"}}
    defaults: dict[str, Any] = {
        "rollout_id": "run/q7:2",
        "input": task,
        "status": RolloutStatus.SUCCEEDED,
        "mode": Mode.TEST,
        "tag": "math",
        "seed": 5,
        "group_id": "run/q7",
        "priority": 0,
        "config": RolloutConfig(),
        "metadata": {"run": "run", "task_id": "q7", "sample": 2},
        "enqueued_at": AT,
        "ended_at": AT + timedelta(seconds=9),
        "reward": 1.0,
        "n_attempts": 1,
    }
    return Rollout(**{**defaults, **facts})


ATTEMPT = Attempt(
    rollout_id="run/q7:2",
    attempt_id="at-1",
    sequence_id=1,
    worker_id="w",
    status=AttemptStatus.SUCCEEDED,
    started_at=AT,
    ended_at=AT + timedelta(seconds=9),
    last_heartbeat_at=AT,
    lease_expires_at=None,
)


def test_a_result_line_tells_what_happened_and_what_it_took():
    line = result_line(rollout(), ATTEMPT, solved().events)
    assert (line.task_id, line.sample, line.tag, line.seed) == ("q7", 2, "math", 5)
    assert (line.reward, line.output, line.expected, line.stop_reason) == (1.0, "42", "42", "terminated")
    assert (line.n_turns, line.n_steps, line.n_retries, line.n_attempts) == (2, 2, 1, 1)
    assert (line.prompt_tokens, line.completion_tokens, line.cached_tokens, line.tokens) == (200, 20, 100, 220)
    assert (line.seconds, line.model_seconds) == (9.0, 1.0)
    assert line.metrics == {"tool_calls": 1.0}
    assert line.kinds == {"subject": "algebra", "level": "3"}
    assert not line.is_missing


def test_why_an_episode_stopped_is_the_agents_word_before_the_environments():
    episode = solved()
    episode.event(EventKind.REWARD, "result", {"reward": 0.0, "output": None, "stop_reason": "max_turns"})
    assert result_line(rollout(), ATTEMPT, episode.events).stop_reason == "max_turns"
    truncated = Episode(user("go"))
    truncated.step(truncated=True)
    assert result_line(rollout(), ATTEMPT, truncated.events).stop_reason == "truncated"
    cut = Episode(user("go"))
    cut.turn(assistant("I th"), finish_reason="length")
    assert result_line(rollout(), ATTEMPT, cut.events).stop_reason == "length"
    assert result_line(rollout(status=RolloutStatus.CANCELLED), None, ()).stop_reason == "cancelled"


def test_only_failures_of_the_infrastructure_and_cancelled_rollouts_say_nothing_of_the_agent():
    for side, is_missing in ((Boundary.POLICY, True), (Boundary.AGENT, False), (Boundary.LIMIT, False)):
        failure = Failure(boundary=side, kind="Error", message="gone")
        line = result_line(rollout(status=RolloutStatus.FAILED, reward=None, failure=failure), ATTEMPT, ())
        assert (line.is_missing, line.stop_reason) == (is_missing, f"failed: {side}")
    assert result_line(rollout(status=RolloutStatus.CANCELLED, reward=None), None, ()).is_missing
    assert not result_line(rollout(reward=None), ATTEMPT, ()).is_missing


def test_a_rollout_that_nobody_planned_is_a_task_of_its_own():
    line = result_line(rollout(input="just text", metadata={}), None, ())
    assert (line.task_id, line.sample, line.expected, line.seconds) == ("run/q7:2", 0, None, None)


def test_a_conversation_is_told_turn_by_turn():
    entries = solved().entries()
    told = [(entry.turn, entry.kind, "" if entry.message is None else entry.message.role) for entry in entries]
    assert told == [
        (0, EntryKind.MESSAGE, "system"),
        (0, EntryKind.MESSAGE, "user"),
        (1, EntryKind.MESSAGE, "assistant"),
        (1, EntryKind.MESSAGE, "tool"),
        (1, EntryKind.STEP, ""),
        (2, EntryKind.MESSAGE, "assistant"),
        (2, EntryKind.STEP, ""),
        (2, EntryKind.REWARD, ""),
    ]
    assert (entries[3].tool, entries[3].seconds, entries[4].reward) == ("calculator", 0.25, 0.5)
    assert entries[2].call is not None
    assert (entries[2].call.n_retries, entries[2].call.finish_reason) == (1, "tool_calls")
    assert (entries[6].text, entries[6].reward) == ("terminated", 0.0)
    assert [entry.at_seconds for entry in entries[:3]] == [1.0, 1.0, 2.0]


def test_what_the_model_was_not_shown_is_said_and_what_it_was_shown_again_is_not_repeated():
    episode = Episode(system("s"), user("first"))
    for number in range(3):
        episode.turn(assistant(f"reply {number}"))
        episode.step(user(f"observation {number}"))
    kept = [episode.messages[0], episode.messages[1], user("[4 messages left out]"), *episode.messages[6:]]
    episode.turn(assistant("last"), request=kept)
    tail = [entry for entry in episode.entries() if entry.turn == 4]
    assert [entry.kind for entry in tail] == [EntryKind.TRIMMED, EntryKind.MESSAGE, EntryKind.MESSAGE]
    assert tail[0].text == "4 of 8 earlier messages were not shown to the model"
    assert [entry.message.content for entry in tail[1:] if entry.message] == ["[4 messages left out]", "last"]


def test_what_agents_record_in_forms_of_their_own_is_shown_as_it_is():
    episode = Episode(user("go"))
    episode.event(EventKind.TURN, "mine", {"said": "hello"})
    episode.event(EventKind.STEP, "mine", {"observation": 3})
    episode.event(EventKind.REWARD, "", {"reward": "much"})
    episode.event(EventKind.LOG, "looked", {"at": 1})
    episode.event(EventKind.ARTIFACT, "file.txt", {"data": b"\xff"})
    entries = episode.entries()[1:]
    assert [entry.kind for entry in entries] == ["log", "log", "reward", "log", "artifact"]
    assert [entry.text for entry in entries] == ["turn mine", "step mine", "reward", "looked", "file.txt"]
    assert entries[0].data == {"said": "hello"}
    line = result_line(rollout(), ATTEMPT, episode.events)
    assert (line.n_turns, line.n_steps) == (0, 1)


def conversation(episode: Episode, **facts: Any) -> Conversation:
    found = rollout(**facts)
    line = result_line(found, ATTEMPT, episode.events)
    return Conversation(result=line, question="6 * 7?", attempt=ATTEMPT, attempts=(ATTEMPT,), entries=episode.entries())


def test_nothing_that_was_said_becomes_markup():
    episode = Episode(system(HOSTILE), user(HOSTILE))
    call = ToolCall(id="c", name=HOSTILE, arguments=HOSTILE)
    episode.turn(Message(role="assistant", content=HOSTILE, reasoning=HOSTILE, tool_calls=(call,)), model=HOSTILE)
    episode.step(tool_result(call, HOSTILE), info={HOSTILE: HOSTILE})
    episode.event(EventKind.LOG, HOSTILE, {HOSTILE: HOSTILE})
    episode.event(
        EventKind.REWARD, "result", {"output": {"a": HOSTILE}, "explanation": HOSTILE, "stop_reason": HOSTILE}
    )
    html = conversation_html(conversation(episode, tag=HOSTILE, rollout_id=HOSTILE), Omissions())
    assert html.count("&lt;script&gt;alert(1)") >= 12
    for sign in ("<script", "</script", "<img", "<!--", 'onerror="', "onerror='"):
        assert sign not in html


def test_pictures_are_in_the_page_until_their_room_is_full():
    pictures = (Image(data=b"\x89PNG" + b"x" * (MAX_IMAGE_BYTES - 100)), Image(data=b"y" * 200), Image(data=b"z" * 50))
    strange = Image(data=b"<svg onload=alert(1)>", media_type='image/svg+xml" onload="alert(1)')
    omissions = Omissions()
    html = conversation_html(conversation(Episode(user("look", (*pictures, strange)))), omissions)
    assert html.count('<img loading="lazy"') == 2
    assert html.count("picture left out") == omissions.n_images == 2
    assert 'onload="' not in html
    assert omissions.sentence() == "Left out to keep this page small: 2 pictures."
    again = conversation_html(conversation(Episode(user("look", (pictures[1],)))), omissions)
    assert "<img" in again


def test_the_end_of_a_long_text_is_left_out_and_counted():
    omissions = Omissions()
    html = conversation_html(conversation(Episode(user("a" * (MAX_TEXT + 5)))), omissions)
    assert "… 5 more characters" in html
    assert omissions.n_texts == 1


def test_arguments_are_made_readable_if_they_are_json():
    assert pretty_json('{"a":1}') == '{"a":1}'
    assert pretty_json('{"a": ') == '{"a": '
    long = msgspec.json.encode({"text": "x" * 200, "n": 1}).decode()
    assert pretty_json(long).count("\n") == 3
