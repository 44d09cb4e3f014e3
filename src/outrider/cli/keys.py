"""Keys in the environment of a command: out of the sight of agents, which may run in this very process."""

import os
from collections.abc import Collection
from contextlib import AbstractContextManager

from outrider.core.errors import InvalidInput
from outrider.core.variables import KEY_NAMES, keys_here, withheld, withheld_names

PASS_ENV = (
    "Leave this variable in the environment of agents; may be given several times. Without it those that hold keys are "
    f"withheld: {', '.join(KEY_NAMES)}, URLs of databases with a password, and what --api-key-env and env:NAME name."
)

_OF_RAY = "RAY_AUTH_TOKEN"
"""Ray reads it itself, in the process that starts or joins it."""


def without_keys(names: Collection[str], pass_env: Collection[str], *, ray: str | None) -> AbstractContextManager[None]:
    """Keep keys out of this process's environment, and so out of that of all it starts. `names` are further ones."""
    for name in pass_env:
        if ray is None and name not in os.environ:  # nodes may have some of their own
            raise InvalidInput(f"--pass-env {name}: this variable is not set; set it, or leave the option out")
    passed = {*pass_env, *([] if ray is None else [_OF_RAY])}
    return withheld(keys_here(names, passed), passed)


def withheld_notes(*code: str) -> list[str]:
    """Which keys agents do not find in their environment, if one of the names in `code` is a user's own code."""
    names = withheld_names() if any(":" in name.removeprefix("team:") for name in code) else []
    return [f"not in the environment of agents: {', '.join(names)}; --pass-env NAME hands one on"] if names else []
