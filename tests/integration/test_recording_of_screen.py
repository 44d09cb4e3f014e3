"""Recordings of the screen and other artifacts: from the episode through the store to a browser and to files."""

import asyncio
import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from guessing import Games, GuessingGame, Lines, memory, play, scripted
from local_computer import LocalComputer
from osworld_episodes import boarded, call, calling, rules, step, task
from outrider import Runner, Store, open_store
from outrider.agent import ChatAgent, EpisodeKit
from outrider.cli import cli
from outrider.core.animation import MEDIA_TYPE
from outrider.core.artifact import Artifact, artifact_of
from outrider.core.chat import Message, assistant
from outrider.core.errors import InvalidInput
from outrider.core.event import EventKind, RecordedEvent
from outrider.core.status import RolloutStatus
from outrider.core.task import Task
from outrider.core.turn import step_of
from outrider.env.osworld import ObservationType, OsworldConfig, OsworldEnvironment
from outrider.env.protocol import Environment
from outrider.env.templates import TemplatedEnvironment
from outrider.evaluate.artifacts import file_name, files_of
from outrider.evaluate.markup import MAX_IMAGE_BYTES
from outrider.evaluate.page import PageLimits, write_page
from outrider.pool.computer import Computer
from outrider.pool.providers.desktop import DesktopProvider
from outrider.train.samples import samples_of

CLICKS = (calling(call("CLICK", x=5, y=5)), calling(call("CLICK", x=9, y=9)), calling(call("DONE")))
MOVING = OsworldConfig(settle_seconds=20, settle_interval=0.001)


def n_frames(file: bytes) -> int:
    """As the file itself tells."""
    at = file.index(b"acTL") + 4
    return int.from_bytes(file[at : at + 4])


def pixels(picture: bytes) -> bytes:
    """The packed pixels of a plain PNG."""
    at = picture.index(b"IDAT")
    return picture[at + 4 : at + 4 + int.from_bytes(picture[at - 4 : at])]


async def run_episode(store: Store, env: Environment, *said: Message, rollout_id: str = "run/t1:0") -> RolloutStatus:
    kit = EpisodeKit(policy=scripted(Lines(*said)), environments={"x": Games(lambda _: env)}, agent=ChatAgent())
    runner = Runner(store, episodes=kit.episodes)
    done = await runner.step({"question": ""}, tag="x", rollout_id=rollout_id, metadata={"run": "run"})
    return done.status


async def artifacts(store: Store, rollout_id: str = "run/t1:0") -> list[Artifact]:
    found = await store.query_events(rollout_id, kind=EventKind.ARTIFACT)
    return [artifact for event in found if (artifact := artifact_of(event)) is not None]


@pytest.fixture
def moving(tmp_path: Path) -> LocalComputer:
    """Three more pictures after each input until its screen is at rest."""
    return LocalComputer(tmp_path / "machine", n_frames=3)


async def test_an_episode_leaves_all_that_was_seen_of_its_screen(moving):
    env = TemplatedEnvironment(boarded(task(), moving, MOVING), None, "{observation}")
    async with memory() as store:
        assert await run_episode(store, env, *CLICKS) is RolloutStatus.SUCCEEDED
        (recording,) = await artifacts(store)
        steps = [step_of(event) for event in await store.query_events("run/t1:0", kind=EventKind.STEP)]
    assert (recording.name, recording.media_type) == ("recording.png", MEDIA_TYPE)
    assert n_frames(recording.data) == 1 + 4 + 4
    seen = [image.data for one in steps for message in one.observation for image in message.images]
    assert len(seen) == 3
    assert all(pixels(picture) in recording.data for picture in seen)


async def test_a_failed_episode_leaves_its_recording_too(moving):
    async with memory() as store:
        env = boarded(task(), moving, MOVING)
        moving.fail("input")
        assert await run_episode(store, env, *CLICKS) is RolloutStatus.FAILED
        (recording,) = await artifacts(store)
    assert n_frames(recording.data) >= 1


async def recorded(folder: Path, **settings: Any) -> tuple[tuple[Artifact, ...], list[bytes]]:
    """What an episode leaves, and what its agent was shown."""
    config = OsworldConfig(settle_seconds=20, settle_interval=0.001, **settings)
    env = boarded(task(), LocalComputer(folder, n_frames=3), config)
    observations = [await env.reset(), *[(await env.step(action)).observation for action in CLICKS]]
    shown = [image.data for messages in observations for message in messages for image in message.images]
    return env.artifacts(), shown


