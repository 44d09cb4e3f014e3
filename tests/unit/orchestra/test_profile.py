"""Figures of teams: where the time goes, in bounded memory, as text and as JSON."""

import logging
import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.chat import Message, user
from outrider.env import Environment, Observation, Step
from outrider.env.adapter import ClassEnvironments
from outrider.orchestra import Agent, Orchestra, Performance, Team, TeamStatistics
from outrider.orchestra.profile import MAX_LINKS, N_SLOWEST, Profile, Span, critical_path
from outrider.orchestra.report import HEADINGS, line, rows, table
from outrider.testing import LoopClock, run_virtual
from playing import Speaker, critics

START = 1_700_000_000.0


def span(agent: str, began: float, ended: float, *, call_id: str = "", **facts: object) -> Span:
    """With times counted from the sample's beginning."""
    name = call_id or agent
    return Span(agent=agent, call_id=name, began_at=START + began, ended_at=START + ended, **facts)  # type: ignore[arg-type]


def path_of(spans: Sequence[Span]) -> list[tuple[str, float]]:
    return [(found.call_id or "tool", round(seconds, 3)) for found, seconds in critical_path(spans)]


def test_the_critical_path_goes_back_from_the_end_to_what_ended_last():
    spans = [
        span("info", 0, 1),
        span("plan", 0, 3),
        span("act", 3.5, 5),
        span("", 5, 5.25),
        span("late", 3.5, 4),
        span("judge", 5.5, 6),
    ]
    expected = [("plan", 3.0), ("act", 1.5), ("tool", 0.25), ("judge", 0.5)]
    assert path_of(spans) == expected
    assert path_of(spans[::-1]) == expected


def test_of_those_that_end_together_the_longest_was_waited_for():
    spans = [span("short", 2, 3), span("long", 0, 3), span("shorter", 2.5, 3)]
    assert path_of(spans) == path_of(spans[::-1]) == [("long", 3.0)]


def test_times_that_overlap_by_a_rounding_do_not_break_the_path():
    spans = [span("a", 0, 1.0000003), span("b", 1, 2.0004), span("c", 2, 3), span("beside", 2, 2.9)]
    assert path_of(spans) == [("a", 1.0), ("b", 1.0), ("c", 1.0)]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=40))
def test_a_path_has_no_overlaps_and_is_never_longer_than_the_sample(times: list[tuple[float, float]]):
    spans = [span("a", began, began + seconds, call_id=str(n)) for n, (began, seconds) in enumerate(times)]
    path = critical_path(spans)
    assert all(seconds > 0 for _, seconds in path)
    for (before, _), (after, seconds) in pairwise(path):
        assert before.began_at < after.began_at
        assert seconds <= after.seconds
    if spans:
        wall = max(each.ended_at for each in spans) - min(each.began_at for each in spans)
        assert sum(seconds for _, seconds in path) <= wall + 1e-6


def test_each_agent_has_its_calls_tokens_times_and_share():
    profile = Profile(["search", "critic", "idle"])
    for seconds in range(1, 101):
        profile.add(
            [
                span("search", 0, seconds, queue_seconds=0.25, model_seconds=seconds - 0.25, completion_tokens=10),
                span("critic", 0, 0.5, model_seconds=0.5, completion_tokens=3, used=False),
                span("", seconds, 1.5 * seconds),
                span("critic", 2 * seconds, 2.5 * seconds, parse_seconds=0.5 * seconds, completion_tokens=1),
            ]
        )
    found = profile.statistics()
    search, critic, idle = found.agents
    assert (found.n_samples, found.n_calls, found.n_wasted) == (100, 300, 100)
    assert (found.completion_tokens, found.wasted_tokens, found.wasted_seconds) == (1400, 300, 50.0)
    assert (critic.n_calls, critic.n_wasted, critic.completion_tokens, critic.wasted_tokens) == (200, 100, 400, 300)
    assert (search.queue.sum, search.queue.p95, search.model.sum) == (25.0, 0.25, 5025.0)
    assert search.total.mean == pytest.approx(50.5)
    assert search.total.p50 == pytest.approx(50, rel=0.02)
    assert search.total.p95 == pytest.approx(95, rel=0.02)
    assert (idle.n_calls, idle.critical_share, idle.total.p95) == (0, 0.0, 0.0)
    assert (found.tools.n_calls, found.tools.total.sum) == (100, 2525.0)
    shares = [search.critical_share, critic.critical_share, found.tools.critical_share, found.own_share]
    assert shares == pytest.approx([0.4, 0.2, 0.2, 0.2])


