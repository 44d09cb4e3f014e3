"""Python tasks: a script that has learnt a few programs by heart, tries what it writes, and hands it in."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant
from outrider.policy.scripted.protocol import Script

RUN, SUBMIT = "run_python", "submit"
_FORM = "```python block"
_NAME = re.compile(r"`([A-Za-z_]\w*)")
_PROGRAM = re.compile(r"\bprogram\s+`")


class Known(NamedTuple):
    """A program, a trial of it, and what the trial must print."""

    source: str
    trial: str
    printed: str


class PythonScript(Script):
    """Goes by the name in backticks that a task gives to what shall be written."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        offered = any(tool.name == RUN for tool in tools)
        return offered or any(message.role is Role.SYSTEM and _FORM in message.content for message in messages)

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        known = PROGRAMS.get(_asked(messages))
        if known is None:
            return assistant("I have not learnt how to write this.")
        offered = {tool.name for tool in tools}
        tried = _last_result(messages)
        if RUN in offered and tried is None:
            return _call(messages, RUN, f"{known.source}\n{known.trial}")
        if tried is not None and not (tried.startswith("exit code 0") and f"\n{known.printed}" in tried):
            return assistant(f"My program does not do what it should:\n{tried}")
        return _handed_in(messages, offered, known.source)

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:
        offered = {tool.name for tool in tools}
        value = rng.choice(("None", "0", "1", "[]", "''", "'abc'"))
        name = _asked(messages) or "solution"
        is_program = any(_PROGRAM.search(message.content) for message in messages)
        source = f"print({value})" if is_program else f"def {name}(*arguments):\n    return {value}"
        if RUN in offered and _last_result(messages) is None and rng.random() < 0.5:  # noqa: PLR2004 a coin
            return _call(messages, RUN, source)
        return _handed_in(messages, offered, source)


def _asked(messages: Sequence[Message]) -> str:
    """The name of what shall be written: the first in backticks in what the user says."""
    said = (message.content for message in messages if message.role is Role.USER)
    return next((found[1] for text in said if (found := _NAME.search(text))), "")


def _last_result(messages: Sequence[Message]) -> str | None:
    return next((message.content for message in reversed(messages) if message.role is Role.TOOL), None)


def _handed_in(messages: Sequence[Message], offered: set[str], source: str) -> Message:
    if SUBMIT in offered:
        return _call(messages, SUBMIT, source)
    return assistant(f"```python\n{source}\n```")


def _call(messages: Sequence[Message], name: str, code: str) -> Message:
    return assistant(
        tool_calls=(ToolCall(id=f"call_{len(messages)}", name=name, arguments=json.dumps({"code": code})),)
    )


