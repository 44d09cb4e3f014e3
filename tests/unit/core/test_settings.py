"""Settings that people write: a mistake is named with its place and the nearest name."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from outrider.core.errors import InvalidInput
from outrider.core.settings import read_yaml, settings_of


class Tyre(StrEnum):
    SLICK = "slick"
    STUDDED = "studded"


class Wheel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inches: int = 28
    tyre: Tyre | None = None


class Bicycle(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    frame: str = "steel"
    front: Wheel = Wheel()
    spare: Wheel | None = None
    wheels: tuple[Wheel, ...] = ()
    by_name: Mapping[str, Wheel] = {}
    sets: Mapping[str, tuple[Wheel, ...]] = {}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"frme": "x"}, "unknown field `frme`; did you mean frame?"),
        ({"front": {"inch": 1}}, "at `$.front`; did you mean inches?"),
        ({"spare": {"inch": 1}}, "at `$.spare`; did you mean inches?"),
        ({"wheels": [{}, {"inch": 1}]}, "at `$.wheels[1]`; did you mean inches?"),
        ({"by_name": {"good": {}, "bad": {"inch": 1}}}, "at `$.by_name.bad`; did you mean inches?"),
        ({"sets": {"a": [{}], "b": [{"inch": 1}]}}, "at `$.sets.b[0]`; did you mean inches?"),
        ({"by_name": {"bad": {"colour": 1}}}, "at `$.by_name.bad`; there are inches, tyre"),
        ({"front": {"inches": "many"}}, "Expected `int`, got `str` - at `$.front.inches`"),
        ({"wheels": [{"tyre": "flat"}]}, "value 'flat' - at `$.wheels[0].tyre`; give slick or studded"),
        ({"by_name": {"a": {"tyre": "flat"}}}, "value 'flat' - at `$.by_name[...].tyre`; give slick or studded"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_nearest_name(values: dict[str, Any], says: str):
    with pytest.raises(InvalidInput) as error:
        settings_of(Bicycle, values, "bicycle.yaml")
    assert str(error.value).startswith("bicycle.yaml: ")
    assert str(error.value).endswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [("- a\n- b\n", "holds list; write settings as `name: value`"), ("a: [1\n", "is not YAML")],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str, says: str):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_yaml(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere\.yaml: No such file"):
        read_yaml(tmp_path / "nowhere.yaml")
