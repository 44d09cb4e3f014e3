"""Programs run by a user without any rights, where the tests themselves run as root."""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
ORDINARY_USER = 4242


def with_open_ways(source: str, *arguments: str, user: int = ORDINARY_USER) -> str:
    """What a program prints where every user can reach Python, run by a user without any rights.

    Python and the project may lie where only root can look: in mounts of its own, the way there is opened.
    """
    needed = [sys.base_prefix, str(SOURCE), sysconfig.get_path("purelib")]
    closed = {parent for path in needed for parent in Path(path).parents if not parent.stat().st_mode & 0o001}
    steps = ["set -e", "kept=$(mktemp -d)", 'mount -t tmpfs none "$kept"']
    for number, path in enumerate(needed):
        steps += [f'mkdir "$kept/{number}"', f'mount --bind {shlex.quote(path)} "$kept/{number}"']
    steps += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}" for folder in sorted(closed)]
    for number, path in enumerate(needed):
        steps += [f"mkdir -p {shlex.quote(path)}", f'mount --bind "$kept/{number}" {shlex.quote(path)}']
    steps += ['umount -l "$kept"', 'rmdir "$kept"']
    become = f"setpriv --reuid {user} --regid {user} --clear-groups"
    python = [os.path.realpath(sys._base_executable), "-B", "-c", source, *arguments]
    steps.append(f"cd / && exec {become} env PYTHONPATH={SOURCE}:{needed[2]} {shlex.join(python)}")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
