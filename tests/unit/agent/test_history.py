import pytest
from hypothesis import given
from hypothesis import strategies as st

from guessing import call
from outrider.agent.history import History, estimated_tokens, trimmed
from outrider.core.chat import Image, Message, Role, assistant, system, tool_result, user
from outrider.core.errors import InvalidInput
from outrider.policy import Usage

texts = st.text("abc ", max_size=60)
budgets = st.integers(0, 400)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Anything a loop may lead to, and some things that it should not: results out of place, ids used again."""
    messages: list[Message] = [system(text) for text in draw(st.lists(texts, max_size=1))]
    messages += [user(text) for text in draw(st.lists(texts, max_size=3))]
    ids = st.sampled_from("123")
    for _ in range(draw(st.integers(0, 8))):
        calls = tuple(call("f", draw(texts), id=id) for id in draw(st.lists(ids, max_size=2, unique=True)))
        messages.append(assistant(draw(texts), calls))
        answers = [tool_result(one, draw(texts)) for one in calls]
        if draw(st.booleans()):
            answers.reverse()
        messages += answers
        messages += [user(text) for text in draw(st.lists(texts, max_size=1))]
        if draw(st.integers(0, 9)) == 0:
            messages.append(system("midway"))
        if draw(st.integers(0, 9)) == 0:
            messages.append(tool_result(call("f", id=draw(ids)), "late"))
    return messages


def size(messages: tuple[Message, ...] | list[Message]) -> int:
    return sum(map(estimated_tokens, messages))


def is_marker(message: Message) -> bool:
    return message.role is Role.USER and message.content.endswith("left out to save space]")


def survivors(messages: list[Message], shown: tuple[Message, ...]) -> list[int]:
    """Which of the messages are shown, by identity."""
    places = {id(message): i for i, message in enumerate(messages)}
    return [places[id(message)] for message in shown if id(message) in places]


@given(conversations(), budgets)
def test_what_stays_is_in_order_and_only_a_marker_is_new(messages: list[Message], budget: int):
    shown = trimmed(messages, budget)
    kept = survivors(messages, shown)
    assert kept == sorted(set(kept))
    new = [message for message in shown if not any(message is one for one in messages)]
    assert len(new) == (len(kept) < len(messages))
    assert all(map(is_marker, new))
    if new:
        assert new[0].content.startswith(f"[{len(messages) - len(kept)} earlier message")


@given(conversations(), budgets)
def test_system_messages_the_question_and_the_newest_message_always_stay(messages: list[Message], budget: int):
    kept = survivors(messages, trimmed(messages, budget))
    assert {i for i, message in enumerate(messages) if message.role is Role.SYSTEM} <= set(kept)
    users = [i for i, message in enumerate(messages) if message.role is Role.USER]
    assert set(users[:1]) <= set(kept)
    assert not messages or len(messages) - 1 in kept


@given(conversations(), budgets)
def test_a_call_and_its_results_stay_or_go_together(messages: list[Message], budget: int):
    kept = set(survivors(messages, trimmed(messages, budget)))
    called_at: dict[str, int] = {}
    for i, message in enumerate(messages):
        called_at.update((one.id, i) for one in message.tool_calls)
        if message.role is Role.TOOL and message.tool_call_id in called_at:
            assert (i in kept) == (called_at[message.tool_call_id] in kept)


@given(conversations(), budgets)
def test_the_oldest_go_first(messages: list[Message], budget: int):
    kept = set(survivors(messages, trimmed(messages, budget)))
    first_user = next((i for i, message in enumerate(messages) if message.role is Role.USER), None)
    free = [i for i, message in enumerate(messages) if message.role is not Role.SYSTEM and i != first_user]
    assert [i in kept for i in free] == sorted(i in kept for i in free)


@given(conversations(), budgets)
def test_trimming_never_makes_it_longer_and_leaves_alone_what_fits(messages: list[Message], budget: int):
    shown = trimmed(messages, budget)
    assert size(shown) <= size(messages)
    if size(messages) <= budget:
        assert shown == tuple(messages)


@given(conversations(), budgets)
def test_a_turn_fits_if_dropping_all_older_ones_makes_it_fit(messages: list[Message], budget: int):
    """It is over the budget only if even the least that can be kept is."""
    if size(trimmed(messages, budget)) > budget:
        assert size(trimmed(messages, budget)) == size(trimmed(messages, 0))


@given(conversations(), st.integers(1, 400), st.lists(st.integers(1, 500), max_size=12))
def test_each_view_of_a_history_continues_the_last_or_was_trimmed_anew(
    messages: list[Message], budget: int, counts: list[int]
):
    history = History(budget)
    last: tuple[Message, ...] = ()
    for end in range(1, len(messages) + 1):
        shown = tuple(history.fit(messages[:end]))
        assert shown[-1] is messages[end - 1]
        assert shown == (*last, messages[end - 1]) or sum(map(is_marker, shown)) <= 1
        last = shown
        if counts:
            history.learn(Usage(prompt_tokens=counts.pop()))


def test_without_a_budget_everything_is_shown():
    messages = [user("x" * 10_000)]
    assert History().fit(messages) is messages


def test_a_long_text_conversation_loses_whole_exchanges():
    messages = [system("s"), user("question")]
    for i in range(6):
        messages += [assistant(f"answer {i} " + "x" * 80), user(f"reply {i} " + "x" * 80)]
    shown = trimmed(messages, 100)
    assert [message.content[:8] for message in shown] == [
        "s",
        "question",
        "[10 earl",
        "answer 5",
        "reply 5 ",
    ]


def test_the_servers_count_is_believed():
    """Our estimate says that it fits, the server counts three times as much."""
    messages = [system("s"), user("question"), assistant("a" * 400), user("b" * 400)]
    history = History(600)
    assert len(history.fit(messages)) == 4
    history.learn(Usage(prompt_tokens=3 * size(messages)))
    messages += [assistant("c" * 40), user("d" * 40)]
    assert [message.content[:1] for message in history.fit(messages)] == ["s", "q", "[", "c", "d"]


def test_tools_that_come_on_top_do_not_make_texts_look_longer():
    messages = [user("question")]
    history = History(10_000)
    history.fit(messages)
    history.learn(Usage(prompt_tokens=3_000))
    messages += [assistant("a"), user("b" * 4 * 6_000)]
    assert len(history.fit(messages)) == 3


def test_after_trimming_there_is_room_for_some_turns():
    messages = [user("question")]
    history = History(400)
    n_trimmed = 0
    last: tuple[Message, ...] = ()
    for i in range(60):
        messages += [assistant(f"{i}" + "x" * 40), user("y" * 40)]
        shown = tuple(history.fit(messages))
        assert size(shown) <= 400
        n_trimmed += shown[: len(last)] != last
        last = shown
    assert n_trimmed < 20


def test_pictures_count():
    assert estimated_tokens(user("", (Image(data=b""),))) > 500


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_budget_of_nothing_is_refused(tokens: int):
    with pytest.raises(InvalidInput, match="max_context_tokens"):
        History(tokens)
