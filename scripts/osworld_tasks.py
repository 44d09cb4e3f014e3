"""Which task files of OSWorld's form Outrider accepts, and what the others need.

Given the folder `evaluation_examples/examples` of a checkout of OSWorld, it counts what docs/testing.md tells:

    python scripts/osworld_tasks.py OSWorld/evaluation_examples/examples

Files that tasks name are taken to be at hand.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from outrider.core.errors import InvalidInput
from outrider.env.osworld.checking import check_tasks
from outrider.env.osworld.task import load_tasks


def reasons(file: Path) -> list[str]:
    """Why the task in a file is refused; nothing if it is accepted."""
    try:
        check_tasks(load_tasks(file))
    except InvalidInput as exc:
        first, *problems = str(exc).splitlines()
        return [problem.removeprefix("- ").rpartition(": task ")[0] for problem in problems] or [first]
    return []


def main(folder: str) -> int:
    files = sorted(Path(folder).rglob("*.json"))
    refused = [found for file in files if (found := reasons(file))]
    print(f"{len(files) - len(refused)} of {len(files)} task files are accepted")
    for reason, n in Counter(reason for found in refused for reason in found).most_common():
        print(f"{n:5} {reason}")
    return 0 if files else 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="task files are looked for in it and in the folders in it")
    sys.exit(main(parser.parse_args().folder))
