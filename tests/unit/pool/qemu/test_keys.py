import string

import pytest

from outrider.core.errors import MachineError
from outrider.pool.computer import Button, Input, Key, MoveTo, Pause, Press, Scroll, Text
from outrider.pool.qemu import keys

SCREEN = (720, 400)


def sent(event: Input) -> list[str]:
    """Each stroke in a word or two."""
    words = []
    for part in keys.strokes(event, SCREEN):
        for one in part:
            data = one["data"]
            match one["type"]:
                case "key":
                    words.append(f"{data['key']['data']} {'down' if data['down'] else 'up'}")
                case "btn":
                    words.append(f"{data['button']} {'down' if data['down'] else 'up'}")
                case "abs":
                    words.append(f"{data['axis']} {data['value']}")
    return words


def test_a_capital_is_typed_with_shift_held_down():
    assert sent(Text("a")) == ["a down", "a up"]
    assert sent(Text("A?")) == [
        *("shift down", "a down", "a up", "shift up"),
        *("shift down", "slash down", "slash up", "shift up"),
    ]


def test_every_printable_character_of_ascii_can_be_typed():
    keys.check([Text(string.printable.replace("\x0b", "").replace("\x0c", ""))], SCREEN)


def test_named_keys_go_down_and_up_apart():
    assert sent(Key("ctrlleft")) == ["ctrl down"]
    assert sent(Key("F5", down=False)) == ["f5 up"]
    assert sent(Key("enter")) == ["ret down"]


def test_what_has_no_key_is_refused_and_named():
    with pytest.raises(MachineError, match="'é'"):
        keys.check([Text("caf"), Text("é")], SCREEN)
    with pytest.raises(MachineError, match="'hyperspace'"):
        keys.check([Key("hyperspace")], SCREEN)


@pytest.mark.parametrize("size", [(720, 400), (1280, 800), (1920, 1080), (1, 1)])
def test_each_pixel_has_a_place_of_its_own_within_the_range_of_the_tablet(size):
    width, height = size
    for axis, length in enumerate(size):
        for pixel in range(length):
            point = (pixel, 0) if axis == 0 else (0, pixel)
            (part,) = keys.strokes(MoveTo(*point), (width, height))
            place = part[axis]["data"]["value"]
            assert 0 <= place <= 0x7FFF
            assert place * length // 0x8000 == pixel


@pytest.mark.parametrize("point", [(720, 0), (0, 400), (-1, 0), (0, -1)])
def test_a_place_beside_the_screen_is_refused(point):
    with pytest.raises(MachineError, match="720 by 400"):
        keys.check([MoveTo(*point)], SCREEN)


def test_the_wheel_turns_click_by_click():
    assert sent(Scroll(dy=2)) == ["wheel-up down", "wheel-up up"] * 2
    assert sent(Scroll(dx=-1)) == ["wheel-left down", "wheel-left up"]
    assert sent(Scroll(dx=1, dy=-1)) == [
        *("wheel-down down", "wheel-down up"),
        *("wheel-right down", "wheel-right up"),
    ]


def test_buttons_have_their_names_and_a_pause_sends_nothing():
    assert [sent(Press(button)) for button in Button] == [["left down"], ["middle down"], ["right down"]]
    assert sent(Pause(1.0)) == []
