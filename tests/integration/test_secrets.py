"""A password and a key go through every command, and are found nowhere: in no output, no file, no command line."""

import asyncio
import json
import os
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import COMMANDS
from outrider.testing.model_server import ModelServer
from postgres_load import schema_of
from postgres_server import PostgresServer
from ray_nodes import ray_nodes

PASSWORD = "canary-Passw0rd"
WRONG = "canary-Wr0ng"
KEY = "canary-sk-4711"
CLIENT_PASSWORD = "canary-client"
HEADER_KEY = "canary-header"
BODY_KEY = "canary-body"
CANARY = b"canary-"
SECONDS = 120

DRIVER = """
import json, os, sys
from outrider.cli import main
os.umask(0)
for arguments in json.load(sys.stdin):
    print("$", arguments[0], flush=True)
    sys.argv = ["outrider", *arguments]
    try:
        main()
    except SystemExit as exc:
        print("exit code", exc.code or 0, flush=True)
    else:
        print("exit code 0", flush=True)
"""
"""Runs one command after another in a process; their arguments are in no command line."""

ROLLOUT = """
train_env_manager: {max_env_num_per_worker: 4, num_env_groups: 2, group_size: 1, tags: [FrozenLake]}
custom_envs:
  FrozenLake: {config: {}}
steps: 1
workers: 2
"""


AGENTS = """
from pathlib import Path

async def play(task, ctx):
    await ctx.policy.complete(ctx.opening)
    if not Path("failed").exists():
        Path("failed").touch()
        raise RuntimeError("this is the first time")
    return 1.0
"""

WITHOUT_SECRETS = {"bench": "measures a checkout, with stores and models of its own"}
"""Commands that are given neither a store nor a key."""


@asynccontextmanager
async def command_lines() -> AsyncIterator[set[bytes]]:
    """Those of all processes that are seen while the block runs."""
    seen: set[bytes] = set()

    async def look() -> None:
        while True:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(path.read_bytes())
                except OSError:
                    continue
            await asyncio.sleep(0.02)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


async def outputs_of(folder: Path, commands: Sequence[Sequence[str]], **variables: str) -> str:
    """What the commands print, standard error too."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DRIVER),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder), **variables},
    )
    async with asyncio.timeout(SECONDS):
        printed, _ = await process.communicate(json.dumps(commands).encode())
    return printed.decode()


def exit_codes(printed: str) -> list[int]:
    return [int(line.split()[-1]) for line in printed.splitlines() if line.startswith("exit code")]


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def refuse_canaries(folder: Path, printed: str, lines: set[bytes]) -> None:
    assert not [line for line in printed.splitlines() if CANARY.decode() in line]
    assert not [line for line in lines if CANARY in line]
    assert not [path for path in files_below(folder) if CANARY in path.read_bytes()]


def refuse_open_files(folder: Path) -> None:
    """Nobody but the owner may read what a run wrote, though the umask would let all."""
    assert not [path for path in folder.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.fixture
def locked_url(postgres_server: PostgresServer, postgres_url: str) -> str:
    """A store that is opened with the password only."""
    schema = schema_of(postgres_url)
    role = f"r_{schema}"
    postgres_server.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}' IN ROLE locked")
    postgres_server.sql(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    return f"postgresql://{role}:{PASSWORD}@/postgres?host={postgres_server.folder}&schema={schema}"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in which the path of a socket is not too long."""
    with tempfile.TemporaryDirectory(prefix="or-", dir="/tmp") as folder:
        yield Path(folder)


