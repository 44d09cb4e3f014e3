import asyncio

from outrider.store.bell import Bell, Topic
from outrider.testing import FakeClock


async def test_a_ring_wakes_the_listeners_of_its_topic():
    clock = FakeClock()
    bell = Bell(clock)
    with bell.listening(Topic.QUEUE) as queue, bell.listening(Topic.ENDED) as ended, bell.listening(Topic.QUEUE) as two:
        waits = [asyncio.ensure_future(listener.wait(60)) for listener in (queue, ended, two)]
        await asyncio.sleep(0)
        bell.ring_here(Topic.QUEUE)
        await asyncio.sleep(0.001)
        assert [wait.done() for wait in waits] == [True, False, True]
        await clock.advance(60)
        await waits[1]


async def test_a_ring_before_the_wait_is_not_lost():
    bell = Bell(FakeClock())
    with bell.listening(Topic.QUEUE) as listener:
        bell.ring_here(Topic.QUEUE)
        await asyncio.wait_for(listener.wait(60), 10)


async def test_a_ring_is_heard_once():
    clock = FakeClock()
    bell = Bell(clock)
    with bell.listening(Topic.QUEUE) as listener:
        for _ in range(3):
            bell.ring_here(Topic.QUEUE)
        await asyncio.wait_for(listener.wait(60), 10)
        again = asyncio.ensure_future(listener.wait(60))
        await asyncio.sleep(0.001)
        assert not again.done()
        await clock.advance(60)
        await again


async def test_a_ring_between_two_waits_is_not_lost():
    bell = Bell(FakeClock())
    with bell.listening(Topic.QUEUE) as listener:
        wait = asyncio.ensure_future(listener.wait(60))
        await asyncio.sleep(0)
        bell.ring_here(Topic.QUEUE)
        await wait
        bell.ring_here(Topic.QUEUE)
        await asyncio.wait_for(listener.wait(60), 10)


async def test_a_cancelled_wait_leaves_no_timer():
    clock = FakeClock()
    bell = Bell(clock)
    with bell.listening(Topic.REVOKED) as listener:
        wait = asyncio.ensure_future(listener.wait(60))
        await asyncio.sleep(0)
        wait.cancel()
        await asyncio.wait([wait])
    assert clock.n_timers == 0
    bell.ring_here(Topic.REVOKED)


async def test_the_hooks_tell_the_first_and_the_last_listener():
    told = []

    class Told(Bell):
        def on_first_listener(self, topic: Topic) -> None:
            told.append(("first", topic))

        def on_last_listener(self, topic: Topic) -> None:
            told.append(("last", topic))

    bell = Told(FakeClock())
    with bell.listening(Topic.QUEUE), bell.listening(Topic.QUEUE):
        assert told == [("first", Topic.QUEUE)]
    assert told == [("first", Topic.QUEUE), ("last", Topic.QUEUE)]
