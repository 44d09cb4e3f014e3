import random
from itertools import count

from outrider.pool.waiting import Ticket, WaitingLine

NUMBERS = count()


def ticket(run: str, n: int = 1) -> Ticket:
    return Ticket(number=next(NUMBERS), run=run, holder="", n=n, asked_at=0.0)


def serve_all(line: WaitingLine) -> list[Ticket]:
    served = []
    while (head := line.next) is not None:
        line.serve(head)
        served.append(head)
    return served


def test_runs_take_turns_and_within_a_run_the_first_is_served_first():
    line = WaitingLine()
    large = [ticket("large") for _ in range(5)]
    small = [ticket("small") for _ in range(2)]
    for one in [*large, *small]:
        line.join(one)
    assert serve_all(line) == [large[0], small[0], large[1], small[1], large[2], large[3], large[4]]


def test_a_run_that_asks_again_after_each_turn_gets_every_second_machine():
    line = WaitingLine()
    for _ in range(6):
        line.join(ticket("large"))
    line.join(ticket("small"))
    order = []
    for _ in range(6):
        head = line.next
        assert head is not None
        line.serve(head)
        order.append(head.run)
        if head.run == "small":
            line.join(ticket("small"))
    assert order == ["large", "small"] * 3


def test_a_ticket_that_leaves_does_not_cost_its_run_the_turn():
    line = WaitingLine()
    first, second, other = ticket("a"), ticket("a"), ticket("b")
    for one in (first, other, second):
        line.join(one)
    assert line.leave(first)
    assert not line.leave(first)
    assert line.next == second


def test_what_is_wanted_is_the_sum_of_all_tickets():
    line, rng = WaitingLine(), random.Random(1)
    waiting: list[Ticket] = []
    for _ in range(300):
        if waiting and rng.random() < 0.5:
            gone = waiting.pop(rng.randrange(len(waiting)))
            rng.choice([line.leave, line.serve])(gone)
        else:
            waiting.append(ticket(rng.choice("abc"), rng.randrange(1, 4)))
            line.join(waiting[-1])
        assert line.n_wanted == sum(one.n for one in waiting)
        assert len(line) == len(waiting)
        assert (line.next is None) == (not waiting)
