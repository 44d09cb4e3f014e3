"""Kinds of machines by name."""

from pathlib import Path

import pytest

from outrider.core.errors import InvalidInput
from outrider.pool.registry import names, provider_of
from outrider.pool.spec import MachineSpec

MODULE = """
class Own:
    name = "own"

def provider_of(spec):
    return Own()
"""


def test_an_installed_package_announces_a_kind_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_machines.py").write_text(MODULE)
    facts = tmp_path / "own_machines-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: own-machines\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[outrider.machines]\nown = own_machines:provider_of\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "own" in names()
    assert provider_of(MachineSpec(provider="own")).name == "own"


@pytest.mark.parametrize("name", ["browser", "desktop", "process"])
def test_a_kind_that_needs_no_settings_is_made_by_its_name(name: str):
    assert provider_of(MachineSpec(provider=name)).name == name


@pytest.mark.parametrize("name", ["attach", "aws", "docker", "qemu", "virtualbox", "vmware"])
def test_a_kind_that_needs_an_image_says_so(name: str):
    with pytest.raises(InvalidInput):
        provider_of(MachineSpec(provider=name))