def test_only_the_slowest_samples_are_told_one_by_one():
    profile = Profile(["a"])
    order = list(range(1, 1001))
    random.Random(1).shuffle(order)
    for seconds in order:
        profile.add([span("a", 0, seconds), span("a", 0, 0.5, used=False)], sample=f"q{seconds}:0")
    slowest = profile.statistics().slowest
    assert [sample.sample for sample in slowest] == [f"q{1000 - n}:0" for n in range(N_SLOWEST)]
    assert (slowest[0].wall_seconds, slowest[0].wasted_seconds, slowest[0].n_calls) == (1000.0, 0.5, 2)
    assert [(link.agent, link.began, link.seconds) for link in slowest[0].path] == [("a", 0.0, 1000.0)]


def test_of_samples_that_took_as_long_the_first_are_kept():
    profile = Profile(["a"])
    for number in range(20):
        profile.add([span("a", 0, 1)], sample=str(number))
    assert [sample.sample for sample in profile.statistics().slowest] == [str(number) for number in range(N_SLOWEST)]


def test_memory_is_bounded_however_many_calls_and_samples_there_are():
    profile = Profile(["a"])
    draw = random.Random(2)
    for _ in range(30):
        at, spans = 0.0, []
        for number in range(MAX_LINKS * 3):
            seconds = draw.lognormvariate(0, 3)
            spans.append(span("a", at, at + seconds, model_seconds=seconds, call_id=str(number)))
            at += seconds
        profile.add(spans)
    found = profile.statistics()
    assert [len(sample.path) for sample in found.slowest] == [MAX_LINKS] * N_SLOWEST
    begins = [link.began for link in found.slowest[0].path]
    assert begins == sorted(begins)
    assert len(list(profile._agents["a"].model.buckets())) < 2_000


def test_a_sample_without_calls_and_a_clock_that_goes_back_count_and_break_nothing():
    profile = Profile(["a"])
    profile.add([])
    profile.add([span("a", 1, 0.5, parse_seconds=-0.5)])
    found = profile.statistics()
    assert (found.n_samples, found.n_calls, found.wall.sum, found.own_share, found.slowest) == (2, 1, 0.0, 0.0, ())
    assert "2 samples, 0 s each" in table(found)


def test_statistics_go_through_json():
    profile = Profile(["a", "b"])
    profile.add([span("a", 0, 1), span("", 1, 2)], sample="q:0")
    found = profile.statistics()
    assert msgspec.json.decode(msgspec.json.encode(found), type=TeamStatistics) == found


def test_the_table_has_a_line_for_each_agent_the_tools_and_the_rest():
    profile = Profile(["search", "a very patient critic"])
    profile.add([span("search", 0, 2, model_seconds=2.0, completion_tokens=1234), span("", 2.5, 3)])
    found = profile.statistics()
    head, names, *lines = str(found).splitlines()
    assert head == "3.000 s; 1 calls, none wasted"
    assert len({len(row) for row in (names, *lines)}) == 1
    assert [row.split("  ")[0] for row in lines] == ["search", "a very patient critic", "tools", "own time"]
    cells = dict(zip(HEADINGS, next(iter(rows(found))), strict=True))
    assert (cells["calls"], cells["tokens"], cells["model s"], cells["share"]) == ("1", "1,234", "2.000", "67%")
    assert lines[-1].split() == ["own", "time", "0.500", "17%"]


def test_a_line_goes_to_the_log_after_every_n_samples(caplog: pytest.LogCaptureFixture):
    speaker = Speaker(lambda prompt, _: "<critic>approve</critic>" if prompt.startswith("Judge") else "found")

    async def play() -> TeamStatistics:
        result = await critics(print_every=4).run(
            [f"q{n}" for n in range(10)], policy=speaker, window=1, clock=LoopClock()
        )
        return result.statistics

    with caplog.at_level(logging.INFO, logger="outrider.orchestra"):
        found = run_virtual(play(), limit_seconds=100)
    said = [record.getMessage() for record in caplog.records if record.name == "outrider.orchestra"]
    assert [text.split(",")[0] for text in said] == ["4 samples", "8 samples"]
    assert "search 0% (10 at 0 s) · critic 0% (10 at 0 s) · own time 0%" in line(found)


