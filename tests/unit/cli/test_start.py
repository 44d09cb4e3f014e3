"""What commands bring along when they start: each module costs everybody who only wants a look."""

import subprocess
import sys

import pytest

HEAVY = {"ray", "numpy", "asyncpg", "aiohttp", "playwright", "torch", "zipfile", "hmac"}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"rich", "asyncio", "msgspec", "logging"}),
        (["status", "--help"], {"outrider.policy", "outrider.pool", "outrider.runner", "outrider.evaluate"}),
    ],
)
def test_a_command_that_only_looks_imports_little(arguments: list[str], unwanted: set[str]):
    program = f"import sys; from outrider.cli import main; sys.argv[1:] = {arguments}; main()"
    command = [sys.executable, "-X", "importtime", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "outrider.cli" in imported
    assert not imported & (HEAVY | unwanted)
