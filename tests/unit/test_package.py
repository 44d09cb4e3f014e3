"""The package itself: what it gives, and what it loads for that."""

import pytest

import outrider
from processes import output_of

LOADED = "import sys, {}; print(*sorted({{name.split('.')[1] for name in sys.modules if 'outrider.' in name}}))"


def test_every_public_name_is_there_and_is_listed():
    assert dir(outrider) == outrider.__all__ == sorted(outrider.__all__)
    assert all(getattr(outrider, name).__name__ == name for name in outrider.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Ruollout'"):
        getattr(outrider, "Ruollout")  # noqa: B009 a type checker knows that it is missing


@pytest.mark.parametrize(
    ("module", "loaded"),
    [("outrider", ""), ("outrider.core.rollout", "core"), ("outrider.cli.status", "cli core store")],
)
def test_what_is_not_used_is_not_loaded(module: str, loaded: str):
    assert output_of(LOADED.format(module)) == loaded
