"""What `make soak` counts: tests note it, `bench/soak.py` sums it up."""

import json
import os

VARIABLE = "OUTRIDER_SOAK_NOTES"


def note_soak(what: str, **counts: int) -> None:
    """Print the counts of one test, and keep them where a soak run asks for them."""
    line = json.dumps({"what": what, **counts})
    print(line)
    if file := os.environ.get(VARIABLE):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)
