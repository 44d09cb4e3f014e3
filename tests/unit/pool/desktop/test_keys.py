"""Keys have the names that PyAutoGUI gives them."""

import pytest

from outrider.pool.desktop.inside.keys import SYMBOLS, can_be_typed, is_needed, symbol_of, symbol_of_character


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        *[("a", 0x61), ("A", 0x41), ("!", 0x21), ("enter", 0xFF0D), ("Enter", 0xFF0D), ("f1", 0xFFBE), ("f24", 0xFFD5)],
        *[("num0", 0xFFB0), ("num9", 0xFFB9), ("\n", 0xFF0D), ("\t", 0xFF09), ("ü", 0xFC), ("€", 0x010020AC)],
        *[("😀", 0x0101F600), ("ctrl", 0xFFE3), ("space", 0x20), (" ", 0x20), ("win", 0xFFEB)],
    ],
)
def test_a_name_stands_for_a_symbol(name, symbol):
    assert symbol_of(name) == symbol


@pytest.mark.parametrize("name", ["", "nokey", "f25", "\x00", "\x80", "\ud800"])
def test_what_is_no_key_is_refused(name):
    with pytest.raises(ValueError, match="key"):
        symbol_of(name)


def test_control_characters_cannot_be_typed_but_for_those_that_have_a_key():
    assert [sign for sign in map(chr, range(0x20)) if can_be_typed(sign)] == ["\b", "\t", "\n", "\r", "\x1b"]
    assert symbol_of_character("\r") == symbol_of_character("\n")


def test_a_key_that_has_a_name_keeps_its_symbol():
    assert all(is_needed(symbol) for symbol in SYMBOLS.values())
    assert not is_needed(0)
    assert not is_needed(0x1008FE01)
