"""`outrider bench`: the programs in a checkout's `bench` folder."""

import runpy
import sys
from pathlib import Path

import click

from outrider.cli.output import echo
from outrider.core.errors import InvalidInput


@click.command("bench", context_settings={"ignore_unknown_options": True})
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(*, name: str | None, arguments: tuple[str, ...]) -> None:
    """Measure Outrider against its peers. Run it in a checkout; `outrider bench NAME --help` tells its options."""
    programs = {path.stem: path for path in sorted(Path("bench").glob("*.py")) if "\ndef run(" in path.read_text()}
    if not programs:
        raise InvalidInput("there are no benchmarks in ./bench; run this in a checkout of Outrider")
    if name is None:
        echo("\n".join(programs))
        return
    if name not in programs:
        raise InvalidInput(f"there is no benchmark {name!r}; there are {', '.join(programs)}")
    sys.argv = [f"outrider bench {name}", *arguments]
    sys.path.insert(0, str(Path("bench").resolve()))
    runpy.run_path(str(programs[name]), run_name="__main__")
