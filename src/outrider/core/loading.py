"""Finding a user's own code by its name, `module:attribute`."""

import importlib
import sys
from difflib import get_close_matches
from typing import Any

from outrider.core.errors import InvalidInput


def load(name: str, what: str, *, such_as: str) -> Any:
    """What `name` stands for; modules in the current folder are found too. `what` and `such_as` are for messages."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise InvalidInput(f"{what} {name!r}: write it as module:name, such as {such_as}")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise InvalidInput(f"{what} {name!r}: name the module, not its file: {dotted}:{attribute}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module_name + ".").startswith(exc.name + "."):
            raise
        raise InvalidInput(
            f"{what} {name!r}: there is no module {exc.name!r} here or among the installed ones"
        ) from exc
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, vars(found), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidInput(f"{what} {name!r}: module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, part)
    return found
