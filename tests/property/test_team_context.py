"""Whatever a team said and whoever reads it: a view fits, shows what its rule says, and hides nothing silently."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.orchestra.context import Entry, Eviction, TeamContext, View

Count = Callable[[str], int]
NAMES = ("a", "b", "planner")
COUNTS: tuple[Count, ...] = (len, lambda text: len(text.split()), lambda text: -(-len(text) // 4), lambda text: 1)
names = st.sampled_from(NAMES)
counts = st.sampled_from(COUNTS)
everybody = st.none()
some = everybody | st.frozensets(names)
evictions = st.sampled_from(Eviction)


@st.composite
def contexts(draw: st.DrawFn, count: Count, visible_to: st.SearchStrategy[frozenset[str] | None]) -> TeamContext:
    made = TeamContext()
    for number in range(draw(st.sampled_from([5, 3, 8, 1, 0]))):
        text = draw(st.text("x \n", max_size=12))
        made.append(
            Entry(
                author=draw(names),
                round=number // 3,
                text=text,
                n_tokens=count(text),
                call_id=str(number),
                visible_to=draw(visible_to),
            )
        )
    return made


@st.composite
def asked(draw: st.DrawFn, seen: st.SearchStrategy[frozenset[str] | None] = some) -> tuple[TeamContext, dict[str, Any]]:
    """A context and how it is viewed. Budgets lie between less than nothing and more than all, or there is none."""
    count = draw(counts)
    context = draw(contexts(count, seen))
    request = {"reader": draw(names), "reads": draw(seen), "eviction": draw(evictions), "count": count}
    percent = draw(st.sampled_from([50, *range(-10, 120, 10)]))
    budget = context.view(**request).n_tokens * percent // 100
    return context, request | {"budget": budget if percent < 110 else None}


def numbers(entries: tuple[Entry, ...]) -> list[int]:
    return [int(entry.call_id) for entry in entries]


@given(asked())
def test_a_view_is_never_over_its_budget(case):
    context, request = case
    view: View = context.view(**request)
    assert request["count"](view.text) <= view.n_tokens or not view.entries
    if request["budget"] is None:
        assert view.dropped == ()
    elif view.entries:
        assert view.n_tokens <= request["budget"]
    else:
        assert (view.text, view.n_tokens) == ("", 0)


@given(asked())
def test_what_is_kept_and_what_is_dropped_is_all_that_is_visible(case):
    context, request = case
    view: View = context.view(**request)
    assert numbers(view.entries) == sorted(numbers(view.entries))
    assert numbers(view.dropped) == sorted(numbers(view.dropped))
    reader, reads = request["reader"], request["reads"]
    expected = [
        number
        for number, entry in enumerate(context)
        if (reads is None or entry.author in reads)
        and (reader == entry.author or entry.visible_to is None or reader in entry.visible_to)
    ]
    assert sorted(numbers(view.entries) + numbers(view.dropped)) == expected
    assert view.text == "\n\n".join(f"[{each.author}, round {each.round + 1}]\n{each.text}" for each in view.entries)


@given(asked(), st.integers(0, 60))
def test_more_budget_never_shows_less(case, more: int):
    context, request = case
    view = context.view(**request)
    if request["budget"] is not None:
        wider = context.view(**request | {"budget": request["budget"] + more})
        assert set(numbers(view.entries)) <= set(numbers(wider.entries))
    assert set(numbers(view.entries)) <= set(numbers(context.view(**request | {"budget": None}).entries))


@given(asked(), st.lists(st.tuples(names, some, st.none() | st.integers(-1, 200), evictions), max_size=4))
def test_a_view_is_the_same_whatever_others_read(case, others):
    context, request = case
    before = context.view(**request)
    for reader, reads, budget, eviction in others:
        context.view(reader, reads=reads, budget=budget, eviction=eviction, count=request["count"])
    assert context.view(**request) == before


def goes_before(eviction: Eviction, one: Entry, other: Entry, newest: dict[str, str]) -> bool:
    """Whether the rule lets `one` go before `other`, said without sorting."""
    older = int(one.call_id) < int(other.call_id)
    if eviction is Eviction.OLDEST:
        return older
    if eviction is Eviction.LONGEST:
        return one.n_tokens > other.n_tokens or (one.n_tokens == other.n_tokens and older)
    followed_up, other_followed_up = (newest[each.author] != each.call_id for each in (one, other))
    return (followed_up and not other_followed_up) or (followed_up == other_followed_up and older)


@pytest.mark.parametrize("eviction", Eviction)
@given(case=asked(seen=everybody))
def test_each_eviction_keeps_its_rule_and_drops_no_more_than_it_must(eviction: Eviction, case):
    context, request = case
    request |= {"eviction": eviction}
    view: View = context.view(**request)
    visible = context.visible(request["reader"], reads=request["reads"])
    newest = {entry.author: entry.call_id for entry in visible}
    count = request["count"]
    for gone in view.dropped:
        assert all(goes_before(eviction, gone, stays, newest) for stays in view.entries)
    last = [one for one in view.dropped if all(one is x or goes_before(eviction, x, one, newest) for x in view.dropped)]
    assert len(last) == bool(view.dropped)
    for one in last:
        with_it = sum(count(each.heading) + each.n_tokens for each in (*view.entries, one))
        assert with_it + count("\n\n") * len(view.entries) > request["budget"], "it need not have gone"
