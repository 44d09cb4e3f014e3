"""PyAutoGUI code from events, and events from PyAutoGUI code."""

import pytest

from outrider.core.errors import MachineRefusal
from outrider.pool.computer import Button, Key, MoveTo, Pause, Press, Scroll, Text
from outrider.pool.osworld_protocol import script

LEFT = [Press(), Press(down=False)]
RIGHT = [Press(Button.RIGHT), Press(Button.RIGHT, down=False)]
OSWORLD = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


def keys(*names: str) -> list[Key]:
    return [Key(name, down=down) for name in names for down in (True, False)]


@pytest.mark.parametrize(
    "events",
    [
        [MoveTo(3, 4), *LEFT],
        [Press(Button.MIDDLE), MoveTo(0, 0), Press(Button.MIDDLE, down=False)],
        [Scroll(0, -3), Scroll(2, 0)],
        [Key("ctrlleft"), *keys("c"), Key("ctrlleft", down=False)],
        [*keys("'", "\\", ";")],
        [Text('it\'s "quoted"; \\ and\nnew\tlines'), Pause(0.25)],
        [],
    ],
)
def test_what_is_written_is_read_back(events):
    assert script.read(script.written(events)) == tuple(events)


def test_a_less_than_sign_is_typed_by_its_keys():
    code = script.written([Text("a<b<")])
    assert code.count("hotkey('shift', ',')") == 2
    shifted = [Key("shift"), Key(","), Key(",", down=False), Key("shift", down=False)]
    assert script.read(code) == (Text("a"), *shifted, Text("b"), *shifted)


def test_a_wheel_that_turns_both_ways_turns_one_after_the_other():
    assert script.read(script.written([Scroll(1, 2)])) == (Scroll(0, 2), Scroll(1, 0))


def test_text_that_has_no_keys_is_refused():
    with pytest.raises(MachineRefusal, match="'é'"):
        script.written([Text("café")])


@pytest.mark.parametrize(
    ("code", "events"),
    [
        ("pyautogui.click(10, 20)", [MoveTo(10, 20), *LEFT]),
        ("pyautogui.click(x=10.4, y=20.6, button='right')", [MoveTo(10, 21), *RIGHT]),
        ("pyautogui.click((5, 6), clicks=2, interval=0.1)", [MoveTo(5, 6), *LEFT, Pause(0.1), *LEFT]),
        ("pyautogui.click()", LEFT),
        ("pyautogui.rightClick(1, 2)", [MoveTo(1, 2), *RIGHT]),
        ("pyautogui.doubleClick()", [*LEFT, Pause(0.05), *LEFT]),
        ("pyautogui.tripleClick(1, 2)", [MoveTo(1, 2), *LEFT, Pause(0.05), *LEFT, Pause(0.05), *LEFT]),
        ("pyautogui.moveTo(7, 8, duration=0.5)", [MoveTo(7, 8), Pause(0.5)]),
        ("pyautogui.mouseDown(1, 2); pyautogui.mouseUp(button='left')", [MoveTo(1, 2), Press(), Press(down=False)]),
        ("pyautogui.dragTo(9, 9, 1, button='left')", [Press(), Pause(1.0), MoveTo(9, 9), Press(down=False)]),
        ("pyautogui.scroll(-5, x=1, y=2)", [MoveTo(1, 2), Scroll(0, -5)]),
        ("pyautogui.hscroll(4)", [Scroll(4, 0)]),
        ("pyautogui.press('Enter')", keys("enter")),
        ("pyautogui.press(['a', 'A'], presses=2)", keys("a", "A", "a", "A")),
        ("pyautogui.hotkey('ctrl', 'c')", [Key("ctrl"), Key("c"), Key("c", down=False), Key("ctrl", down=False)]),
        ("pyautogui.keyDown('shift')\npyautogui.keyUp('shift')", keys("shift")),
        ("pyautogui.typewrite('hi', interval=0.1)", [Text("h"), Pause(0.1), Text("i"), Pause(0.1)]),
        ("pyautogui.write(['a', 'enter'])", keys("a", "enter")),
        ("time.sleep(2)", [Pause(2.0)]),
        ("", []),
    ],
)
def test_what_agents_write_is_understood(code, events):
    assert script.read(OSWORLD + code) == tuple(events)


@pytest.mark.parametrize(
    "code",
    [
        "for i in range(3): pyautogui.click(i, i)",
        "x = 5; pyautogui.click(x, x)",
        "pyautogui.click('button.png')",
        "pyautogui.click(10)",
        "pyautogui.moveRel(1, 1)",
        "print(pyautogui.position())",
        "pyautogui.click(*place)",
        "pyautogui.click(**place)",
        "pyautogui.click(button='fourth')",
        "pyautogui.press(7)",
        "os.remove('x')",
        "pyautogui.PAUSED = 1; __import__('os')",
        "pyautogui.click(",
        "pyautogui.press('a', presses=1000000000)",
        "pyautogui.click(1, 2, clicks=1000000000)",
        "\0",
    ],
)
def test_code_that_does_more_is_left_to_the_machine(code):
    assert script.read(OSWORLD + code) is None
