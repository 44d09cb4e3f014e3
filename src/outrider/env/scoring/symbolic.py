r"""The program that compares formulas, a process of its own: one request a line comes in, JSON lines go out.

Invariants:
- A comparison that takes too long ends the process, by alarms that nothing in it handles: the kernel does it, so no
  formula can hold it up, and it happens even if nobody is left who waits for the answer. One alarm goes by processor
  time, since a busy machine says nothing about a formula, and one by the clock.
- It cannot take more memory than `MEMORY_BYTES`.
- It ends with its standard input.

It is run as a file and imports nothing of Outrider, so that it starts as fast as the library allows.
"""

import importlib
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

MEMORY_BYTES = 2 * 2**30

_SYMBOLS = str.maketrans(
    {
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "\u00d7": r"\times ",
        "÷": "/",
        "\u2212": "-",
        "°": r"^\circ ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\leq ",
        "≥": r"\geq ",
        "≠": r"\neq ",
        "\u222a": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "²": "^2",
        "³": "^3",
        "$": "",
        "\n": " ",
    }
)
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\b|\d\s+[A-Za-z]+\s*$")
"""What may end in a unit: `5 m` does, while `5m` is five times m."""

_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\*\*\s*\(([^()]*)\)", r"^{\1}"),
        (r"\*\*", "^"),
        (r"\^\s*(\d{2,})", r"^{\1}"),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\w+)", r"\\sqrt{\1}"),
        (r"<=", r"\\leq "),
        (r">=", r"\\geq "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])(?:infinity|infty|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])(sin|cos|tan|exp|ln|log)(?=[\s(\d])", r"\\\1"),
    )
)


def to_latex(text: str) -> str:
    """A formula as people type it, in the LaTeX that the library reads."""
    text = text.translate(_SYMBOLS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


class Comparison:
    """The library, loaded once. Its own timeouts are signals for the main thread only; the alarms stand in for them."""

    def __init__(self) -> None:
        self._library: Any = importlib.import_module("math_verify")
        config = self._library.LatexExtractionConfig()
        self._with_units = [config]
        self._bare = [replace(config, normalization_config=replace(config.normalization_config, units=False))]

    def read(self, formula: str) -> list[Any]:
        """What the library makes of a formula; empty: nothing."""
        kind = self._with_units if _UNIT.search(formula) else self._bare
        read: list[Any] = self._library.parse(f"${to_latex(formula)}$", kind, parsing_timeout=None)
        return read

    def find(self, said: str) -> list[Any]:
        """The formula in LaTeX that the library finds in a longer text. Its eye for plain ones takes the 5 of `5x`."""
        found: list[Any] = self._library.parse(said, self._with_units, parsing_timeout=None)
        return found

    def equal(self, expected: list[Any], given: Sequence[list[Any]]) -> bool:
        verify = self._library.verify
        return any(verify(expected, one, timeout_seconds=None, allow_set_relation_comp=True) for one in given if one)


def answer(comparison: Comparison, request: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Say first whether the expected formula could be read, so that it is known which side took too long."""
    expected = comparison.read(request["expected"])
    say({"read": bool(expected)})
    if expected:
        given = [comparison.read(request["given"])]
        if said := request.get("said"):
            given.append(comparison.find(said))
        say({"equal": comparison.equal(expected, given)})


def main() -> None:
    """Answer requests until there are no more."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes elsewhere

    def say(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who wait for the answer
    for alarm in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(alarm, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGPROF})
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable()
    try:
        comparison = Comparison()
    except Exception as exc:  # noqa: BLE001 told to the one who started it
        say({"failed": f"{type(exc).__name__}: {exc}"})
        return
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        signal.setitimer(signal.ITIMER_REAL, request["wall_seconds"])
        answer(comparison, request, say)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