async def test_a_password_and_a_key_are_seen_nowhere(locked_url: str, tmp_path: Path):
    store = ("--store", locked_url)
    (tmp_path / "train.yaml").write_text(ROLLOUT)
    (tmp_path / "some_agents.py").write_text(AGENTS)
    async with ModelServer("\\boxed{4}", key=KEY) as server, command_lines() as lines:
        model = ("--model", "test-model", "--base-url", server.base_url)
        run = ("run", "--mode", "math", "--limit", "2", *model, *store, "--client-password", CLIENT_PASSWORD)
        judge = ("judge=test-model", f"judge.base_url={server.base_url}/", "judge.api_key_env=JUDGE_KEY")
        added = tuple(word for text in judge for word in ("--policy", text))
        added += ("--policy", "judge.headers={X-Token: 'env:HEADER_KEY'}", "--header", "X-Api-Key=env:HEADER_KEY")
        added += ("--extra-body", "guide={api_key: 'env:BODY_KEY'}")
        once = ("--max-attempts", "1", "--no-fail-fast")
        commands: list[Sequence[str]] = [
            ("enqueue", "--test", "3", "--id-field", "task_id", *store),
            ("enqueue", "--test", "1", "--json", *store),
            ("status", *store),
            ("status", "--json", *store),
            ("work", "--until-done", "--workers", "2", *store),
            ("status", *store),
            ("show", "1", *store),
            ("export", "-o", "out.jsonl", *store),
            ("export", *store),
            ("cancel", "1", *store),
            ("retry", "1", *store),
            ("cancel", "--all", "--json", *store),
            ("pool", "ls", *store),
            ("pool", "ls", "--json", *store),
            ("pool", "gc", "--dry-run", *store),
            (*run, "--dry-run"),
            (*run, "--name", "one", "--workers", "2", "--record", "calls.jsonl"),
            (*run, "--resume", "one", "--json"),
            (*run, "--resume", "one", "--samples-per-task", "2"),
            (*run, "--name", "three", *added, "--agent", "some_agents:play", *once, "--allow-failures"),
            (*run, "--resume", "three", "--retry-failed"),
            ("ls",),
            ("ls", "--json"),
            ("compare", "one", "three", "--html", "compared.html"),
            ("compare", "one", "three", "--json"),
            ("view", locked_url),
            ("view", locked_url, "--html", "page.html"),
            ("view", "one", *store, "--json"),
            ("view", "one", *store, "--html", "one.html"),
            ("rollout", "-c", "train.yaml", "--dry-run", *store),
            ("rollout", "-c", "train.yaml", "--name", "two", "--timeline", "slots.html", *store),
            ("rollout", "--resume", "two", *store, "--steps", "2", "--json"),
        ]
        keys = {"OPENAI_API_KEY": KEY, "JUDGE_KEY": KEY, "HEADER_KEY": HEADER_KEY, "BODY_KEY": BODY_KEY}
        printed = await outputs_of(tmp_path, commands, **keys)
    assert exit_codes(printed) == [0] * len(commands), printed
    assert {command[0] for command in commands} | WITHOUT_SECRETS.keys() == COMMANDS.keys()
    sent = [(request.headers.get("x-api-key"), request.body.get("guide")) for request in server.requests]
    assert (HEADER_KEY, {"api_key": BODY_KEY}) in sent
    assert "this is the first time" in printed
    assert "***@" in printed
    refuse_canaries(tmp_path, printed, lines)
    for name in ("one", "two", "three"):
        refuse_open_files(tmp_path / "results" / name)
    for name in ("out.jsonl", "calls.jsonl", "page.html", "one.html", "slots.html", "compared.html"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_a_run_on_ray_shows_no_password_and_no_key(
    locked_url: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The folder has what Ray writes too: its logs, and those of its workers."""
    monkeypatch.setenv("RAY_TMPDIR", str(short_path))
    monkeypatch.setenv("HOME", str(short_path))  # that of the command too: both find the same token, or none
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)  # which a Ray that this process had may have left
    with ray_nodes(1) as nodes:
        async with ModelServer("\\boxed{4}", key=KEY) as server, command_lines() as lines:
            model = ("--model", "test-model", "--base-url", server.base_url, "--header", "X-Api-Key=env:HEADER_KEY")
            place = ("--ray", nodes.address, "--store", locked_url)
            run = ("run", "--mode", "math", "--limit", "2", *model, *place, "--name", "one", "--allow-failures")
            keys = {"OPENAI_API_KEY": KEY, "HEADER_KEY": HEADER_KEY}
            printed = await outputs_of(short_path, [run], **keys)
        assert exit_codes(printed) == [0], printed
        assert "on 1 node of Ray" in printed
        assert server.n_calls >= 3
        assert {request.headers.get("x-api-key") for request in server.requests} == {HEADER_KEY}
        assert [path for path in files_below(short_path / "ray") if path.suffix in {".out", ".log"}]
        refuse_canaries(short_path, printed, lines)


async def test_a_served_pool_shows_no_password_and_lets_nobody_else_in(locked_url: str, short_path: Path):
    """Its journal is in a store with a password; its folder and socket are its owner's alone."""
    async with command_lines() as lines:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outrider", "pool", "serve", "--provider-name", "process", "--num-vms", "1"),
            cwd=short_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            umask=0,
            env={**os.environ, "TMPDIR": str(short_path), "HOME": str(short_path), "OUTRIDER_STORE": locked_url},
        )
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            printed = (await process.stdout.readuntil(b"share it with")).decode()
            pools = short_path / f"outrider-pools-{os.geteuid()}"
            refuse_open_files(pools)
            assert [path for path in pools.rglob("*") if path.is_socket()]
            printed += await outputs_of(
                short_path, [["pool", "ls"], ["pool", "ls", "--json"]], OUTRIDER_STORE=locked_url
            )
            process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
    assert process.returncode == 0, rest
    refuse_canaries(short_path, printed + rest.decode(), lines)


async def test_what_is_wrong_with_a_store_is_told_without_its_password(locked_url: str, tmp_path: Path):
    user, rest = locked_url.split(f":{PASSWORD}@")
    wrong = [
        f"{user}:{WRONG}@{rest}",
        f"{user}@{rest}&password={WRONG}",
        locked_url.replace("/postgres?", "/no_such_database?"),
        f"postgresql://me:{PASSWORD}@127.0.0.1:9/db",
        f"postgresql://me:{PASSWORD}@no-such-host.invalid/db",
        f"postgresql://me:{PASSWORD}@host:port/db",
        f"postgresql://me:[{PASSWORD}@host/db",
        f"mysql://me:{PASSWORD}@host/db",
    ]
    (tmp_path / "train.yaml").write_text(ROLLOUT)
    commands = [
        *([*command, "--store", url] for url in wrong for command in (["enqueue", "--test", "1"], ["status"])),
        *(
            [*command, "--store", wrong[0]]
            for command in (
                ["work", "--until-done"],
                ["show", "x"],
                ["export"],
                ["retry", "x"],
                ["cancel", "--all"],
                ["pool", "ls", "--json"],
                ["pool", "serve", "--provider-name", "process", "--num-vms", "1"],
                ["view", "x"],
                ["run", "--mode", "math", "--limit", "1", "--model", "builtin:solver"],
                ["rollout", "-c", "train.yaml"],
            )
        ),
        ["view", wrong[0]],
    ]
    async with command_lines() as lines:
        printed = await outputs_of(tmp_path, commands)
    assert set(exit_codes(printed)) <= {1, 2}, printed
    assert len(exit_codes(printed)) == len(commands)
    assert "Traceback" not in printed
    refuse_canaries(tmp_path, printed, lines)


async def test_a_resumed_run_gets_its_password_from_the_environment(locked_url: str, tmp_path: Path):
    (tmp_path / "train.yaml").write_text(ROLLOUT)
    without = locked_url.replace(f":{PASSWORD}@", "@")
    begin = ("rollout", "-c", "train.yaml", "--name", "two", "--store", locked_url)
    printed = await outputs_of(tmp_path, [begin])
    assert exit_codes(printed) == [0], printed
    assert f"store: {without}" in (tmp_path / "results/two/rollout.yaml").read_text()

    again = ("rollout", "--resume", "two", "--steps", "2")
    missing = await outputs_of(tmp_path, [again])
    assert exit_codes(missing) == [2]
    assert "PGPASSWORD" in missing
    assert "OUTRIDER_STORE" in missing
    by_variable: list[dict[str, Any]] = [{"PGPASSWORD": PASSWORD}, {"OUTRIDER_STORE": locked_url}]
    for number, variables in enumerate(by_variable, 2):
        printed = await outputs_of(tmp_path, [(*again[:-1], str(number))], **variables)
        assert exit_codes(printed) == [0], printed
    assert CANARY not in (tmp_path / "results/two/rollout.yaml").read_bytes()


async def test_a_secret_in_the_settings_of_an_environment_is_not_kept(tmp_path: Path):
    run = ("run", "--mode", "math", "--limit", "1", "--model", "builtin:solver", "--name", "one")
    printed = await outputs_of(tmp_path, [(*run, "--env", f"api_key={KEY}", "--dry-run")])
    assert CANARY.decode() not in printed
    (tmp_path / "config.yaml").write_text("mode: math\nenv: {client_password: '***'}\n")
    printed = await outputs_of(tmp_path, [("run", "--config", "config.yaml", "--model", "builtin:solver")])
    assert exit_codes(printed) == [2]
    assert "env.client_password is ***, for secrets are not kept in files; give it again by --env" in printed
