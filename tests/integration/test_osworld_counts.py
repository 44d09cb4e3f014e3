"""How many task files Outrider accepts is counted by a program, so that the figure in the docs can be had again."""

import json
import re
import subprocess
import sys
from pathlib import Path

from outrider.env.registry import BUNDLED

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "scripts" / "osworld_tasks.py"


def test_task_files_of_a_folder_are_counted_and_the_others_are_listed_by_what_they_need(tmp_path: Path):
    good, other = (json.loads(line) for line in (BUNDLED / "osworld.jsonl").read_text().splitlines()[:2])
    unknown = {"type": "googledrive", "parameters": {}}
    files = {
        "os/good.json": good,
        "os/other.json": other | {"config": [*other.get("config", []), unknown]},
        "chrome/third.json": good | {"id": "third", "config": [unknown, unknown]},
    }
    for name, task in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(task))
    (tmp_path / "os/broken.json").write_text("{")
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, timeout=60, check=True)
    first, *others = done.stdout.splitlines()
    assert first == "1 of 4 task files are accepted"
    assert others[0].split(maxsplit=1) == ["2", "unknown setup type 'googledrive'"]
    assert "broken.json is not JSON" in others[1]


def test_the_figure_stands_alike_wherever_it_is_told():
    pages = ("README.md", "docs/testing.md", "docs/guides/osworld.md")
    told = {
        page: set(
            re.findall(
                r"\b(\d+)\b(?= of (?:the 369|them are accepted)| are accepted today if)", (ROOT / page).read_text()
            )
        )
        for page in pages
    }
    assert list(told.values()) == [{"72"}] * 3
    assert "scripts/osworld_tasks.py" in (ROOT / "docs/testing.md").read_text()