PROGRAMS: Mapping[str, Known] = MappingProxyType(
    {
        "roman_to_int": Known(
            """\
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman_to_int(text):
    values = [VALUES[letter] for letter in text]
    return sum(-v if v < following else v for v, following in zip(values, values[1:] + [0]))
""",
            "print(roman_to_int('XIV'))",
            "14",
        ),
        "run_length": Known(
            """\
from itertools import groupby


def run_length(text):
    return [(character, len(list(run))) for character, run in groupby(text)]
""",
            "print(run_length('aab'))",
            "[('a', 2), ('b', 1)]",
        ),
        "is_balanced": Known(
            """\
def is_balanced(text):
    closing = {")": "(", "]": "[", "}": "{"}
    open_brackets = []
    for character in text:
        if character in closing.values():
            open_brackets.append(character)
        elif character in closing and (not open_brackets or open_brackets.pop() != closing[character]):
            return False
    return not open_brackets
""",
            "print(is_balanced('[()]'), is_balanced('[(])'))",
            "True False",
        ),
        "merge_intervals": Known(
            """\
def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
""",
            "print(merge_intervals([[3, 4], [1, 3]]))",
            "[[1, 4]]",
        ),
        "flatten": Known(
            """\
def flatten(nested):
    flat = []
    for item in nested:
        flat.extend(flatten(item) if isinstance(item, list) else [item])
    return flat
""",
            "print(flatten([1, [2, [3]]]))",
            "[1, 2, 3]",
        ),
        "longest_common_prefix": Known(
            """\
def longest_common_prefix(words):
    prefix = min(words, default="")
    while not all(word.startswith(prefix) for word in words):
        prefix = prefix[:-1]
    return prefix
""",
            "print(longest_common_prefix(['inter', 'into']))",
            "int",
        ),
        "spiral": Known(
            """\
def spiral(matrix):
    rows, seen = [list(row) for row in matrix], []
    while rows:
        seen += rows.pop(0)
        rows = [list(row) for row in zip(*rows)][::-1]
    return seen
""",
            "print(spiral([[1, 2], [3, 4]]))",
            "[1, 2, 4, 3]",
        ),
        "primes_below": Known(
            """\
def primes_below(n):
    prime = bytearray([1]) * max(n, 2)
    prime[0:2] = b"\\0\\0"
    for i in range(2, int(n**0.5) + 1 if n > 0 else 0):
        if prime[i]:
            prime[i * i :: i] = bytes(len(range(i * i, len(prime), i)))
    return [i for i in range(max(n, 0)) if prime[i]]
""",
            "print(primes_below(12))",
            "[2, 3, 5, 7, 11]",
        ),
        "first_at_least": Known(
            """\
def first_at_least(items, wanted):
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
""",
            "print(first_at_least([1, 2, 2, 4], 2), first_at_least([1], 2))",
            "1 1",
        ),
        "LruCache": Known(
            """\
class LruCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.values = {}

    def get(self, key):
        if key not in self.values:
            return None
        self.values[key] = self.values.pop(key)
        return self.values[key]

    def put(self, key, value):
        self.values.pop(key, None)
        self.values[key] = value
        if len(self.values) > self.capacity:
            del self.values[next(iter(self.values))]
""",
            "cache = LruCache(1); cache.put(1, 2); cache.put(3, 4); print(cache.get(1), cache.get(3))",
            "None 4",
        ),
        "fewest_coins": Known(
            """\
def fewest_coins(amount, coins):
    fewest = [0] + [None] * amount
    for total in range(1, amount + 1):
        ways = [fewest[total - coin] for coin in coins if coin <= total]
        fewest[total] = min((way + 1 for way in ways if way is not None), default=None)
    return -1 if fewest[amount] is None else fewest[amount]
""",
            "print(fewest_coins(7, [1, 5]), fewest_coins(1, [2]))",
            "3 -1",
        ),
        "rotate": Known(
            """\
def rotate(items, steps):
    if items:
        steps %= len(items)
        items[:] = items[-steps:] + items[:-steps]
""",
            "items = [1, 2, 3]; rotate(items, 1); print(items)",
            "[3, 1, 2]",
        ),
        "build_order": Known(
            """\
def build_order(needs):
    waiting = {name: set(needs.get(name, ())) for name in {*needs, *(n for of in needs.values() for n in of)}}
    order = []
    while waiting:
        ready = min((name for name, missing in waiting.items() if not missing), default=None)
        if ready is None:
            raise ValueError("there is a cycle")
        order.append(ready)
        del waiting[ready]
        for missing in waiting.values():
            missing.discard(ready)
    return order
""",
            "print(build_order({'a': ['b']}))",
            "['b', 'a']",
        ),
        "count_words": Known(
            """\
import sys
from collections import Counter

counts = Counter(sys.stdin.read().lower().split())
for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
    print(word, count)
""",
            "print('ready')",
            "ready",
        ),
        "caesar": Known(
            """\
import sys


def shifted(character, steps):
    for first in "aA":
        if character.isascii() and character.isalpha() and 0 <= ord(character) - ord(first) < 26:
            return chr((ord(character) - ord(first) + steps) % 26 + ord(first))
    return character


steps, *lines = sys.stdin.read().splitlines() or ["0"]
for line in lines:
    print("".join(shifted(character, int(steps)) for character in line))
""",
            "print(''.join(shifted(character, 1) for character in 'xyz!'))",
            "yza!",
        ),
    }
)
