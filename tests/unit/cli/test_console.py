from io import StringIO

import click
import pytest
from click.testing import CliRunner
from rich.console import Group
from rich.progress import Progress, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outrider.cli.console import Console
from outrider.cli.live import LiveBar
from outrider.cli.output import echo, json_text, print_json, visible
from outrider.core.decoding import from_json

HOSTILE = "[/INST] [bold]b[/bold] :smile: \x1b]52;c;aGk=\x07 \x1b[2J a\rb \u202egnp.exe \x9b2J \x7f\x08"
RAW = ("\x1b", "\x07", "\r", "\u202e", "\x9b", "\x7f", "\x08")


def printed(*renderables) -> str:
    console = Console(file=StringIO(), width=300)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()


def table() -> Table:
    made = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    made.add_row(HOSTILE)
    made.add_row(Text(HOSTILE, style="red"))
    return made


@pytest.mark.parametrize("renderable", [HOSTILE, Text(HOSTILE), table(), Rule(HOSTILE), Group(HOSTILE, Text(HOSTILE))])
def test_what_is_printed_is_text_and_steers_no_terminal(renderable):
    text = printed(renderable)
    assert "[/INST] [bold]b[/bold] :smile:" in text
    assert "\\x1b]52;c;aGk=" in text
    assert "\\u202egnp.exe" in text
    assert not [character for character in RAW if character in text]


def test_a_live_bar_and_its_lines_are_text_too():
    console = Console(file=StringIO(), force_terminal=True, width=300, color_system=None)
    with LiveBar(console, "steps") as bar:
        bar.line(HOSTILE)
        bar.show(0.0, 1, 2, Text(HOSTILE))
    text = console.file.getvalue()
    assert "[/INST]" in text
    assert "\x1b]52" not in text
    assert "\u202e" not in text
    with Progress(TextColumn("x"), console=Console(file=StringIO())):
        pass


def test_colours_given_as_styles_stay():
    console = Console(file=StringIO(), force_terminal=True, color_system="standard")
    console.print(Text("red", style="red"))
    assert console.file.getvalue() == "\x1b[31mred\x1b[0m\n"


def test_lines_and_json_are_visible_and_json_keeps_its_values():
    @click.command()
    def command():
        echo(HOSTILE)
        print_json({"text": HOSTILE})

    line, json = CliRunner().invoke(command).output.splitlines()
    assert not [character for character in RAW if character in line + json]
    assert from_json(json) == {"text": HOSTILE}
    assert from_json(json_text(["\x85\u2066ok"])) == ["\x85\u2066ok"]


def test_ordinary_text_stays_as_it_is():
    assert visible("naïve — 日本語 ✅\n\tok") == "naïve — 日本語 ✅\n\tok"
    assert visible("half \ud800") == "half \\ud800"
