import pytest

from outrider.core.errors import InvalidInput
from outrider.pool.qemu import packages

LISTING = (
    "ii \teditor\t\tlibc (>= 2)\tlibx (= 1:2) | libx-compat, term-info\n"
    "ii \tlibc\t\t\tloader:any\n"
    "ii \tlibx\t\t\teditor, libgone\n"
    "ii \tterms\tterm-info (= 1), other\t\t\n"
    "ii \tloader\t\t\tinstaller\n"
    "ii \tinstaller\t\t\tmuch-more\n"
    "ii \tmuch-more\t\t\t\n"
    "rc \tlibgone\t\t\t\n"
)


def test_what_packages_need_is_followed_by_alternatives_and_by_what_others_provide():
    chosen = packages.closure(packages.read(LISTING), ["editor"], without=["installer"])
    assert chosen == {"editor", "libc", "libx", "terms", "loader"}


def test_a_package_that_is_not_installed_is_named_with_the_command():
    with pytest.raises(InvalidInput, match="apt-get install no-such-package"):
        packages.files_of(["coreutils", "no-such-package"], without=())


def test_files_come_by_their_real_places_and_every_folder_before_what_is_in_it():
    files = packages.files_of(["coreutils"], without=["libc6"])
    assert "usr/bin/ls" in files
    assert not [name for name in files if name.startswith(("/", "bin/"))]
    assert files.index("usr") < files.index("usr/bin") < files.index("usr/bin/ls")
    assert not [name for name in files if name.startswith(("proc/", "home/", "root/"))]
