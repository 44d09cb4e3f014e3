import gzip
import lzma

import pytest

from outrider.core.errors import InvalidInput
from outrider.pool.qemu import initramfs
from outrider.pool.qemu.build import find_kernel
from outrider.pool.qemu.hardware import Accelerator, Hardware
from outrider.pool.qemu.image import Description, Image


def unpacked(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Read the archive by the book: mode and content of each name."""
    data = gzip.decompress(archive)
    found, place = {}, 0
    while True:
        assert data[place : place + 6] == b"070701"
        fields = [int(data[place + 6 + 8 * i : place + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[place + 110 : place + 110 + name_size - 1].decode()
        start = (place + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[start : start + size])
        place = (start + size + 3) // 4 * 4


def test_what_is_packed_comes_out_with_its_folders_first():
    found = unpacked(initramfs.pack([("init", b"x" * 5), ("a/b/c", b""), ("a/b/d", b"four")]))
    assert list(found) == ["init", "a", "a/b", "a/b/c", "a/b/d"]
    assert found["init"] == (0o100755, b"xxxxx")
    assert found["a/b"] == (0o040755, b"")
    assert found["a/b/d"] == (0o100755, b"four")


def test_equal_files_give_equal_bytes():
    assert initramfs.pack([("a", b"1")]) == initramfs.pack([("a", b"1")])


@pytest.fixture
def modules(tmp_path):
    (tmp_path / "kernel").mkdir()
    (tmp_path / "modules.builtin").write_text("kernel/fs/ext4.ko\n")
    (tmp_path / "modules.dep").write_text(
        "kernel/ring.ko:\nkernel/virtio.ko: kernel/ring.ko\n"
        "kernel/virtio-pci.ko.xz: kernel/virtio.ko kernel/ring.ko\nkernel/input.ko: kernel/virtio.ko kernel/ring.ko\n"
    )
    for name in ("ring.ko", "virtio.ko", "input.ko"):
        (tmp_path / "kernel" / name).write_bytes(name.encode())
    (tmp_path / "kernel" / "virtio-pci.ko.xz").write_bytes(lzma.compress(b"pci"))
    return tmp_path


def test_modules_come_once_each_and_after_those_they_need(modules):
    assert list(initramfs.modules(modules, ("virtio_pci", "ext4", "input"))) == [
        ("ring.ko", b"ring.ko"),
        ("virtio.ko", b"virtio.ko"),
        ("virtio_pci.ko", b"pci"),
        ("input.ko", b"input.ko"),
    ]


def test_a_module_that_the_kernel_has_not_is_named(modules):
    with pytest.raises(InvalidInput, match="no module warp"):
        list(initramfs.modules(modules, ("warp",)))


def test_without_a_kernel_it_says_what_to_install(tmp_path):
    with pytest.raises(InvalidInput, match="apt-get install linux-image-cloud-amd64"):
        find_kernel(tmp_path)


def test_a_folder_without_an_image_says_how_to_build_one(tmp_path):
    with pytest.raises(InvalidInput, match=r"python -m outrider.pool.qemu.build"):
        Image.open(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"kernel": "k"}', '{"kernel": 5}'])
def test_an_image_that_is_not_described_rightly_is_refused(tmp_path, content):
    (tmp_path / "image.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"image\.json cannot be read"):
        Image.open(tmp_path)


def test_an_image_that_lacks_a_file_says_which(tmp_path):
    (tmp_path / "image.json").write_text(
        '{"firmware": "kernel", "kernel": "kernel", "initrd": "initrd", "digest": "0"}'
    )
    (tmp_path / "kernel").touch()
    with pytest.raises(InvalidInput, match="lacks initrd"):
        Image.open(tmp_path)


def test_a_snapshot_of_one_machine_is_not_taken_for_that_of_another(tmp_path):
    image = Image(tmp_path, Description(firmware="firmware", kernel="kernel", initrd="initrd", digest="1"))
    other = Image(tmp_path, Description(firmware="firmware", kernel="kernel", initrd="initrd", digest="2"))
    digests = [
        Hardware(image, 112, Accelerator.TCG, (1280, 800)).digest("7.2"),
        Hardware(image, 112, Accelerator.TCG, (1280, 800)).digest("8.2"),
        Hardware(image, 128, Accelerator.TCG, (1280, 800)).digest("7.2"),
        Hardware(image, 112, Accelerator.KVM, (1280, 800)).digest("7.2"),
        Hardware(image, 112, Accelerator.TCG, (1920, 1080)).digest("7.2"),
        Hardware(other, 112, Accelerator.TCG, (1280, 800)).digest("7.2"),
    ]
    assert len(set(digests)) == len(digests)
    assert Hardware(image, 112, Accelerator.TCG, (1280, 800)).digest("7.2") == digests[0]
