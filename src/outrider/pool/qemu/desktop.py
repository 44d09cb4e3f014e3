"""What the desktop guest has and the plain one has not: a disk with Xorg and programs of this host, and a session."""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.desktop import inside
from outrider.pool.qemu import guest, packages

TOOL = "squashfs-tools"
GUEST = Path(str(guest.__file__)).parent
PACKAGES = (
    *("xserver-xorg-core", "xserver-xorg-video-fbdev", "xserver-xorg-input-evdev", "fonts-dejavu-core"),
    *("openbox", "xterm", "nano", "wmctrl", "hsetroot", "x11-utils", "x11-xserver-utils"),
    *("bash", "coreutils", "dash", "diffutils", "findutils", "fontconfig", "grep", "gzip", "libc-bin"),
    *("ncurses-base", "sed", "tar", "util-linux"),
)

_LEFT_OUT_PACKAGES = (
    *("libegl-mesa0", "libgbm1", "libgl1-mesa-dri", "libglx-mesa0", "keyboard-configuration", "udev"),
    *("fonts-urw-base35", "libheif1", "libjxl0.7", "libspectre1"),
    *("cpp", "debconf", "dpkg", "init-system-helpers", "perl-base", "shared-mime-info", "ucf"),
)
"""Drawing by a graphics card, large kinds of pictures, and what only an installation needs."""

_LEFT_OUT = tuple(f"usr/share/{name}/" for name in ("bug", "doc", "info", "lintian", "locale", "man", "perl5"))
_FILES = {
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/shells": "/bin/sh\n/bin/bash\n",
    "etc/passwd": "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000:User:/home/user:/bin/bash\n",
}
_PACK_SECONDS = 300.0


def make_disk(folder: Path) -> Path:
    """Equal packages give equal bytes."""
    if shutil.which("mksquashfs") is None:
        raise InvalidInput(f"mksquashfs cannot be found; apt-get install {TOOL}")
    names = packages.files_of(PACKAGES, without=_LEFT_OUT_PACKAGES)
    packed = folder / "disk.new"
    packed.unlink(missing_ok=True)
    with tempfile.TemporaryFile(dir=folder) as archive:
        with tarfile.open(fileobj=archive, mode="w") as writing:
            for name in (*names, "etc/ld.so.cache"):
                if not name.startswith(_LEFT_OUT):
                    writing.add(f"/{name}", name, recursive=False)
        archive.seek(0)
        _pack(archive, packed)
    return packed.replace(folder / "disk")


def _pack(archive: IO[bytes], disk: Path) -> None:
    undated = ("-mkfs-time", "0", "-all-time", "0")
    try:
        subprocess.run(
            ["mksquashfs", "-", disk, "-tar", "-comp", "lz4", "-all-root", "-no-xattrs", *undated, "-quiet"],
            stdin=archive,
            capture_output=True,
            check=True,
            timeout=_PACK_SECONDS,
        )
    except subprocess.CalledProcessError as exc:
        said = exc.stderr.decode(errors="replace").strip()
        raise MachineError(f"the disk cannot be packed: {said}", stage="build") from exc
    except subprocess.TimeoutExpired as exc:
        raise MachineError("the disk was not packed in time", stage="build") from exc


def session_files() -> Iterator[tuple[str, bytes]]:
    """What is ours in the guest: paths and contents."""
    for name, text in _FILES.items():
        yield name, text.encode()
    yield "etc/X11/outrider.conf", (GUEST / "xorg.conf").read_bytes()
    for name in ("look", "start"):
        yield f"outrider/{name}", (GUEST / name).read_bytes()
    for module in (inside, guest):
        folder = Path(str(module.__file__)).parent
        for path in sorted((*folder.glob("*.py"), *folder.glob("*.xml"))):
            yield f"outrider/{module.__name__.replace('.', '/')}/{path.name}", path.read_bytes()
