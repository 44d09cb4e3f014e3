"""Options that stand for settings of a run, and those of its machines, which `outrider pool serve` has too."""

from collections.abc import Callable
from typing import Any

import click

from outrider.cli.run_config import MAPPINGS, RunConfig, env_setting, policy_setting

_DEFAULTS = RunConfig()


def setting(name: str, kind: Any, text: str, **attributes: Any) -> Callable[[Any], Any]:
    """A flag for one setting. Its default stands in `RunConfig`, so that a configuration file can give it too."""
    default = getattr(_DEFAULTS, name)
    shown = "" if default in (None, (), "", False) else f"  [default: {default}]"
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, name, type=kind, default=None, help=text + shown, **attributes)


def flag(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name.replace('_', '-')}", name, is_flag=True, default=None, help=text)


def mapping(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", name, multiple=True, metavar="NAME=VALUE", help=text)


MACHINES = (
    setting("num_vms", int, "Machines in the pool."),
    setting(
        "provider_name", str, "desktop, qemu, browser, docker, process, attach, vmware, virtualbox, aws, or your own."
    ),
    setting("path_to_vm", str, "What machines are made of: image, folder, or host:port, as the provider has it."),
    setting("snapshot_name", str, "Snapshot that machines are reset to."),
    setting("screen_width", int, "Pixels.  [default: 1920, or as the machine has it]"),
    setting("screen_height", int, "Pixels.  [default: 1080, or as the machine has it]"),
    flag("headless", "Machines open no window on this host."),
    mapping("machine", "A setting of the provider."),
    mapping("pool", "A setting of the pool, such as max_uses=20."),
)
"""Which machines, and how many."""


def given_settings(flags: dict[str, Any]) -> dict[str, Any]:
    """The settings among the values of a command's options."""
    given = {name: value for name, value in flags.items() if name not in MAPPINGS and value not in (None, ())}
    texts = {name: flags.get(name) or () for name in MAPPINGS}
    given |= {name: dict(env_setting(text, f"--{name}") for text in texts[name]) for name in MAPPINGS}
    return given | {"policies": dict(map(policy_setting, flags.get("policies") or ()))}