async def test_a_recording_is_bounded_and_keeps_the_ends_of_steps(tmp_path):
    (whole,), _ = await recorded(tmp_path / "whole")
    limit = len(whole.data) // 2
    (small,), shown = await recorded(tmp_path / "small", max_recording_bytes=limit)
    assert len(small.data) <= limit
    assert n_frames(small.data) < n_frames(whole.data)
    assert all(pixels(picture) in small.data for picture in shown)


async def test_nothing_is_left_where_nothing_is_recorded(tmp_path):
    assert (await recorded(tmp_path / "off", recording=False))[0] == ()
    assert (await recorded(tmp_path / "tiny", max_recording_bytes=10))[0] == ()
    no_screen = OsworldConfig(observation_type=ObservationType.TERMINAL, settle_seconds=0)
    env = boarded(task(), LocalComputer(tmp_path / "none", (0, 0)), no_screen)
    await env.reset()
    assert env.artifacts() == ()


async def test_what_is_trained_on_is_the_same_with_a_recording_and_without(moving):
    async with memory() as store:
        await run_episode(store, boarded(task(), moving, MOVING), *CLICKS)
        events = list(await store.query_events("run/t1:0"))
    said = [event for event in events if event.kind is not EventKind.ARTIFACT]
    assert len(said) == len(events) - 1
    with_it, without = samples_of(events), samples_of(said)
    assert [sample.text for sample in with_it] == [sample.text for sample in without] != []


class Hoarding(GuessingGame):
    """Leaves what it is told to."""

    left: tuple[Any, ...] = ()

    def artifacts(self) -> tuple[Artifact, ...]:
        if not self.left:
            raise OSError("nothing to leave")
        return self.left


async def test_artifacts_that_cannot_be_had_change_no_result():
    games = Games(Hoarding)
    played = await play(scripted(), environments={"guessing": games})
    assert played.rollout.status is RolloutStatus.SUCCEEDED
    assert [game.closed for game in games.made] == [True]
    assert ["close failed" in event.name for event in played.of(EventKind.LOG)] == [True]


async def test_files_are_named_by_steps_and_go_nowhere_else(moving):
    env = boarded(task(), moving, MOVING)
    async with memory() as store:
        await run_episode(store, env, *CLICKS)
        events = list(await store.query_events("run/t1:0"))
    other = [event for event in events if event.kind is EventKind.ARTIFACT]
    renamed = [_named(event, name) for event in other for name in ("../up", "..", "", "recording.png", "a\ud800")]
    names = [name for name, _ in files_of([*events, *renamed])]
    assert names[:4] == ["step_0.png", "step_1.png", "step_2.png", "recording.png"]
    assert names[4:] == ["%2E.%2Fup", "%2E.", "%", "recording_2.png", "a%3F"]
    assert file_name("q1:0") == "q1%3A0"


def _named(event: RecordedEvent, name: str) -> RecordedEvent:
    return RecordedEvent(**{**{field: getattr(event, field) for field in event.__struct_fields__}, "name": name})


@pytest.fixture
def recorded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """The recording of an episode on a real desktop, which is in the store of the folder we are in."""
    monkeypatch.chdir(tmp_path)
    try:
        return asyncio.run(_recorded(DesktopProvider(width=640, height=400)))
    except InvalidInput as exc:
        pytest.skip(str(exc))


async def _recorded(provider: DesktopProvider) -> Artifact:
    await provider.check(1)
    machine = await provider.create("m1", "the recording's test")
    try:
        async with open_store("sqlite:///store.db") as store:
            await run_episode(store, _desktop_episode(machine.computer), *TYPING)
            (recording,) = await artifacts(store)
            return recording
    finally:
        await machine.destroy()
        await provider.close()


def _desktop_episode(computer: Computer) -> OsworldEnvironment:
    config = [
        step("launch", command=["xterm", "-T", "Shell", "-geometry", "60x20+0+0"]),
        step("activate_window", window_name="Shell", strict=True),
    ]
    printed = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "cat answer"},
        "expected": rules({"expected": "42\n"}),
    }
    return boarded(task(*config, evaluator=printed), computer)


