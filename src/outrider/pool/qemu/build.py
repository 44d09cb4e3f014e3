"""Build a guest's image from Debian packages: `python -m outrider.pool.qemu.build FOLDER [--desktop]`.

The plain guest is a kernel and busybox with a text console, built in seconds from what is installed. The desktop
guest has Xorg, openbox and xterm, and is fetched by debootstrap. What has been done is not done again.
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
from outrider.pool.qemu import initramfs
from outrider.pool.qemu.desktop import make_disk
from outrider.pool.qemu.image import DESCRIPTION, Description, Image, digest_of
from outrider.pool.qemu.settings import QemuSettings
from outrider.pool.qemu.snapshots import Snapshots
from outrider.pool.qemu.template import CLEAN

PACKAGES = "linux-image-cloud-amd64 busybox-static"
GUEST = Path(__file__).parent / "guest"

_MODULES = ("virtio_pci", "virtio_console", "virtio_input", "evdev", "pvpanic_mmio")
_DISK_MODULES = ("virtio_blk", "squashfs", "overlay")
_DESKTOP_MB = 384
_DESKTOP_SECONDS = 600.0
_OPTIONS = (
    "console=tty0 quiet loglevel=3 nokaslr mitigations=off no_timer_check panic=-1 reboot=t "
    "consoleblank=0 vt.global_cursor_default=0"
)


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
    try:
        shutil.copyfile(kernel, folder / "kernel")
    except OSError as exc:
        raise InvalidInput(f"the kernel {kernel} cannot be read: {exc}") from exc
    (folder / "initrd").write_bytes(initial_files(kernel, (*_MODULES, *(_DISK_MODULES if disk else ()))))
    files = [folder / "kernel", folder / "initrd", *([disk] if disk else [])]
    described = Description(kernel="kernel", initrd="initrd", options=_OPTIONS, digest=digest_of(*files))
    if disk:
        described = replace(described, disk=disk.name, memory_mb=_DESKTOP_MB, boot_seconds=_DESKTOP_SECONDS)
    else:
        described = replace(described, terminal="fold -w 80 /dev/vcs1")
    return finish(folder, described)


def initial_files(kernel: Path, names: tuple[str, ...]) -> bytes:
    loaded = list(initramfs.modules(modules_of(kernel), names))
    order = "".join(f"{name}\n" for name, _ in loaded).encode()
    files = [
        ("init", (GUEST / "init").read_bytes()),
        ("agent", (GUEST / "agent").read_bytes()),
        ("bin/busybox", find_busybox().read_bytes()),
        ("modules/order", order),
        *((f"modules/{name}", content) for name, content in loaded),
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
    parser.add_argument("--desktop", action="store_true", help="with Xorg, openbox and xterm, fetched by debootstrap")
    parser.add_argument("--kernel", type=Path, help="a kernel in /boot; its modules lie in /lib/modules")
    parser.add_argument("--snapshot", default=CLEAN, help="also make a snapshot of this name")
    parser.add_argument("--setup", type=Path, help="a shell script that is run in the guest before the snapshot")
    given = parser.parse_args(arguments)
    try:
        image = build(given.folder, kernel=given.kernel, desktop=given.desktop)
        if given.snapshot != CLEAN:
            settings = QemuSettings(image=given.folder, snapshot=given.snapshot)
            asyncio.run(Snapshots(settings).make(given.setup.read_text() if given.setup else ""))
    except (OutriderError, OSError) as exc:
        print(exc, file=sys.stderr)  # noqa: T201 a command's answer
        return 2
    print(f"image {image.description.digest} in {image.folder}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
