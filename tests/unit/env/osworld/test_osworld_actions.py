"""Both action spaces: what is valid becomes input that stays on the screen, what is not becomes words to the model."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.chat import ToolCall
from outrider.core.errors import ToolRefusal
from outrider.env.osworld import computer_13, pyautogui
from outrider.env.osworld.action import Action, Special
from outrider.env.osworld.keys import KEYS
from outrider.pool.computer import Button, Input, Key, MoveTo, Pause, Press, Scroll, Text

SCREEN = (640, 480)
LEFT = (Press(Button.LEFT), Press(Button.LEFT, down=False))
RIGHT = (Press(Button.RIGHT), Press(Button.RIGHT, down=False))

xs = st.integers(0, SCREEN[0] - 1) | st.floats(0, SCREEN[0] - 1)
ys = st.integers(0, SCREEN[1] - 1) | st.floats(0, SCREEN[1] - 1)
buttons = st.sampled_from(["left", "right", "middle"])
names = st.sampled_from(sorted(KEYS))
turns = st.integers(-50, 50)
pairs: dict[str, Any] = {"x": xs, "y": ys}
places = st.fixed_dictionaries(pairs)
VALID = st.one_of(
    *(
        parameters.map(lambda found, name=name: (name, found))
        for name, parameters in {
            "MOVE_TO": places,
            "CLICK": st.fixed_dictionaries(pairs, optional={"button": buttons, "num_clicks": st.integers(1, 3)})
            | st.fixed_dictionaries({}, optional={"button": buttons, "num_clicks": st.integers(1, 3)}),
            "MOUSE_DOWN": st.fixed_dictionaries({}, optional={"button": buttons}),
            "MOUSE_UP": st.fixed_dictionaries({}, optional={"button": buttons}),
            "RIGHT_CLICK": places | st.just({}),
            "DOUBLE_CLICK": places | st.just({}),
            "DRAG_TO": places,
            "SCROLL": st.fixed_dictionaries({"dx": turns}, optional={"dy": turns})
            | st.fixed_dictionaries({"dy": turns}),
            "TYPING": st.fixed_dictionaries({"text": st.text("abc XYZ<>é日\n\t", max_size=20)}),
            "PRESS": st.fixed_dictionaries({"key": names}),
            "KEY_DOWN": st.fixed_dictionaries({"key": names}),
            "KEY_UP": st.fixed_dictionaries({"key": names}),
            "HOTKEY": st.fixed_dictionaries({"keys": st.lists(names, min_size=1, max_size=4)}),
            "WAIT": st.just({}),
            "FAIL": st.just({}),
            "DONE": st.just({}),
        }.items()
    )
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["CLICK", "enter"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "keys", "z"]), inner),
    max_leaves=6,
)


def in_range(action: Action) -> bool:
    width, height = SCREEN
    return all(0 <= e.x < width and 0 <= e.y < height for e in action.events if isinstance(e, MoveTo))


@given(VALID, st.sampled_from(["flat", "nested", "text", "call"]))
def test_every_valid_computer_13_action_compiles_and_stays_on_the_screen(action: tuple[str, Any], form: str):
    name, parameters = action
    flat = {"action_type": name, **parameters}
    match form:
        case "flat":
            found = computer_13.compiled(flat, SCREEN)
        case "nested":
            found = computer_13.compiled({"action_type": name, "parameters": parameters}, SCREEN)
        case "text":
            (found,) = computer_13.actions_in(f"I will.\n```json\n{json.dumps(flat)}\n```", SCREEN)
        case _:
            call = ToolCall(id="1", name=name, arguments=json.dumps(parameters))
            found = computer_13.action_called(call, SCREEN)
    assert found.name == name
    assert in_range(found)
    assert (found.special is not None) == (name in Special.__members__)
    assert found.events or found.special or parameters == {"text": ""}


@given(VALUES, st.sampled_from([*computer_13.KINDS, "WAIT", "NOTHING"]), VALUES)
@example({"action_type": "CLICK", "x": 10**400, "y": 1}, "CLICK", {})
@example([], "HOTKEY", {"keys": [["ctrl"]]})
def test_garbage_is_refused_in_words_or_stays_on_the_screen(value: Any, name: str, parameters: Any):
    flat = parameters if isinstance(parameters, dict) else {}
    for written in (
        value,
        {"action_type": value},
        {"action_type": name, "parameters": parameters},
        {"action_type": name, **flat},
    ):
        with suppress(ToolRefusal):
            assert in_range(computer_13.compiled(written, SCREEN))


@given(st.text() | st.text('`{}[]"\\:,10 nWAITDONE\n'))
@example("```json\n" + "[" * 100_000)
@example("```\n```")
@example("\ud800")
@example("pyautogui.click(" + "+".join("1" * 400) + ", 1)")
@example("pyautogui.press(0x" + "f" * 9_000 + ")")
@example("pyautogui" + ".a" * 400 + "()")
@example("pyautogui.press(" + "-" * 2_000 + "1)")
@example("pyautogui.press('a" + chr(0) + "')")
def test_garbage_as_text_is_refused_in_words(text: str):
    for read in (computer_13.actions_in, pyautogui.actions_in):
        with suppress(ToolRefusal):
            assert all(in_range(found) for found in read(text, SCREEN))


@given(
    st.sampled_from(sorted(pyautogui.CALLS)),
    st.lists(VALUES, max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", "button"]), VALUES),
)
@example("click", [(1, 2, 3)], {})
@example("press", ["a", 10**9], {})
def test_garbage_given_to_pyautogui_is_refused_in_words_or_stays_on_the_screen(
    name: str, positional: list[Any], named: dict[str, Any]
):
    arguments = [repr(value) for value in positional] + [f"{key}={value!r}" for key, value in named.items()]
    with suppress(ToolRefusal):
        assert in_range(pyautogui.compiled(f"pyautogui.{name}({', '.join(arguments)})", SCREEN))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"action_type": "CLICK", "x": 640, "y": 0}, "x is 640; it must be from 0 to 639"),
        ({"action_type": "CLICK", "x": -1, "y": 0}, "x is -1"),
        ({"action_type": "CLICK", "x": 1}, "x and y go together"),
        ({"action_type": "CLICK", "x": "1", "y": 1}, "x is a number"),
        ({"action_type": "CLICK", "x": True, "y": 1}, "x is a number"),
        ({"action_type": "CLICK", "button": "top"}, "left, right or middle"),
        ({"action_type": "CLICK", "num_clicks": 4}, "from 1 to 3"),
        ({"action_type": "CLICK", "x": 1, "parameters": {"y": 1}}, "two places"),
        ({"action_type": "CLICK", "speed": 1}, "not speed"),
        ({"action_type": "CLIK"}, "did you mean CLICK?"),
        ({"action_type": "MOVE_TO"}, "needs x and y"),
        ({"action_type": "DONE", "x": 1}, "takes no parameters"),
        ({"action_type": "PRESS", "key": "entre"}, "did you mean 'enter'?"),
        ({"action_type": "HOTKEY", "keys": "ctrl"}, "list of the names"),
        ({"action_type": "TYPING", "text": "a\x1b"}, "cannot be typed"),
        ({"action_type": "SCROLL"}, "needs dx or dy"),
        ({"action_type": "SCROLL", "dx": 501, "dy": -500}, "more than 1000 clicks"),
        ("CLICK", "an action is an object"),
    ],
)
def test_a_wrong_action_is_pointed_at(action: Any, message: str):
    with pytest.raises(ToolRefusal, match=message.replace("?", r"\?")):
        computer_13.compiled(action, SCREEN)


def test_a_machine_without_a_screen_cannot_be_pointed_at():
    with pytest.raises(ToolRefusal, match="no screen"):
        computer_13.compiled({"action_type": "CLICK", "x": 0, "y": 0}, (0, 0))


@pytest.mark.parametrize(
    ("action", "events"),
    [
        ({"action_type": "CLICK", "x": 1, "y": 2.9, "num_clicks": 2}, (MoveTo(1, 2), *LEFT, Pause(0.05), *LEFT)),
        ({"action_type": "RIGHT_CLICK"}, RIGHT),
        ({"action_type": "scroll", "dy": -3}, (Scroll(dx=0, dy=-3),)),
        ({"action_type": "PRESS", "key": "Enter"}, (Key("enter"), Key("enter", down=False))),
        (
            {"action_type": "PRESS", "key": "A"},
            (Key("shift"), Key("a"), Key("shift", down=False), Key("a", down=False)),
        ),
        (
            {"action_type": "HOTKEY", "keys": ["ctrl", "c"]},
            (Key("ctrl"), Key("c"), Key("c", down=False), Key("ctrl", down=False)),
        ),
        ({"action_type": "TYPING", "text": "a<b\n"}, (Text("a<b\n"),)),
    ],
)
def test_a_computer_13_action_becomes_input(action: Any, events: tuple[Input, ...]):
    assert computer_13.compiled(action, SCREEN).events == events


def test_a_drag_goes_down_moves_there_and_comes_up():
    events = computer_13.compiled({"action_type": "DRAG_TO", "x": 5, "y": 6}, SCREEN).events
    assert [event for event in events if not isinstance(event, Pause)] == [
        Press(Button.LEFT),
        MoveTo(4, 6),
        MoveTo(5, 6),
        Press(Button.LEFT, down=False),
    ]


def test_several_actions_come_in_their_order():
    text = '```json\n[{"action_type": "CLICK"}, {"action_type": "PRESS", "key": "a"}]\n```\nthen\n```\nDONE\n```'
    assert [found.name for found in computer_13.actions_in(text, SCREEN)] == ["CLICK", "PRESS", "DONE"]


def test_each_of_the_sixteen_actions_is_a_tool():
    tools = {tool.name: tool.parameters for tool in computer_13.tools()}
    assert len(tools) == 16
    assert tools["DRAG_TO"]["required"] == ["x", "y"]
    assert [tool.name for tool in pyautogui.tools()] == ["pyautogui", "WAIT", "FAIL", "DONE"]


@pytest.mark.parametrize(
    ("code", "events"),
    [
        ("pyautogui.click(10, 20)", (MoveTo(10, 20), *LEFT)),
        ("pyautogui.click((10, 20), clicks=2, interval=0.5)", (MoveTo(10, 20), *LEFT, Pause(0.5), *LEFT)),
        ("import pyautogui\nimport time\npyautogui.FAILSAFE = False\npyautogui.click()", LEFT),
        ("pyautogui.rightClick(x=1, y=2)", (MoveTo(1, 2), *RIGHT)),
        ("pyautogui.doubleClick(1, 2, duration=1)", (MoveTo(1, 2), *LEFT, Pause(0.05), *LEFT)),
        ("pyautogui.moveTo(1, 2, duration=0.5, tween=pyautogui.easeInOutQuad)", (MoveTo(1, 2),)),
        ("pyautogui.scroll(-5, x=3, y=4)", (MoveTo(3, 4), Scroll(dx=0, dy=-5))),
        ("pyautogui.hscroll(2)", (Scroll(dx=2, dy=0),)),
        ("pyautogui.typewrite('a<b', interval=0.1)", (Text("a<b"),)),
        ("pyautogui.write('C:\\d')", (Text("C:\\d"),)),
        ("pyautogui.write(['a', 'tab'])", (Key("a"), Key("a", down=False), Key("tab"), Key("tab", down=False))),
        ("pyautogui.press('a', presses=2)", (Key("a"), Key("a", down=False)) * 2),
        ("pyautogui.press(['up', 'down'])", (Key("up"), Key("up", down=False), Key("down"), Key("down", down=False))),
        (
            "pyautogui.hotkey('ctrl', 's')",
            (Key("ctrl"), Key("s"), Key("s", down=False), Key("ctrl", down=False)),
        ),
        ("pyautogui.keyDown('shift'); pyautogui.keyUp('shift')", (Key("shift"), Key("shift", down=False))),
        ("pyautogui.mouseDown(1, 2, button='right')", (MoveTo(1, 2), Press(Button.RIGHT))),
        ("pyautogui.mouseUp()", (Press(Button.LEFT, down=False),)),
        ("time.sleep(0.5); pyautogui.sleep(1)", (Pause(0.5), Pause(1.0))),
    ],
)
def test_plain_calls_of_pyautogui_become_input(code: str, events: tuple[Input, ...]):
    found = pyautogui.compiled(code, SCREEN)
    assert found.events == events
    assert found.program is None


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(3):\n    pyautogui.press('a')",
        "x = 3\npyautogui.click(x, x)",
        "pyautogui.click(*place)",
        "pyautogui.moveRel(1, 2)",
        "import os\nos.system('true')",
        "import pyautogui as p\np.click()",
        "pyautogui.click(pyautogui.locateCenterOnScreen('a.png'))",
    ],
)
def test_other_python_is_left_for_the_machine(code: str):
    found = pyautogui.compiled(code, SCREEN)
    assert found.program == code
    assert found.events == ()
    assert found.needs_python.startswith("line ")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("pyautogui.click(", "not Python"),
        ("pyautogui.click(640, 0)", "from 0 to 639"),
        ("pyautogui.click('button.png')", "x and y go together"),
        ("pyautogui.click(1, 2, 3, 4, 'left', 6, 7)", "too many"),
        ("pyautogui.click(1, 2, speed=3)", "speed cannot be given"),
        ("pyautogui.press('entre')", "did you mean 'enter'"),
        ("time.sleep(61)", "from 0 to 60"),
        ("time.sleep(40); time.sleep(40)", "too long"),
        ("import time", "does nothing"),
    ],
)
def test_wrong_code_is_pointed_at(code: str, message: str):
    with pytest.raises(ToolRefusal, match=message):
        pyautogui.compiled(code, SCREEN)


def test_code_comes_in_fenced_blocks_or_alone_and_may_end_with_a_word():
    text = "First:\n```python\npyautogui.click()\nDONE\n```"
    assert [found.name for found in pyautogui.actions_in(text, SCREEN)] == ["pyautogui", "DONE"]
    assert pyautogui.actions_in("pyautogui.click()", SCREEN)[0].events == LEFT
    assert pyautogui.actions_in(" FAIL\n", SCREEN)[0].special is Special.FAIL
    with pytest.raises(ToolRefusal, match="no action in your message"):
        pyautogui.actions_in("I do not know.", SCREEN)


def test_no_depth_of_nesting_raises_anything_but_words():
    for depth in range(600, 1_100, 3):
        nested = "[" * depth + "]" * depth
        for key in ("key", "parameters", "action_type"):
            with pytest.raises(ToolRefusal):
                computer_13.actions_in(f'{{"action_type": "PRESS", "{key}": {nested}}}', SCREEN)
