"""Build a guest's image from Debian packages: `python -m outrider.pool.qemu.build FOLDER [--desktop]`.

Both are made in seconds of what this host has installed. The plain guest is a kernel and busybox with a text console;
the desktop guest has Xorg, openbox, xterm, nano and Python as well.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from outrider.core.errors import InvalidInput, OutriderError
from outrider.pool.qemu import initramfs, reseed
from outrider.pool.qemu.desktop import GUEST, make_disk, session_files
from outrider.pool.qemu.image import DESCRIPTION, Description, Image, digest_of
from outrider.pool.qemu.settings import QemuSettings
from outrider.pool.qemu.snapshots import Snapshots
from outrider.pool.qemu.template import CLEAN

PACKAGES = "linux-image-cloud-amd64 busybox-static ovmf"
FIRMWARE = Path("/usr/share/ovmf/OVMF.fd")
"""It sets the screen to the size that the monitor has, which the kernel for clouds cannot do by itself."""


_MODULES = ("virtio_pci", "virtio_console", "virtio_input", "evdev", "pvpanic_mmio")
_DISK_MODULES = ("virtio_blk", "squashfs", "overlay")
_DESKTOP_MB = 384
_DESKTOP_SECONDS = 300.0
_OPTIONS = (
    "console=tty0 quiet loglevel=3 nokaslr mitigations=off no_timer_check panic=-1 reboot=t "
    "consoleblank=0 vt.global_cursor_default=0"
)
_CONSOLE = "fold -w $(stty -F /dev/tty1 size | cut -d' ' -f2) /dev/vcs1"
_TERMINAL, _TREE = "/outrider/look terminal", "/outrider/look tree"


def find_kernel(boot: Path = Path("/boot")) -> Path:
    """The newest kernel that is installed, one for clouds before others: they start faster."""
    kernels = sorted(boot.glob("vmlinuz-*"), key=lambda path: ("-cloud-" in path.name, path.stat().st_mtime))
    usable = [kernel for kernel in kernels if modules_of(kernel).is_dir()]
    if not usable:
        raise InvalidInput(f"no Linux kernel with its modules in {boot}; install one: apt-get install {PACKAGES}")
    return usable[-1]


def modules_of(kernel: Path) -> Path:
    return Path("/lib/modules") / kernel.name.removeprefix("vmlinuz-")


def find_busybox() -> Path:
    found = shutil.which("busybox")
    if found is None:
        raise InvalidInput(f"busybox is not installed; apt-get install {PACKAGES}")
    return Path(found)


def build(folder: Path, *, kernel: Path | None = None, desktop: bool = False) -> Image:
    """The description is written last: a build that was cut off leaves no image, or the one that was there."""
    kernel = kernel or find_kernel()
    folder.mkdir(parents=True, exist_ok=True)
    disk = make_disk(folder) if desktop else None
    for name, source in (("firmware", FIRMWARE), ("kernel", kernel)):
        try:
            shutil.copyfile(source, folder / name)
        except OSError as exc:
            raise InvalidInput(f"the {name} {source} cannot be read: {exc}; apt-get install {PACKAGES}") from exc
    (folder / "initrd").write_bytes(initial_files(kernel, desktop=desktop))
    files = [*(folder / name for name in ("firmware", "kernel", "initrd")), *([disk] if disk else [])]
    described = Description(
        firmware="firmware",
        kernel="kernel",
        initrd="initrd",
        options=_OPTIONS,
        terminal=_CONSOLE,
        digest=digest_of(*files),
    )
    if disk:
        size = {"memory_mb": _DESKTOP_MB, "boot_seconds": _DESKTOP_SECONDS}
        described = replace(described, disk=disk.name, terminal=_TERMINAL, tree=_TREE, **size)
    return finish(folder, described)


def initial_files(kernel: Path, *, desktop: bool) -> bytes:
    loaded = list(initramfs.modules(modules_of(kernel), (*_MODULES, *(_DISK_MODULES if desktop else ()))))
    order = "".join(f"{name}\n" for name, _ in loaded).encode()
    files = [
        ("init", (GUEST / "init").read_bytes()),
        ("agent", (GUEST / "agent").read_bytes()),
        ("bin/busybox", find_busybox().read_bytes()),
        ("bin/reseed", reseed.program()),
        ("modules/order", order),
        *((f"modules/{name}", content) for name, content in loaded),
        *((f"session/{name}", content) for name, content in (session_files() if desktop else ())),
    ]
    return initramfs.pack(files)


def finish(folder: Path, described: Description) -> Image:
    written = folder / f"{DESCRIPTION}.new"
    written.write_bytes(msgspec.json.format(msgspec.json.encode(described)))
    written.replace(folder / DESCRIPTION)
    return Image.open(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m outrider.pool.qemu.build", description="Build a guest's image.")
    parser.add_argument("folder", type=Path, help="where the image is kept")
    parser.add_argument("--desktop", action="store_true", help="with Xorg, openbox, xterm, nano and Python")
    parser.add_argument("--kernel", type=Path, help="a kernel in /boot; its modules lie in /lib/modules")
    parser.add_argument("--snapshot", default=CLEAN, help="also make a snapshot of this name")
    parser.add_argument("--width", type=int, default=1280, help="of the snapshot's screen")
    parser.add_argument("--height", type=int, default=800, help="of the snapshot's screen")
    parser.add_argument("--setup", type=Path, help="a shell script that is run in the guest before the snapshot")
    given = parser.parse_args(arguments)
    try:
        image = build(given.folder, kernel=given.kernel, desktop=given.desktop)
        if given.snapshot != CLEAN:
            settings = QemuSettings(image=given.folder, snapshot=given.snapshot, width=given.width, height=given.height)
            asyncio.run(Snapshots(settings).make(given.setup.read_text() if given.setup else ""))
    except (OutriderError, OSError) as exc:
        print(exc, file=sys.stderr)  # noqa: T201 a command's answer
        return 2
    print(f"image {image.description.digest} in {image.folder}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
