"""What a run shows: rates over the last seconds, lines that fit the size of the run."""

import pytest

from outrider.cli.run_view import Pace, PlainRunView, Progressing, progress_text, rates_text
from outrider.runner.meter import Reading


def moment(at: float, n_ended: int, *, calls: int = 0, tokens: int = 0, n_total: int = 100) -> Progressing:
    return Progressing(
        at=at,
        n_total=n_total,
        n_ended=n_ended,
        n_running=3,
        n_failed=1,
        n_retries=2,
        mean_reward=0.5,
        reading=Reading(calls=calls, prompt_tokens=tokens),
    )


def test_rates_are_those_of_the_last_seconds_not_of_the_whole_run():
    pace = Pace(window_seconds=10)
    assert pace.add(moment(0, 0)).rollouts == 0
    assert pace.add(moment(10, 10, calls=50, tokens=1000)).rollouts == pytest.approx(1.0)
    rates = pace.add(moment(20, 40, calls=250, tokens=2000))
    assert (rates.rollouts, rates.calls, rates.tokens) == (
        pytest.approx(3.0),
        pytest.approx(20.0),
        pytest.approx(100.0),
    )


def test_rates_begin_anew_when_the_wall_clock_goes_back():
    pace = Pace(window_seconds=10)
    pace.add(moment(5000, 10))
    assert pace.add(moment(1400, 11)).rollouts == 0
    assert pace.add(moment(1402, 15)).rollouts == pytest.approx(2.0)


def test_a_line_tells_counts_and_rates():
    pace = Pace()
    pace.add(moment(0, 0))
    now = moment(10, 20)
    assert rates_text(pace.add(now)) == "2.0 rollouts/s, 0.0 calls/s, 0 tokens/s"
    assert progress_text(now) == "3 running, 1 failed, 2 retried, mean score 0.500"


def test_a_plain_view_of_a_long_run_says_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]):
    view = PlainRunView()
    for second in range(12):
        view.update(moment(float(second), second * 10, n_total=1000))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["50/1000", "100/1000"]
    assert [line.rpartition("; ")[2] for line in lines] == ["about 1 min 33 s left", "about 1 min 29 s left"]
