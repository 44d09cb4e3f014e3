import os
import platform
import subprocess

import pytest

from outrider.pool.qemu.reseed import program


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a program for x86-64 is run")
def test_the_program_asks_the_kernel_and_ends_with_its_answer(tmp_path):
    path = tmp_path / "reseed"
    path.write_bytes(program())
    path.chmod(0o755)
    with open("/dev/urandom", "rb") as random:  # noqa: PTH123
        ended = subprocess.run([path], stdin=random, check=False, timeout=10)
    assert ended.returncode == (0 if os.geteuid() == 0 else 1)
    assert subprocess.run([path], stdin=subprocess.DEVNULL, check=False, timeout=10).returncode == 25, "no such request"
