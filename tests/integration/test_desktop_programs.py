"""Programs in a desktop, by the part of its guest program that runs them."""

import os
from pathlib import Path

from outrider.pool.desktop.inside.programs import Programs


def test_what_a_program_said_is_whole_while_one_in_the_background_goes_on_writing(tmp_path: Path):
    programs = Programs({"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, str(tmp_path))
    writer = "i=0; while [ $i -lt 3000 ]; do echo more; i=$((i+1)); done"
    for _ in range(20):
        said = programs.execute(f"echo done; ({writer}) &", 10).stdout
        assert said.startswith(b"done\n")
