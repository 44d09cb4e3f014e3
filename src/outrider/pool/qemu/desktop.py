"""The disk of the desktop guest: Debian with Xorg, openbox and xterm, fetched by debootstrap."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.qemu.vm import remove

TOOLS = "debootstrap squashfs-tools"
GUEST = Path(__file__).parent / "guest"

_RELEASE = "bookworm"
_PACKAGES = (
    "xserver-xorg-core",
    "xserver-xorg-video-vesa",
    "xserver-xorg-input-evdev",
    "openbox",
    "xterm",
    "x11-utils",
    "xdotool",
    "wmctrl",
    "fonts-dejavu-core",
)
_LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "boot")
_FETCH_SECONDS = 3600.0
_PACK_SECONDS = 1800.0


def make_disk(folder: Path) -> Path:
    """Fetch, then pack. Each part that is complete is kept, so that a build that was cut off goes on from there."""
    if os.geteuid() != 0:
        raise InvalidInput("a desktop guest is installed by debootstrap, which must be run as root")
    missing = [program for program in ("debootstrap", "mksquashfs") if shutil.which(program) is None]
    if missing:
        raise InvalidInput(f"{' and '.join(missing)} cannot be found; apt-get install {TOOLS}")
    folder.mkdir(parents=True, exist_ok=True)
    tree, disk = folder / "tree", folder / "disk"
    if not tree.is_dir():
        _fetch(folder, tree)
    _put(tree)
    packed = folder / "disk.new"
    packed.unlink(missing_ok=True)
    left_out = [name for name in _LEFT_OUT if (tree / name).exists()]
    compression = ("-comp", "lz4", "-all-time", "0", "-mkfs-time", "0", "-no-progress", "-quiet")
    _run(["mksquashfs", str(tree), str(packed), *compression, "-e", *left_out], _PACK_SECONDS)
    packed.replace(disk)
    return disk


def _fetch(folder: Path, tree: Path) -> None:
    fetching, packages = folder / "tree.new", folder / "packages"
    remove(fetching)
    packages.mkdir(exist_ok=True)
    wanted = f"--include={','.join(_PACKAGES)}"
    cache = f"--cache-dir={packages.resolve()}"
    _run(["debootstrap", "--variant=minbase", wanted, cache, _RELEASE, str(fetching)], _FETCH_SECONDS)
    fetching.rename(tree)
    remove(packages)


def _put(tree: Path) -> None:
    """What is ours in it."""
    (tree / "outrider").mkdir(exist_ok=True)
    (tree / "home/user").mkdir(exist_ok=True)
    shutil.copyfile(GUEST / "xorg.conf", tree / "etc/X11/outrider.conf")
    shutil.copyfile(GUEST / "start", tree / "outrider/start")
    (tree / "outrider/start").chmod(0o755)


def _run(arguments: Sequence[str], seconds: float) -> None:
    try:
        subprocess.run(arguments, check=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        raise MachineError(f"{arguments[0]} has failed: {exc}; run the build again to go on", stage="build") from exc