TYPING = (
    calling(call("CLICK", x=100, y=100)),
    calling(call("TYPING", text="echo 42 > answer; seq 100\n")),
    calling(call("DONE")),
)


@pytest.mark.timeout(60)
def test_the_screen_of_a_desktop_is_seen_moving_in_a_browser(recorded_run: Artifact):
    from playwright.sync_api import sync_playwright

    assert n_frames(recorded_run.data) >= 3
    _view("store.db", "--html", "page.html")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(Path("page.html").absolute().as_uri())
        page.locator("details.rollout > summary").click()
        shown = page.locator("#rollouts .body img")
        shown.nth(3).wait_for(timeout=5_000)
        assert shown.count() == 4
        assert shown.evaluate_all(WIDTHS) == [640] * 4
        address = page.locator(".artifact img").get_attribute("src")
        assert address is not None
        assert page.evaluate(COUNT, address.partition(",")[2]) == n_frames(recorded_run.data)
        browser.close()
    assert base64.b64decode(address.partition(",")[2]) == recorded_run.data


def test_pictures_of_steps_and_the_recording_are_written_to_files(recorded_run: Artifact):
    text = _view("store.db", "t1:0")
    assert f"[recording.png: image/apng, {len(recorded_run.data):,} bytes; --html FILE shows it" in text
    assert "4 files written" in _view("store.db", "t1:0", "--artifacts", "one")
    assert sorted(path.name for path in Path("one").iterdir()) == [
        "recording.png",
        *(f"step_{number}.png" for number in range(3)),
    ]
    assert Path("one/recording.png").read_bytes() == recorded_run.data
    _view("store.db", "--artifacts", "all")
    assert Path("all/t1%3A0/step_2.png").read_bytes() == Path("one/step_2.png").read_bytes()
    Path("file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write into file/x: Not a directory"):
        _view("store.db", "--artifacts", "file/x")


WIDTHS = """all => Promise.all(all.map(one => {
    one.loading = "eager";
    return one.decode().then(() => one.naturalWidth);
}))"""
COUNT = """async packed => {
    const data = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
    const decoder = new ImageDecoder({type: "image/png", data});
    await Promise.all([decoder.tracks.ready, decoder.completed]);
    const count = decoder.tracks.selectedTrack.frameCount;
    for (let frameIndex = 0; frameIndex < count; frameIndex++) await decoder.decode({frameIndex});
    return count;
}"""
"""How many pictures the browser finds in a file, all of which it can show."""


def _view(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["view", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_a_page_shows_a_long_recording_with_as_many_pictures_as_fit(tmp_path):
    noisy = LocalComputer(tmp_path / "machine", (640, 400), n_frames=60)
    async with memory() as store:
        env = boarded(task(), noisy, MOVING)
        await run_episode(store, env, *CLICKS[:1], *CLICKS[2:])
        (recording,) = await artifacts(store)
        large = Artifact(name="recording.png", media_type=MEDIA_TYPE, data=recording.data)
        limits = PageLimits(max_bytes=len(large.data) * 3)
        left_out = await write_page(tmp_path / "page.html", store, title="run", limits=limits)
    html = (tmp_path / "page.html").read_text()
    shown = base64.b64decode(html.rpartition("data:image/apng;base64,")[2].partition('"')[0])
    assert left_out == ""
    assert 1 < n_frames(shown) < n_frames(recording.data)
    assert len(shown) <= min(MAX_IMAGE_BYTES, limits.max_bytes * 3 // 16)


async def test_what_was_left_is_told_where_it_cannot_be_shown(tmp_path):
    class Writing(Hoarding):
        left = (Artifact(name="<notes>.txt", media_type="text/plain", data=b"notes"),)

    async with memory() as store:
        env = Writing(Task(task_id="t"))
        assert await run_episode(store, env, assistant("", (call("guess", number=5),))) is RolloutStatus.SUCCEEDED
        await write_page(tmp_path / "page.html", store, title="run")
    html = (tmp_path / "page.html").read_text()
    assert "<b>&lt;notes&gt;.txt</b><span>text/plain, 5 bytes</span>" in html
