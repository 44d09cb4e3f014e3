"""Recordings that several processes write at once, and that survive their killing."""

import json
from pathlib import Path

from guessing import CountingGame, Games, play, scripted
from outrider.agent import ChatAgent
from outrider.core.chat import user
from outrider.core.event import EventKind
from outrider.policy.recording import open_recording, open_replay
from outrider.testing import eventually
from processes import line, output_of, program, tell

WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from guessing import Lines, scripted
from outrider.core.chat import user
from outrider.policy.recording import open_recording

async def main(path, name, n_calls, size):
    policy = await open_recording(scripted(Lines("x" * size)), path)
    print("ready", flush=True)
    sys.stdin.readline()
    print("going", flush=True)
    async with asyncio.TaskGroup() as group:
        for i in range(n_calls):
            group.create_task(policy.complete((user(str(i)),), session=f"{name}-{i}"))
    await policy.close()
    print("done", flush=True)

asyncio.run(main(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
"""
TESTS = str(Path(__file__).parent.parent)


def sessions(path: Path) -> list[str]:
    return [json.loads(line)["session"] for line in path.read_bytes().splitlines()]


def test_processes_share_a_recording_line_by_line(tmp_path: Path):
    path = tmp_path / "calls.jsonl"
    with (
        program(WRITER, TESTS, str(path), "a", "400", "9000") as one,
        program(WRITER, TESTS, str(path), "b", "400", "9000") as two,
    ):
        for process in (one, two):
            assert line(process) == "ready"
        for process in (one, two):
            tell(process)
        for process in (one, two):
            assert [line(process), line(process)] == ["going", "done"]
    assert sorted(sessions(path)) == sorted(f"{name}-{i}" for name in "ab" for i in range(400))


async def test_a_writer_killed_while_it_writes_harms_no_other(tmp_path: Path):
    path = tmp_path / "calls.jsonl"
    for i in range(3):
        size = path.stat().st_size if path.exists() else 0
        with program(WRITER, TESTS, str(path), f"killed{i}", "400", "50000") as process:
            assert line(process) == "ready"
            tell(process)

            async def has_grown(size: int = size) -> bool:
                return path.stat().st_size > size + 100_000

            await eventually(has_grown)
            process.kill()
    output_of(WRITER.replace("sys.stdin.readline()", ""), TESTS, str(path), "after", "50", "1000")
    policy = await open_replay(str(path))
    try:
        for i in range(50):
            completion = await policy.complete((user(str(i)),), session=f"after-{i}")
            assert completion.message.content == "x" * 1000
    finally:
        await policy.close()


async def test_a_run_is_replayed_without_the_model_answer_by_answer(tmp_path: Path):
    path = str(tmp_path / "calls.jsonl")
    noisy = await open_recording(scripted(p=0.5, seed=3), path)
    recorded = {}
    for i in range(6):
        played = await play(noisy, ChatAgent(max_turns=20), rollout_id=f"r{i}", seed=1)
        recorded[f"r{i}"] = [turn.data["reply"] for turn in played.of(EventKind.TURN)]
    await noisy.close()
    assert len({json.dumps(replies) for replies in recorded.values()}) > 1

    replay = await open_replay(path)
    for rollout_id in reversed(recorded):
        played = await play(replay, ChatAgent(max_turns=20), rollout_id=rollout_id, seed=1)
        assert [turn.data["reply"] for turn in played.of(EventKind.TURN)] == recorded[rollout_id]

    changed = {"guessing": Games(CountingGame)}
    played = await play(replay, rollout_id="r0", environments=changed)
    assert played.rollout.failure is not None
    assert "message 1 (system) differs" in played.rollout.failure.message
    await replay.close()