def test_a_team_tells_what_it_waited_for_what_it_wasted_and_which_samples_were_slow():
    async def program(team: Team) -> str:
        await team.gather("quick", "slow")
        for _ in team.rounds(2):
            team.approve(True)
            await team.call("again")
        return "done"

    async def play() -> TeamStatistics:
        seconds = {"quick": 1.0, "slow": 4.0, "again": 2.0}
        speaker = Speaker(lambda *_: "two words")
        speaker._seconds = lambda n: seconds[speaker.prompts[n - 1].split()[0]]
        agents = [Agent(name=name, prompt=f"{name} {{question}}") for name in seconds]
        team = Orchestra(agents, program, performance=Performance(enable_early_termination=False))
        await team.run(["a", "b"], policy=speaker, clock=LoopClock())
        return team.stats()

    found = run_virtual(play(), limit_seconds=100)
    quick, slow, again = found.agents
    assert (found.n_samples, found.n_calls, found.n_wasted, found.wasted_tokens) == (2, 8, 2, 4)
    assert (quick.critical_seconds, slow.critical_share, again.critical_share) == pytest.approx((0.0, 0.5, 0.5))
    assert {sample.sample for sample in found.slowest} == {"0:0", "1:0"}
    assert [link.agent for link in found.slowest[0].path] == ["slow", "again", "again"]


def test_samples_that_wait_for_each_other_wait_in_line():
    async def program(team: Team) -> str:
        await team.call("uneven")
        return (await team.call("even")).text

    async def play(*, together: bool) -> TeamStatistics:
        seconds = iter([1.0, 3.0, 1.0, 1.0])
        agents = [Agent(name=name, prompt="{question}") for name in ("uneven", "even")]
        team = Orchestra(agents, program, performance=Performance(batch_synchronous=together))
        await team.run(["a", "b"], policy=Speaker(lambda *_: "ok", lambda _: next(seconds)), clock=LoopClock())
        return team.stats()

    uneven, even = run_virtual(play(together=True), limit_seconds=100).agents
    assert (uneven.queue.sum, even.queue.sum, even.model.sum) == pytest.approx((0.0, 2.0, 2.0))
    uneven, even = run_virtual(play(together=False), limit_seconds=100).agents
    assert (uneven.queue.sum, even.queue.sum, even.model.sum) == pytest.approx((0.0, 0.0, 2.0))


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forward", "back"])
def test_a_jump_of_the_wall_clock_changes_no_time(jump: float):
    """The clock jumps while the model answers, while its answer is read, and while the environment acts."""
    clock = LoopClock()

    def says(*_: object) -> str:
        clock.jump(jump)
        return "ok"

    def read(text: str) -> str:
        clock.jump(jump)
        return text

    class Room(Environment):
        async def reset(self, seed: int | None = None) -> Observation:
            return (user("a room"),)

        async def step(self, action: Message) -> Step:
            clock.jump(jump)
            return Step()

    async def program(team: Team) -> str:
        await team.act((await team.call("a")).text)
        await team.first("a", "slow", accept=lambda _: True)
        return "done"

    async def play() -> TeamStatistics:
        agents = [Agent(name="a", prompt="{question}", parse=read), Agent(name="slow", prompt="{question}")]
        speaker = Speaker(says, lambda n: 2.0 if n < 3 else 10.0)
        rooms = ClassEnvironments(Room, name="rooms", config={})
        result = await Orchestra(agents, program).run(["x"], policy=speaker, environments=rooms, clock=clock)
        return result.statistics

    found = run_virtual(play(), limit_seconds=100)
    a, slow = found.agents
    assert found.wall.sum == pytest.approx(4.0)
    assert (a.critical_seconds, a.model.sum, a.queue.sum, a.parse.sum) == pytest.approx((4.0, 4.0, 0.0, 0.0))
    assert (found.tools.total.sum, slow.wasted_seconds) == pytest.approx((0.0, 2.0))
