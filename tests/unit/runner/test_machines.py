import pytest

from outrider.core.errors import InvalidInput
from outrider.env.registry import environments_of
from outrider.pool import PoolConfig
from outrider.pool.spec import MachineSpec
from outrider.runner.machines import SupplySpec, check_supply


def supply(provider: str) -> SupplySpec:
    return SupplySpec(machines=MachineSpec(provider=provider), pool=PoolConfig(name="p"), is_shared=True)


def test_machines_must_suit_their_environment():
    osworld = environments_of("osworld")
    assert check_supply(supply("desktop"), osworld, "osworld").name == "desktop"
    with pytest.raises(InvalidInput, match="osworld needs machines with screen; those of process have: commands"):
        check_supply(supply("process"), osworld, "osworld")
    tree = environments_of("osworld", {"observation_type": "a11y_tree"})
    with pytest.raises(InvalidInput, match="accessibility tree"):
        check_supply(supply("process"), tree, "osworld")


def test_an_environment_on_machines_is_not_run_without_and_another_not_with_them():
    with pytest.raises(InvalidInput, match="osworld acts on machines, and this run has none"):
        check_supply(None, environments_of("osworld"), "osworld")
    with pytest.raises(InvalidInput, match="math uses no machines"):
        check_supply(supply("desktop"), environments_of("math"), "math")
    assert check_supply(None, environments_of("py"), "py") is None
    assert check_supply(supply("process"), environments_of("py"), "py") is not None


def test_an_unknown_kind_of_machine_is_named_with_those_there_are():
    with pytest.raises(InvalidInput, match="did you mean desktop"):
        check_supply(supply("desktp"), environments_of("osworld"), "osworld")
