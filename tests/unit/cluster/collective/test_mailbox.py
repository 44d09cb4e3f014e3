"""What waits to be received: order, room, and letters that are withdrawn or given back."""

import asyncio

import pytest

from outrider.cluster.collective.mailbox import Kind, Letter, Mailbox
from outrider.core.errors import ClusterError


def letter(n_bytes: int = 1, *, kind: Kind = Kind.OBJECT, is_whole: bool = True) -> Letter:
    made = Letter(kind, [n_bytes])
    if is_whole:
        made.arrived(n_bytes)
    return made


def taken(mailbox: Mailbox, sender: str = "a") -> Letter:
    return mailbox.getter(sender, Kind.OBJECT).result()


async def test_letters_come_out_in_order_for_each_sender():
    mailbox = Mailbox()
    letters = {sender: [letter() for _ in range(3)] for sender in "ab"}
    for number in range(3):
        for sender in "ab":
            assert mailbox.deliver(sender, letters[sender][number]) is None
    assert mailbox.n_bytes == 6
    assert [taken(mailbox, "b") for _ in range(3)] == letters["b"]
    assert [taken(mailbox, "a") for _ in range(3)] == letters["a"]
    assert mailbox.n_bytes == 0


async def test_those_who_wait_are_served_in_order_without_those_who_gave_up():
    mailbox = Mailbox()
    getters = [mailbox.getter("a", Kind.OBJECT) for _ in range(3)]
    mailbox.give_up("a", getters[1])
    letters = [letter(), letter()]
    for one in letters:
        mailbox.deliver("a", one)
    assert [getters[0].result(), getters[2].result()] == letters
    assert mailbox.n_bytes == 0


async def test_a_letter_handed_to_one_who_has_given_up_goes_to_the_next_in_its_old_place():
    mailbox = Mailbox()
    getter = mailbox.getter("a", Kind.OBJECT)
    first, second = letter(), letter()
    mailbox.deliver("a", first)
    mailbox.deliver("a", second)
    mailbox.give_up("a", getter)
    assert [taken(mailbox), taken(mailbox)] == [first, second]


async def test_letters_without_room_are_let_in_by_turns():
    mailbox = Mailbox(room_bytes=10)
    letters = [letter(6) for _ in range(4)]
    waits = [mailbox.deliver(sender, one) for sender, one in zip("abab", letters, strict=True)]
    assert [wait is None for wait in waits] == [True, False, False, False]
    assert taken(mailbox) is letters[0]
    assert [wait.done() for wait in waits[1:]] == [True, False, False]
    assert taken(mailbox, "b") is letters[1]
    assert [wait.done() for wait in waits[2:]] == [True, False]


async def test_a_small_letter_does_not_overtake_the_large_one_that_waits():
    mailbox = Mailbox(room_bytes=10)
    mailbox.deliver("a", letter(8))
    large, small = letter(8), letter(1)
    assert mailbox.deliver("a", large) is not None
    assert mailbox.deliver("a", small) is not None
    assert [taken(mailbox) for _ in range(3)][1:] == [large, small]


async def test_a_letter_larger_than_the_mailbox_is_let_in_alone():
    mailbox = Mailbox(room_bytes=10)
    assert mailbox.deliver("a", letter(50)) is None
    wait = mailbox.deliver("a", letter(60))
    taken(mailbox)
    assert wait is not None
    assert wait.done()


async def test_a_letter_withdrawn_while_it_waits_for_room_leaves_the_line():
    mailbox = Mailbox(room_bytes=10)
    kept, withdrawn, behind = letter(8), letter(8), letter(2)
    for one in (kept, withdrawn, behind):
        mailbox.deliver("a", one)
    mailbox.withdraw("a", withdrawn)
    assert mailbox.n_bytes == 10
    assert [taken(mailbox), taken(mailbox)] == [kept, behind]


async def test_who_has_a_letter_that_is_withdrawn_is_first_in_line_again():
    mailbox = Mailbox()
    first, second = (mailbox.getter("a", Kind.OBJECT) for _ in range(2))
    half = letter(10, is_whole=False)
    mailbox.deliver("a", half)
    waiting = asyncio.ensure_future(half.more_than(10))
    await asyncio.sleep(0)
    mailbox.withdraw("a", half)
    mailbox.withdraw("a", half)
    assert await waiting is False
    letters = [letter(), letter()]
    for one in letters:
        mailbox.deliver("a", one)
    assert first.result() is half
    assert half.getter is not None
    assert [half.getter.result(), second.result()] == letters


async def test_a_letter_that_was_received_whole_cannot_be_withdrawn():
    mailbox = Mailbox()
    getter = mailbox.getter("a", Kind.OBJECT)
    mailbox.deliver("a", letter())
    mailbox.withdraw("a", getter.result())
    following = letter()
    mailbox.deliver("a", following)
    assert not getter.result().is_withdrawn
    assert taken(mailbox) is following


async def test_what_comes_of_a_letter_is_told_step_by_step():
    half = letter(10, is_whole=False)
    steps = asyncio.ensure_future(half.more_than(0)), asyncio.ensure_future(half.more_than(4))
    half.arrived(4)
    assert await steps[0]
    assert not steps[1].done()
    half.arrived(10)
    assert await steps[1]
    assert half.is_whole


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
async def test_one_kind_that_lies_unclaimed_while_the_other_is_waited_for_is_a_mix_up(is_first):
    mailbox = Mailbox(mix_up_seconds=0.01)
    tensor = letter(8, kind=Kind.TENSOR)
    if is_first:
        mailbox.deliver("a", tensor)
    getter = mailbox.getter("a", Kind.OBJECT)
    if not is_first:
        mailbox.deliver("a", tensor)
    with pytest.raises(ClusterError, match=r"recv waits for a, but what came is one tensor of 8 bytes"):
        await asyncio.wait_for(getter, 5)
    assert mailbox.getter("a", Kind.TENSOR).result() is tensor


async def test_a_tensor_that_is_claimed_in_time_is_no_mix_up():
    mailbox = Mailbox(mix_up_seconds=0.02)
    getter = mailbox.getter("a", Kind.OBJECT)
    mailbox.deliver("a", letter(8, kind=Kind.TENSOR))
    mailbox.getter("a", Kind.TENSOR).result()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(getter), 0.1)
    getter.cancel()
