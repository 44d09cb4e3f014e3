"""Options that stand for settings of a run, and those of machines, which several commands have."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from outrider.cli.run_config import MAPPINGS, RunConfig, env_setting, header_setting, policy_settings
from outrider.core.secret import Secret

Option = Callable[[Any], Any]
"""A decorator that adds an option to a command."""

_DEFAULTS = RunConfig()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def setting(name: str, kind: Any, text: str, **attributes: Any) -> Option:
    """A flag for one setting. Its default stands in `RunConfig`, so that a configuration file can give it too."""
    default = getattr(_DEFAULTS, name)
    shown = "" if default in (None, (), "", False) or isinstance(default, Secret) else f"  [default: {default}]"
    return click.option(_flag(name), name, type=kind, default=None, help=text + shown, **attributes)


def flag(name: str, text: str) -> Option:
    return click.option(_flag(name), name, is_flag=True, default=None, help=text)


def switch_off(name: str, text: str) -> Option:
    """`--no-NAME`, for a setting that is on by default."""
    return click.option(f"--no-{name.replace('_', '-')}", name, flag_value=False, default=None, help=text)


def mapping(name: str, text: str) -> Option:
    return click.option(_flag(name), name, multiple=True, metavar="NAME=VALUE", help=text)


MACHINES = (
    setting("num_vms", int, "Machines in the pool."),
    setting(
        "provider_name", str, "desktop, qemu, browser, docker, process, attach, vmware, virtualbox, aws, or your own."
    ),
    setting(
        "path_to_vm", str, "What machines are made from: an image, a folder or host:port, depending on the provider."
    ),
    setting("snapshot_name", str, "Snapshot that machines are reset to."),
    setting("screen_width", int, "Pixels.  [default: 1920 on a desktop, else as the machine has it]"),
    setting("screen_height", int, "Pixels.  [default: 1080 on a desktop, else as the machine has it]"),
    flag("headless", "Machines open no window on this host."),
    mapping("machine", "A setting of the provider."),
    mapping("pool", "A setting of the pool, such as max_uses=20."),
)
"""Which machines, and how many."""

BORROWED = (
    flag("use_vm_pool", "All rollouts share a pool of machines; without it each has its own."),
    setting("pool_name", str, "Share the pool that `outrider pool serve` has under this name."),
    *MACHINES,
)
"""The same for who runs rollouts on them: and whose."""


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run among the values of a command's options."""
    given = _given(flags, MAPPINGS) | {"policies": policy_settings(flags.get("policies") or ())}
    return given | {"headers": dict(map(header_setting, flags.get("headers") or ()))}


def given_machines(flags: Mapping[str, Any]) -> dict[str, Any]:
    """All settings among the values of a command's options, where only those of machines hold settings themselves."""
    return _given(flags, ("machine", "pool"))


def _given(flags: Mapping[str, Any], mappings: tuple[str, ...]) -> dict[str, Any]:
    given = {name: value for name, value in flags.items() if name not in mappings and value not in (None, ())}
    texts = {name: flags.get(name) or () for name in mappings}
    read = [name for name in mappings if name != "headers"]
    return given | {name: dict(env_setting(text, _flag(name)) for text in texts[name]) for name in read}


class SectionedCommand(click.Command):
    """A command that shows its many options under headings: `sections`, which add them, by title."""

    def __init__(self, *args: Any, sections: Mapping[str, tuple[Option, ...]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = {title: [_of(option) for option in options] for title, options in sections.items()}
        self.params = [*(option for options in self._sections.values() for option in options), *self.params]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, settings in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([record for option in settings if (record := options.pop(option.name))])
        with formatter.section("Options"):
            formatter.write_dl([record for record in options.values() if record])


def _of(option: Option) -> click.Option:
    """The option that a decorator adds."""
    (added,) = option(lambda: None).__click_params__
    assert isinstance(added, click.Option)
    return added
