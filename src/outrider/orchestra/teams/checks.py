"""Checks of what a ready-made team is told."""

from outrider.core.errors import InvalidInput


def at_least_one(**given: int) -> None:
    """Refuse a number of rounds, steps or agents that leaves nothing to do."""
    for name, value in given.items():
        if type(value) is not int or value < 1:
            raise InvalidInput(f"{name} is {value!r}; give a whole number, 1 or more")
