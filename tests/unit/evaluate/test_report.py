"""The report's Markdown and picture."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.status import RolloutStatus
from outrider.evaluate.plot import axis_ticks, count_text, plot, score_rows, seconds_text
from outrider.evaluate.report import markdown
from outrider.evaluate.results import FailureLine, ResultLine
from outrider.evaluate.summary import Scoreboard, Summary

HOSTILE = 'a|b <script>alert(1)</script> [x](y) `c` *d* "e'


def line(number: int, *, reward: float | None = 1.0, level: str = "1", side: str | None = None) -> ResultLine:
    return ResultLine(
        rollout_id=f"run/{number}",
        task_id=str(number),
        status=RolloutStatus.SUCCEEDED if side is None else RolloutStatus.FAILED,
        reward=reward,
        seconds=1.0 + number,
        n_turns=2,
        prompt_tokens=100 * number,
        kinds={"level": level},
        tag="math",
        failure=None
        if side is None
        else FailureLine(boundary=side, kind="X", message="", infrastructure=side != "agent"),
    )


def board(*lines: ResultLine) -> Summary:
    scores = Scoreboard()
    for result in lines:
        scores.add(result)
    return scores.summary()


MIXED = board(
    *(line(n, reward=float(n % 2), level=str(n % 3)) for n in range(12)),
    line(12, reward=None, side="policy"),
    line(13, reward=None, side="agent"),
    line(14, reward=None),
)


def test_the_report_shows_both_denominators_and_what_has_no_score():
    text = markdown(MIXED, run="math-1", facts={"model": "m"})
    assert "# math-1" in text
    assert "| rollouts | 12 | 15 |" in text
    assert "3 of 15 rollouts have no score: 2 failed (1 policy, 1 agent), 1 ended without one." in text
    assert "| policy | infrastructure | 1 |" in text
    assert "| agent | the agent's | 1 |" in text
    assert "## By level" in text
    assert "## By tag" not in text
    assert "](plot.svg)" in text
    assert "(14 of 15 tasks)" in text
    assert "| model | m |" in text


def test_names_out_of_files_cannot_break_the_tables_or_bring_markup():
    summary = board(line(1, level=HOSTILE), line(2, level="plain"))
    text = markdown(summary, run=HOSTILE, facts={HOSTILE: HOSTILE + "\nnext"})
    assert "<script>" not in text.replace("\\<", "")
    heading, _, first, *_ = text[text.index("| level |") :].splitlines()
    assert first.replace("\\|", "").count("|") == heading.count("|")


@pytest.mark.parametrize(
    "summary", [MIXED, board(), board(line(1)), board(line(1, level=HOSTILE), line(2, reward=-3.5))]
)
def test_the_picture_is_well_formed_whatever_was_counted(summary: Summary):
    root = ET.fromstring(plot(summary))
    assert root.tag.endswith("svg")
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    for element in root.iter():
        if element.tag.endswith("rect") and "x" in element.attrib:
            assert float(element.attrib["width"]) > 0
            assert 0 <= float(element.attrib["x"]) <= 960


def test_a_report_of_nothing_can_be_written():
    text = markdown(board(), run="empty", facts={})
    assert "No score" in text


def test_rows_are_all_first_then_each_group():
    assert [name for name, _, _ in score_rows(MIXED)] == ["all", "level 0", "level 1", "level 2"]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_enclose_the_span_and_are_few(low: float, width: float):
    ticks = axis_ticks(low, low + width)
    slack = width * 1e-6
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + width - slack
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4.2 ms"), (1.234, "1.23 s"), (65, "1 min 5 s"), (3599.9, "60 min 0 s"), (9000, "2.5 h")],
)
def test_times_are_written_for_people(seconds: float, text: str):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (950, "950"), (1234, "1.23k"), (4_560_000, "4.56M")])
def test_counts_are_written_for_people(number: float, text: str):
    assert count_text(number) == text
