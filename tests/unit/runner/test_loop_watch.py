"""The watch that workers on one event loop share."""

import asyncio
import gc
import weakref

from outrider.runner.loop_watch import LoopWatch


def test_workers_on_a_loop_share_one_watch_which_does_not_keep_the_loop():
    async def work() -> None:
        watch = LoopWatch.shared(60.0)
        assert LoopWatch.shared(60.0) is watch
        assert LoopWatch.shared(1.0) is not watch
        with watch.of(lambda _: None), watch.of(lambda _: None):
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(work())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
