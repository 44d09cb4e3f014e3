"""VMware and VirtualBox through stand-ins of their command lines: what is refused, what fails, what is left then."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hypervisor_stand_ins.machines import FAULT
from hypervisor_stand_ins.stage import PROGRAMS, calls, product, virtualbox_image, vmware_image
from leaks import no_leaks
from outrider.core.errors import InvalidInput, MachineError
from outrider.pool.hypervisor.places import Label
from outrider.pool.provider import RunningMachine
from outrider.pool.providers.process import ProcessProvider
from outrider.pool.registry import provider_of
from outrider.pool.spec import MachineSpec

US = f"us-{os.getpid()}"
SOON_SECONDS = 20.0


class Product(NamedTuple):
    name: str
    program: Path
    make_image: Callable[..., Any]


PRODUCTS = [
    Product("vmware", PROGRAMS / "vmrun", vmware_image),
    Product("virtualbox", PROGRAMS / "VBoxManage", virtualbox_image),
]


class Bench:
    """One product with one image."""

    def __init__(self, product: Product, folder: Path) -> None:
        self.product = product
        self.folder = folder
        self.image = str(product.make_image(folder / "state" / "image"))

    def provider(self, *, image: str | None = None, settings: dict[str, Any] | None = None, **spec: Any) -> Any:
        values = {"program": str(self.product.program), "folder": str(self.folder / "clones"), **(settings or {})}
        return provider_of(MachineSpec(provider=self.product.name, image=image or self.image, settings=values, **spec))


@pytest.fixture(params=PRODUCTS, ids=lambda product: product.name)
def bench(request: pytest.FixtureRequest, tmp_path: Path, guest_host: Path) -> Iterator[Bench]:
    with product(tmp_path, guest_host):
        yield Bench(request.param, tmp_path)
    assert not [path for path in (tmp_path / "clones").glob("*") if path.suffix != ".claim"]


@pytest.fixture(autouse=True)
async def nothing_left(tmp_path: Path) -> AsyncIterator[None]:
    async with no_leaks():
        yield
    guests = ProcessProvider(folder=tmp_path / "machines")
    assert await guests.owned("served") == ()
    await guests.close()


async def destroyed(machine: RunningMachine) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        await machine.destroy()


async def test_a_program_that_is_missing_is_named_with_how_to_get_it(bench, tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"none/there, which is not there; install .*PATH; the setting `program`"):
        await bench.provider(settings={"program": "none/there"}).check(1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match=f"needs the program {bench.product.program.name},"):
        await bench.provider(settings={"program": None}).check(1)


async def test_an_image_that_is_missing_is_named(bench):
    with pytest.raises(InvalidInput, match=r"there is no image .*none\.vmx|no machine '/none\.vmx', it has osworld"):
        await bench.provider(image="/none.vmx").check(1)


async def test_no_image_or_a_setting_that_is_none_is_refused(bench):
    with pytest.raises(InvalidInput, match="needs an image"):
        provider_of(MachineSpec(provider=bench.product.name))
    with pytest.raises(InvalidInput, match="did you mean boot_seconds"):
        bench.provider(settings={"boot_second": 1})


async def test_a_snapshot_that_is_missing_is_told_with_those_there_are(bench, tmp_path):
    with pytest.raises(InvalidInput, match="no snapshot 'init-state': there are init_state"):
        await bench.provider(snapshot="init-state").check(1)
    for path in (tmp_path / "state" / "image" / "snapshots").iterdir():
        path.rmdir()
    with pytest.raises(InvalidInput, match="it has none"):
        await bench.provider().check(1)


async def test_more_memory_than_there_is_is_refused_with_the_arithmetic(bench):
    await bench.provider().check(2)
    with pytest.raises(InvalidInput, match=r"1000000 machines of 16 MiB need 16000000 MiB .* would fit"):
        await bench.provider().check(1_000_000)


@pytest.mark.parametrize(
    ("fault", "settings", "reason"),
    [
        ("no boot", {"boot_seconds": 1.5}, "was not up within 1.5 s: .* look whether it boots"),
        ("dies", {}, "went off while it was starting"),
        ("hangs", {"command_seconds": 1.0}, "did not end within 1 s and was killed"),
    ],
)
async def test_a_guest_that_does_not_come_up_is_an_error_in_time_and_is_ended(
    bench, monkeypatch, fault, settings, reason
):
    provider = bench.provider(settings=settings)
    monkeypatch.setenv(FAULT, fault)
    async with asyncio.timeout(SOON_SECONDS):
        with pytest.raises(MachineError, match=reason):
            await provider.create("m-1", US)
    assert await provider.owned(US) == ()


async def test_a_machine_of_an_image_that_is_missing_fails_at_once(bench):
    provider = bench.provider(image="/none.vmx")
    async with asyncio.timeout(SOON_SECONDS):
        with pytest.raises(MachineError, match=r"cannot be found|Could not find"):
            await provider.create("m-1", US)
    assert await provider.owned(US) == ()


async def test_a_reset_that_fails_says_why_and_the_machine_can_still_be_ended(bench, monkeypatch):
    provider = bench.provider(settings={"boot_seconds": 5.0})
    machine = await provider.create("m-1", US)
    monkeypatch.setenv(FAULT, "dies")
    with pytest.raises(MachineError, match="went off while it was starting"):
        await machine.reset()
    await destroyed(machine)


async def test_an_id_is_taken_once_and_what_cannot_be_ended_raises_and_is_still_owned(bench, monkeypatch):
    provider = bench.provider()
    machine = await provider.create("m-1", US)
    with pytest.raises(MachineError, match="already"):
        await provider.create("m-1", US)
    await machine.probe()
    monkeypatch.setenv(FAULT, "stays")
    with pytest.raises(MachineError, match="it will not stop"):
        await machine.destroy()
    assert [address["machine_id"] for address in await provider.owned(US)] == ["m-1"]
    monkeypatch.delenv(FAULT)
    await destroyed(machine)
    assert await provider.owned(US) == ()


@pytest.mark.parametrize(("headless", "words"), [(None, ["nogui", "headless"]), (False, ["gui", "gui"])])
async def test_a_window_is_shown_on_demand_and_a_screen_of_another_size_is_told(bench, headless, words):
    with pytest.raises(MachineError, match="is 0 x 0 and its width was to be 1920"):
        await bench.provider(headless=headless, width=1920).create("m-1", US)
    (start,) = (call for call in calls() if {"start", "startvm"} & set(call))
    assert start[-1] in words


async def test_a_clone_of_another_snapshot_or_one_that_is_off_is_ended_and_not_adopted(bench, tmp_path):
    (tmp_path / "state" / "image" / "snapshots" / "other").mkdir()
    left = await bench.provider(snapshot="other").create("m-1", US)
    await left.let_go()
    provider = bench.provider()
    (address,) = await provider.owned(US)
    assert await provider.adopt("m-1", address) is None
    assert await provider.owned(US) == ()


async def test_a_clone_that_was_not_finished_is_found_and_removed(bench, tmp_path):
    half = tmp_path / "clones" / str(Label(US, "m-1", "0" * 8))
    half.mkdir(parents=True)
    provider = bench.provider()
    (address,) = await provider.owned(US)
    assert await provider.adopt("m-1", address) is None
    assert await provider.owned(US) == ()
    assert not half.exists()


async def test_the_image_itself_is_one_machine_that_one_pool_has_at_a_time(bench):
    provider, other = (bench.provider(settings={"clone": False}) for _ in range(2))
    with pytest.raises(InvalidInput, match="2 machines need clones"):
        await provider.check(2)
    machine = await provider.create("m-1", US)
    with pytest.raises(MachineError, match=f"in use by machine m-1 of {US}"):
        await other.create("m-2", "others")
    assert await other.owned(US) == (machine.address,)
    assert await other.adopt("m-1", machine.address) is None
    await machine.plant("mark")
    await machine.reset()
    assert not await machine.has("mark")
    await machine.plant("mark")
    await destroyed(machine)
    assert await provider.owned(US) == ()
    again = await other.create("m-2", "others")
    assert not await again.has("mark")
    await destroyed(again)
    await provider.check(1)
    await provider.close()


async def test_an_image_in_use_is_taken_over_when_its_owner_has_died(bench):
    provider = bench.provider(settings={"clone": False})
    left = await provider.create("m-1", US)
    left._place._claim.let_go(forget=False)
    await left.let_go()
    other = bench.provider(settings={"clone": False})
    (address,) = await other.owned(US)
    assert await other.adopt("m-2", address) is None
    machine = await other.adopt("m-1", address)
    assert machine.address == address
    await machine.probe()
    await destroyed(machine)


def test_an_appliance_is_to_be_imported_first_and_a_file_registered(guest_host, tmp_path):
    with pytest.raises(InvalidInput, match=r"VBoxManage import /x/os\.ova --vsys 0"):
        provider_of(MachineSpec(provider="virtualbox", image="/x/os.ova"))
    with product(tmp_path, guest_host):
        spec = MachineSpec(
            provider="virtualbox", image="/x/os.vbox", settings={"program": str(PROGRAMS / "VBoxManage")}
        )
        with pytest.raises(InvalidInput, match=r"it has none; register it with: VBoxManage registervm /x/os\.vbox"):
            asyncio.run(provider_of(spec).check(1))


def test_a_stand_in_refuses_what_it_does_not_know(bench):
    done = subprocess.run([bench.product.program, "fly"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "fly" in done.stdout + done.stderr


@pytest.mark.parametrize("owner", ["us", "a b", "a+b/c=d%20\\é", "..", ""])
def test_the_name_of_a_clone_tells_its_owner_whatever_that_is(owner):
    label = Label(owner, "m-1", "01234567")
    assert Label.read(str(label)) == label
    assert "/" not in str(label)
    assert Label.read("outrider") is None
    assert Label.read("somebody's own machine") is None
