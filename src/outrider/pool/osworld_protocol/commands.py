"""Programs in the machine. PyAutoGUI code that only names events is turned into events."""

import asyncio
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web
from msgspec import Struct

from outrider.core.decoding import convert
from outrider.pool.computer import Executed, Input
from outrider.pool.osworld_protocol import script
from outrider.pool.osworld_protocol.client import SERVER_LIMIT_SECONDS
from outrider.pool.osworld_protocol.front import FRONT, Front, asked, failure

PYTHON_SECONDS = 30.0
SCRIPT_SECONDS = 100.0
CHECK_SECONDS = 5.0
MAX_WAIT_SECONDS = 600.0
LEAST_INTERVAL_SECONDS = 0.05
_DAY_SECONDS = 24 * 3600.0
_PYTHONS = frozenset({"python", "python3", "/usr/bin/python", "/usr/bin/python3"})
_N_PYTHON_WORDS = 3


def _command(told: Mapping[str, Any]) -> list[str] | str:
    """The command as a computer takes it. OSWorld splits a text that is not meant for the shell."""
    command = told.get("command", [])
    if told.get("shell"):
        return command if isinstance(command, str) else shlex.join(convert(command, list[str]))
    return shlex.split(command) if isinstance(command, str) else convert(command, list[str])


def _events(command: list[str] | str) -> tuple[Input, ...] | None:
    """The events that a command stands for; None: it is a command like any other."""
    if "pyautogui" not in (command if isinstance(command, str) else " ".join(command[-1:])):
        return None
    words = command
    if isinstance(words, str):
        with suppress(ValueError):
            words = shlex.split(words)
    if isinstance(words, str) or len(words) != _N_PYTHON_WORDS or words[0] not in _PYTHONS or words[1] != "-c":
        return None
    return script.read(words[2])


async def _execute(request: web.Request) -> web.Response:
    told = await asked(request)
    limit = min(float(told.get("timeout", SERVER_LIMIT_SECONDS)), _DAY_SECONDS)
    done = await _executed(request.app[FRONT], told, limit)
    if done.returncode is None and "timeout" not in told:
        return failure(f"the command timed out after {limit:g} seconds")
    return web.json_response(_answer(done))


async def _executed(front: Front, told: Mapping[str, Any], limit: float) -> Executed:
    command = _command(told)
    if not command:
        raise ValueError("there is no command")
    if front.computer.screen_size[0] and (events := _events(command)) is not None:
        await front.input(events)
        return Executed(returncode=0)
    return await front.computer.execute(await front.words(command), timeout=limit)


def _answer(done: Executed, status: str = "success") -> dict[str, Any]:
    return {"status": status, "output": done.stdout, "error": done.stderr, "returncode": done.returncode}


class Verification(Struct, frozen=True):
    """What must have come after a command: a window whose line in the list has this, a command that succeeds."""

    window_exists: str | None = None
    command_success: str | None = None

    async def holds(self, front: Front) -> bool:
        if self.window_exists is not None:
            listed = await front.ask("wmctrl", "-l")
            if listed.returncode != 0 or self.window_exists not in listed.stdout:
                return False
        if self.command_success is not None:
            return (await front.computer.execute(self.command_success, timeout=CHECK_SECONDS)).returncode == 0
        return True


async def _execute_with_verification(request: web.Request) -> web.Response:
    """Run a command, and wait until what it is to bring about has come; that is looked at again and again."""
    told = await asked(request)
    front = request.app[FRONT]
    wanted = convert(told.get("verification") or {}, Verification)
    most = min(float(told.get("max_wait_time", 10)), MAX_WAIT_SECONDS)
    interval = max(float(told.get("check_interval", 1)), LEAST_INTERVAL_SECONDS)
    done = await _executed(front, told, SERVER_LIMIT_SECONDS)
    if done.returncode is None:
        return failure(f"the command timed out after {SERVER_LIMIT_SECONDS:g} seconds")
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (  # noqa: ASYNC110 a machine tells nobody when a window comes
        not (holds := await wanted.holds(front)) and loop.time() - began + interval <= most
    ):
        await asyncio.sleep(interval)
    facts = {"verification": "passed" if holds else "failed", "wait_time": loop.time() - began}
    status = "success" if holds else "verification_failed"
    return web.json_response(_answer(done, status) | facts, status=200 if holds else 500)


async def _launch(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    command = _command(await asked(request))
    if not command:
        raise ValueError("there is no command")
    await front.computer.launch(await front.words(command))
    return web.Response(text=f"{command if isinstance(command, str) else shlex.join(command)} launched successfully")


async def _run_python(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    code = str((await asked(request))["code"])
    events = script.read(code) if "pyautogui" in code and front.computer.screen_size[0] else None
    if events is not None:
        await front.input(events)
        done = Executed(returncode=0)
    else:
        done = await front.computer.execute(["python3", "-c", code], timeout=PYTHON_SECONDS)
    if done.returncode is None:
        return failure("Execution timeout: Code took too long to execute")
    told = {"output": done.stdout, "error": done.stderr, "return_code": done.returncode, "need_more": False}
    status = "success" if done.returncode == 0 else "error"
    return web.json_response(told | {"status": status, "message": done.stdout + done.stderr})


async def _run_bash_script(request: web.Request) -> web.Response:
    told = await asked(request)
    front = request.app[FRONT]
    folder = await front.place(str(told.get("working_dir") or "~"))
    command = ["sh", "-c", 'cd "$1" && shift && exec 2>&1 && exec bash -c "$1"', "sh", folder, str(told["script"])]
    done = await front.computer.execute(command, timeout=float(told.get("timeout") or SCRIPT_SECONDS))
    status = "success" if done.returncode == 0 else "error"
    returncode = -1 if done.returncode is None else done.returncode
    return web.json_response({"status": status, "output": done.stdout, "error": "", "returncode": returncode})


ROUTES = (
    web.post("/execute", _execute),
    web.post("/setup/execute", _execute),
    web.post("/execute_with_verification", _execute_with_verification),
    web.post("/setup/execute_with_verification", _execute_with_verification),
    web.post("/run_python", _run_python),
    web.post("/run_bash_script", _run_bash_script),
    web.post("/setup/launch", _launch),
)
