"""The limit of calls at once, decided from refusals and latency."""

from outrider.policy.openai.limit import ConcurrencyLimit


class Endpoint:
    """Answers rounds of as many calls as the limit allows, each taking as long as it is told."""

    def __init__(self, ceiling: int = 1000) -> None:
        self.limit = ConcurrencyLimit(ceiling)
        self.now = 1000.0

    def round(self, seconds: float = 1.0, *, is_saturated: bool = True) -> None:
        began = self.now
        self.now += seconds
        for _ in range(self.limit.limit):
            self.limit.succeeded(began_at=began, ended_at=self.now, is_saturated=is_saturated)

    def refuse(self, n: int = 1) -> None:
        began = self.now
        self.now += 0.1
        for _ in range(n):
            self.limit.refused(began_at=began, ended_at=self.now)


def test_the_limit_starts_at_32_and_never_above_the_ceiling():
    assert ConcurrencyLimit(1024).limit == 32
    assert ConcurrencyLimit(4).limit == 4
    assert ConcurrencyLimit(0).limit == 1


def test_it_doubles_with_each_round_of_saturated_answers_up_to_the_ceiling():
    endpoint = Endpoint(ceiling=200)
    seen = []
    for _ in range(4):
        endpoint.round()
        seen.append(endpoint.limit.limit)
    assert seen == [64, 128, 200, 200]


def test_it_does_not_grow_while_the_demand_is_below_it():
    endpoint = Endpoint()
    for _ in range(10):
        endpoint.round(is_saturated=False)
    assert endpoint.limit.limit == 32


def test_refusals_of_one_round_cut_it_once():
    endpoint = Endpoint()
    endpoint.refuse(n=30)
    assert endpoint.limit.limit == 22
    endpoint.refuse()
    assert endpoint.limit.limit == 15


def test_after_a_refusal_it_grows_by_one_a_round():
    endpoint = Endpoint()
    endpoint.refuse()
    for _ in range(5):
        endpoint.round()
    assert 26 <= endpoint.limit.limit <= 27


def test_refusals_bring_it_down_to_one_and_no_further():
    endpoint = Endpoint()
    for _ in range(50):
        endpoint.refuse()
    assert endpoint.limit.limit == 1
    endpoint.round()
    assert endpoint.limit.limit == 2


def test_answers_far_slower_than_the_fastest_hold_the_growth():
    endpoint = Endpoint()
    endpoint.round(seconds=1.0)
    endpoint.round(seconds=5.0)
    before = endpoint.limit.limit
    for _ in range(5):
        endpoint.round(seconds=5.0)
    assert endpoint.limit.limit == before


def test_answers_very_much_slower_cut_it_but_not_below_its_start():
    endpoint = Endpoint()
    for _ in range(4):
        endpoint.round(seconds=1.0)
    before = endpoint.limit.limit
    endpoint.round(seconds=20.0)
    endpoint.round(seconds=20.0)
    assert endpoint.limit.limit < before
    for _ in range(60):
        endpoint.round(seconds=1000.0)
    assert endpoint.limit.limit == 32


def test_a_limit_below_its_start_is_not_raised_by_slow_answers():
    endpoint = Endpoint()
    endpoint.round(seconds=0.001)
    for _ in range(20):
        endpoint.refuse()
    before = endpoint.limit.limit
    assert before < 32
    endpoint.round(seconds=100.0)
    assert endpoint.limit.limit <= before


def test_a_workload_of_longer_answers_becomes_the_new_normal():
    endpoint = Endpoint()
    endpoint.round(seconds=1.0)
    for _ in range(5):
        endpoint.round(seconds=5.0)
    held = endpoint.limit.limit
    for _ in range(20):
        endpoint.round(seconds=5.0)
    assert endpoint.limit.limit > held
