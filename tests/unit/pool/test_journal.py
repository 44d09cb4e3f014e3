import asyncio

import pytest

from outrider.core.clock import utc
from outrider.core.errors import MachineError
from outrider.core.machine import MachineMove, MachineRecord, MachineState
from outrider.pool.journal import JournalWriter
from outrider.testing import LoopClock, run_virtual
from outrider.testing.fake_machines import MemoryJournal


def record(number: int) -> MachineRecord:
    at = utc(float(number))
    return MachineRecord(
        machine_id="m", pool="p", provider="fake", state=MachineState.READY, epoch=number, created_at=at, moved_at=at
    )


def move(number: int) -> MachineMove:
    return MachineMove(
        machine_id="m", pool="p", before=None, state=MachineState.READY, epoch=number, holder=None, reason="",
        seconds=0.0, at=utc(float(number)),
    )  # fmt: skip


async def opened(journal: MemoryJournal, lost: list[str]) -> tuple[JournalWriter, asyncio.Task[None]]:
    writer = JournalWriter(journal, "p", await journal.open_pool("p"), LoopClock(), lost.append)
    return writer, asyncio.create_task(writer.run())


def test_what_comes_during_a_write_is_written_together_in_order():
    async def test():
        journal = MemoryJournal()
        journal.seconds = 1.0
        writer, task = await opened(journal, [])
        for number in range(5):
            writer.add([record(number)], [move(number)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await writer.flushed()
        assert asyncio.get_running_loop().time() == 2.0
        assert journal.n_writes == 2
        assert [one.epoch for one in journal.moves] == [0, 1, 2, 3, 4]
        assert journal.records["m"].epoch == 4
        await writer.flushed()
        task.cancel()

    run_virtual(test())


def test_a_write_whose_answer_was_lost_is_repeated_and_counts_once():
    class LosesAnswers(MemoryJournal):
        n_lost = 2

        async def write_machines(self, *args):
            await super().write_machines(*args)
            if self.n_lost:
                self.n_lost -= 1
                await asyncio.sleep(1000)

    async def test():
        journal = LosesAnswers()
        writer, task = await opened(journal, [])
        writer.add([record(1)], [move(1)])
        await writer.flushed()
        writer.add([record(2)], [move(2)])
        await writer.flushed()
        assert [one.epoch for one in journal.moves] == [1, 2]
        task.cancel()

    run_virtual(test())


def test_a_waiter_for_the_journal_is_told_when_the_pool_was_taken_over():
    async def test():
        journal, lost = MemoryJournal(), []
        journal.seconds = 1.0
        writer, task = await opened(journal, lost)
        writer.add([record(1)], [move(1)])
        await asyncio.sleep(0.5)
        await journal.open_pool("p")
        for _ in range(2):
            with pytest.raises(MachineError, match="belongs to another process"):
                await writer.flushed()
        await task
        assert len(lost) == 1
        assert journal.moves == []

    run_virtual(test())
