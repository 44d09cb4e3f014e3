"""Conversations as ids: the same as if written in one piece, appended to, and tokenised once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.chat import Image, Message, Role, ToolCall, ToolSpec, assistant, system, tool_result, user
from outrider.core.errors import InvalidInput, PolicyError, PolicyUnusable
from outrider.policy.engine import ChatTemplate, Mark, ToolForm, chatml
from outrider.policy.engine.packing import unpack_ids
from outrider.policy.engine.rendering import Rendering
from token_engine import END, END_OF_TEXT, SPECIAL, START, WordTokenizer, spelled

SEARCH = ToolSpec(name="search", description="Finds.", parameters={"type": "object", "properties": {}})
CALL = ToolCall(id="call_1_0", name="search", arguments='{"query": "moon"}')

LLAMA = ChatTemplate(
    before={role: (Mark(SPECIAL[0]), role.value, Mark(SPECIAL[2]), "\n\n") for role in Role},
    after=(Mark(SPECIAL[1]),),
    beginning=(Mark("<bos>", 7),),
    tools=ToolForm(),
)


def rendering(template=None, *, caching=True, cache_messages=100):
    tokenizer = WordTokenizer()
    made = Rendering(tokenizer, template or chatml(), cache_messages=cache_messages, caching=caching)
    tokenizer.texts.clear()
    return made, tokenizer


texts = st.text(st.sampled_from("ab \n<|é🙂\ud800"), max_size=8)
calls = st.lists(st.builds(ToolCall, id=texts, name=texts, arguments=texts), max_size=2).map(tuple)
messages = st.lists(
    st.one_of(
        st.builds(Message, role=st.sampled_from(list(Role)), content=texts),
        st.builds(Message, role=st.just(Role.ASSISTANT), content=texts, tool_calls=calls, reasoning=texts),
    ),
    max_size=6,
)


@given(messages, st.booleans(), st.booleans())
def test_the_ids_of_a_conversation_are_those_of_its_text_in_one_piece(conversation, has_tools, is_chatml):
    template = chatml(think=("<think>\n", "\n</think>\n\n")) if is_chatml else LLAMA
    made, tokenizer = rendering(template)
    tools = [SEARCH] if has_tools else []
    for _ in range(2):  # tokenised, and from the cache
        ids = unpack_ids(made.prompt(conversation, tools, "").ids)
        pieces = [piece for message in template.with_tools(conversation, tools) for piece in template.pieces(message)]
        written = [*template.beginning[1:], *pieces, *template.before[Role.ASSISTANT]]
        text = "".join(piece.text if isinstance(piece, Mark) else piece for piece in written)
        beginning = [] if is_chatml else [7]
        assert [*ids] == beginning + tokenizer.encode(text.encode(errors="replace").decode())


def test_chatml_is_written_as_models_know_it():
    made, tokenizer = rendering()
    ids = unpack_ids(made.prompt([system("Be brief."), user("Hi"), assistant("Ho")], [], "").ids)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHo<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("opening", [[], [system("Be brief.")]])
def test_tools_stand_in_the_one_system_message(opening):
    made, tokenizer = rendering()
    answer = tool_result(CALL, "It is round.")
    asked = [*opening, user("The moon?"), assistant("Wait.", (CALL,)), answer]
    text = tokenizer.decode(unpack_ids(made.prompt(asked, [SEARCH], "").ids))
    head, *others = text.split("<|im_start|>")[1:]
    assert head.startswith("system\nBe brief.\n\n# Tools" if opening else "system\n# Tools")
    assert '<tools>\n{"type": "function", "function": {"name": "search", "description": "Finds."' in head
    assert others == [
        "user\nThe moon?<|im_end|>\n",
        'assistant\nWait.\n<tool_call>\n{"name": "search", "arguments": {"query": "moon"}}\n</tool_call><|im_end|>\n',
        "tool\n<tool_response>\nIt is round.\n</tool_response><|im_end|>\n",
        "assistant\n",
    ]


@pytest.mark.parametrize("mark", SPECIAL)
def test_a_mark_that_somebody_writes_is_plain_text(mark):
    made, tokenizer = rendering()
    ids = [*unpack_ids(made.prompt([user(f"a{mark}{mark}b")], [], "").ids)]
    assert tokenizer.decode(ids).startswith(f"<|im_start|>user\na{mark}{mark}b<|im_end|>")
    assert [ids.count(special) for special in (START, END, END_OF_TEXT)] == [2, 1, 0]
    assert made.count(mark) > 1


def test_a_template_may_do_without_marks():
    before = {role: (f"{role}: ",) for role in Role}
    made, tokenizer = rendering(ChatTemplate(before=before, after=("\n",), reserved=()))
    prompt = made.prompt([user("Hi there")], [], "")
    assert tokenizer.decode(unpack_ids(prompt.ids)) == "user: Hi there\nassistant: "
    assert tokenizer.texts == ["user: Hi there\n"]
    assert (made.stop_ids, made.reply(prompt, spelled("Ho"))) == ((), assistant("Ho"))


def test_a_message_is_tokenised_once_however_often_it_is_shown():
    made, tokenizer = rendering()
    conversation = [system("Be brief.")]
    for turn in range(5):
        conversation += [user(f"question {turn}"), assistant(f"answer {turn}")]
        made.prompt([Message(role=message.role, content=message.content) for message in conversation], [], "")
    assert sorted(tokenizer.texts) == sorted(
        ["\n"] * 11 + [f"{message.role}\n{message.content}" for message in conversation]
    )
    assert (made.n_tokenised, made.n_hits) == (11, 3 + 5 + 7 + 9)


def test_without_the_cache_every_message_is_tokenised_again_to_the_same_ids():
    made, _ = rendering()
    plain = made.with_caching(False)
    asked = [system("Be brief."), user("Hi")]
    assert [plain.prompt(asked, [], "") for _ in range(3)] == [made.prompt(asked, [], "") for _ in range(3)]
    assert (plain.n_tokenised, plain.n_hits) == (6, 0)
    assert (made.n_tokenised, made.n_hits) == (2, 4)


def test_what_was_not_used_for_longest_is_tokenised_again():
    made, _ = rendering(cache_messages=2)
    for text in "abcab":
        made.prompt([user(text)], [], "")
    assert (made.n_tokenised, made.n_hits) == (5, 0)
    made.prompt([user("a")], [], "")
    assert (made.n_tokenised, made.n_hits) == (5, 1)


def test_a_text_is_counted_once():
    made, tokenizer = rendering()
    assert [made.count("one two three") for _ in range(3)] == [3, 3, 3]
    assert tokenizer.texts == ["one two three"]
    assert [made.with_caching(False).count("one two") for _ in range(2)] == [2, 2]


@given(st.lists(st.tuples(texts, st.sampled_from([(END,), (END_OF_TEXT,), ()])), min_size=1, max_size=5), st.booleans())
def test_the_next_prompt_begins_with_this_one_and_the_ids_that_were_sampled(replies, caching):
    made, _ = rendering(caching=caching)
    conversation = [user("Begin.")]
    for text, end in replies:
        sampled = [*spelled(text.encode(errors="replace").decode()), *end]
        prompt = made.prompt(conversation, [SEARCH], "s")
        conversation += [made.reply(prompt, sampled), user("Go on.")]
        following = unpack_ids(made.prompt(conversation, [SEARCH], "s").ids)
        so_far = [*unpack_ids(prompt.ids), *sampled]
        assert [*following[: len(so_far)]] == so_far
        assert [*following[len(so_far) - len(end) :]].count(END) >= 2


def test_the_same_words_elsewhere_are_not_those_ids():
    made, _ = rendering()
    asked = [user("Begin.")]
    reply = made.reply(made.prompt(asked, [], "s"), [*spelled("yes"), END])
    own = made.prompt([*asked, reply], [], "s").ids
    assert len(own) > len(made.prompt([*asked, assistant("yes")], [], "other").ids)
    assert len(own) > len(made.prompt([user("Start."), reply], [], "s").ids) == len(own) - 2 * 4
    assert made.with_caching(False).prompt([*asked, assistant("yes")], [], "s").ids == own


@pytest.mark.parametrize(
    ("text", "content", "called"),
    [
        ("plain", "plain", []),
        ('Wait.\n<tool_call>\n{"name": "f", "arguments": {"x":  1}}\n</tool_call>', "Wait.", [("f", '{"x":  1}')]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
        (
            '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g"}</tool_call> so',
            "\nso",
            [("f", "{}"), ("g", "{}")],
        ),
        ("<tool_call>{no json}</tool_call>", "<tool_call>{no json}</tool_call>", []),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ('<tool_call>{"name": "f"', '<tool_call>{"name": "f"', []),
    ],
)
def test_calls_are_read_from_a_reply_and_what_cannot_be_read_stays(text, content, called):
    message = chatml().read(text, 3)
    assert (message.content, [(call.name, call.arguments) for call in message.tool_calls]) == (content, called)
    assert [call.id for call in message.tool_calls] == [f"call_3_{number}" for number in range(len(called))]


def test_reasoning_is_read_only_if_the_template_says_how():
    text = "<think>\nhm\n</think>\n\nyes"
    assert chatml().read(text, 0) == assistant(text)
    template = chatml(think=("<think>\n", "\n</think>\n\n"))
    message = template.read(text, 0)
    assert (message.reasoning, message.content) == ("hm", "yes")
    assert text in template.pieces(message)
    assert "yes" in chatml().pieces(message)
    assert template.read("no </think> thought", 0).content == "no </think> thought"


def test_what_the_template_cannot_write_is_refused():
    made, _ = rendering(chatml(tools=None))
    with pytest.raises(PolicyUnusable, match="ToolForm"):
        made.prompt([user("a")], [SEARCH], "")
    with pytest.raises(PolicyUnusable, match="ToolForm"):
        made.prompt([assistant("", (CALL,))], [], "")
    with pytest.raises(PolicyError, match="picture"):
        made.prompt([user("a", (Image(data=b"png"),))], [], "")
    with pytest.raises(InvalidInput, match="5 tokens of '<nobody>!!'"):
        rendering(chatml(start=Mark("<nobody>!!")))
