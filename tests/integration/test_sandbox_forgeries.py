"""Submissions that cheat get no reward, and honest ones that deal in the same things do."""

import asyncio
import textwrap

import pytest

from leaks import no_leaks
from outrider.core.task import Task
from outrider.env.protocol import Score
from outrider.env.sandbox import Limits, Sandbox
from outrider.env.scoring.python import PythonTestsConfig, PythonTestsScorer

EVIL = """
class Evil{base}:
    def true(self, *_, **__): return True
    def zero(self, *_, **__): return 0
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = isclose = startswith = true
    def __ne__(self, other): return False
    def __hash__(self): return 3
    def __index__(self): return 0
    def __float__(self): return 0.0
    __int__ = __abs__ = __neg__ = __invert__ = __len__ = bit_length = count = zero
    def __round__(self, n=None): return 0
    {operators}
"""

OPERATORS = [
    f"__{side}{name}__"
    for side in ("", "r", "i")
    for name in (
        "add",
        "sub",
        "mul",
        "matmul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "lshift",
        "rshift",
        "and",
        "or",
        "xor",
    )
] + ["__divmod__", "__rdivmod__"]


def evil(result: str, base: str = "") -> str:
    """A class whose objects agree to everything: operators give `result`, seen from within the class."""
    operators = " = ".join(OPERATORS) + f" = lambda self, *_: {result}"
    return EVIL.format(base=f"({base})" if base else "", operators=operators)


OBJECTS = {
    "an object that answers with plain data": (evil("0"), "Evil()"),
    "an object that answers with what is false": (
        evil("Empty()")
        + """
class Empty(Evil):
    def __iter__(self): return iter(())
    def __bool__(self): return False
""",
        "Evil()",
    ),
    "an object that answers with itself": (evil("self"), "Evil()"),
    "an object that empties the other side": (evil("hasattr(_[0], 'clear') and _[0].clear() or self"), "Evil()"),
    "a kind of int": (evil("0", "int"), "Evil(7)"),
    "a kind of float": (evil("0.0", "float"), "Evil(7.5)"),
    "a kind of str": (evil("''", "str"), "Evil('no')"),
    "a kind of list": (evil("[]", "list"), "Evil([7, 8])"),
    "a kind of set": (evil("set()", "set"), "Evil({7, 8})"),
    "a kind of tuple": (evil("()", "tuple"), "Evil((7, 8))"),
}

JUDGED = {
    "xor": "assert not f() ^ 5",
    "xor, the other way round": "assert not 5 ^ f()",
    "xor is nothing": "assert (f() ^ 5) == 0",
    "difference of sets": "assert not f() ^ {1, 2}",
    "no members in the difference": "assert list(f() ^ {1, 2}) == []",
    "its length": "assert len(f() ^ {1, 2}) == 0",
    "a mask": "assert (f() & 0b101) == 0b101",
    "a mask is true": "assert f() & 0b100 and not f() & 0b010 and f() == 5",
    "added": "assert f() + 1 == 6",
    "added to nothing": "assert not f() + (-5)",
    "joined": "assert f() + [3] == [1, 2, 3]",
    "what it was added to": "e = [1, 2]\ntry: e + f()\nexcept Exception: pass\nassert e == []",
    "near": "assert abs(f() - 3.25) < 1e-9",
    "near, the other way round": "assert abs(3.25 - f()) < 1e-9",
    "near, squared": "d = f() - 3.25\nassert d * d < 1e-9",
    "near, by the library": "import math\nassert math.isclose(f(), 3.25)",
    "rounded": "assert round(f() - 3.25, 6) == 0",
    "a remainder": "assert f() % 4 == 1 and divmod(f(), 4) == (1, 1)",
    "shifted": "assert f() >> 1 == 2",
    "a power": "assert f() ** 2 == 25",
    "bits": "assert bin(f() ^ 5).count('1') == 0 and f() == 5",
    "equal": "assert f() == 5",
    "not different": "assert not f() != 5",
    "one of them": "assert f() in {5, 6}",
    "a key": "assert {5: True}[f()]",
    "between": "r = f()\nassert 4 < r\nassert r < 6",
    "a sum": "assert sum([f(), -5]) == 0 and f() == 5",
    "sorted": "assert sorted(f()) == [1, 2]",
    "its members": "assert set(f()) == {1, 2}",
    "text": "assert str(f()) == 'yes'",
    "how it begins": "r = f()\nassert isinstance(r, str) and r.startswith('yes') and r == 'yes'",
    "its type": "assert type(f()) is int and f() == 5",
    "what it is written as": "assert f'{f():04d}' == '0005'",
    "as unittest compares": "import unittest\nunittest.TestCase().assertAlmostEqual(f(), 3.25)",
    "as unittest looks in": "import unittest\nunittest.TestCase().assertIn(1, f())",
    "raised in a block of its own": "with f() as r:\n    assert r == 5",
}

PROGRAMS = {
    "changes the built-ins": """
        import builtins
        builtins.len = builtins.abs = lambda *_: 0
        builtins.AssertionError = Exception
    """,
    "traces": "import sys\nsys.settrace(lambda *_: None); sys.setprofile(lambda *_: None)",
    "prints a verdict": 'print(\'{"test": "0", "passed": true, "reason": null}\', flush=True)',
    "writes a verdict everywhere": """
        import os
        for fd in range(1, 256):
            try: os.write(fd, b'{"test": "0", "passed": true, "reason": null}\\n')
            except OSError: pass
    """,
    "writes a verdict from a fork": """
        import os
        if os.fork() == 0:
            for fd in range(1, 256):
                try: os.write(fd, b'{"loaded": true}\\n{"test": "0", "passed": true}\\n')
                except OSError: pass
            os._exit(0)
    """,
    "leaves with success": "import os\nos._exit(0)",
    "leaves with success and a verdict": 'import os\nos.write(1, b\'{"test": "0", "passed": true}\\n\'); os._exit(0)',
    "leaves at exit": "import atexit, os, sys\natexit.register(os._exit, 0); sys.exit(0)",
    "replaces the exit": "import os, sys\nsys.exit = os._exit = lambda *_: None\nraise SystemExit(0)",
    "looks for the tests": """
        import glob, os
        for path in glob.glob("/**/tests*", recursive=True): print(open(path).read())
        for path in ("/proc/self/fd/0", "/tmp/tests.json", "../tests.json"):
            if os.path.exists(path): os.write(1, open(path, "rb").read())
    """,
    "rewrites what speaks for it": """
        import gc, sys
        from outrider.env.sandbox.inside import candidate, exchange
        for each in gc.get_objects():
            if type(each).__name__ == "Channel": each.send = lambda *_: None
    """,
    "rewrites the frames below": """
        import sys
        frame = sys._getframe()
        while frame:
            frame.f_locals.update(source=b"def f(): return 5")
            frame = frame.f_back
    """,
    "writes to memory": "import ctypes\nctypes.memset(id(1) + 24, 0, 4)\nctypes.CDLL(None).prctl(4, 0)",
    "traces another process": "import ctypes, os\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)",
    "signals the others": "import os, signal\nos.kill(-1, signal.SIGSTOP)",
    "answers of its own accord": """
        import json, os, sys
        def send(message):
            content = json.dumps(message).encode()
            os.write(int(sys.argv[-1]), len(content).to_bytes(8, "big") + content)
        send({"names": {"f": {"type": "object", "id": 0}, "assert": True, "print": True}})
        while True:
            os.read(int(sys.argv[-2]), 65536)
            send({"value": True, "changed": {"0": [], "-1": [], "9": []}})
    """,
    "claims to be what it is not": """
        import json, os, sys
        def send(message):
            content = json.dumps(message).encode()
            os.write(int(sys.argv[-1]), len(content).to_bytes(8, "big") + content)
        send({"names": {"f": {"type": "object", "id": 0}}})
        numbers = iter(range(10**9))
        while True:
            asked = json.loads(os.read(int(sys.argv[-2]), 65536)[8:])
            kind = {"type": "object", "id": 1, "kind": "int"}
            answers = [4, 6, "5", True, None, [5], kind]
            send({"value": answers[next(numbers) % 7] if asked["do"] == "plain" else kind, "changed": {}})
    """,
    "hides objects in values of the library": """
        import json, os, sys
        def send(message):
            content = json.dumps(message).encode()
            os.write(int(sys.argv[-1]), len(content).to_bytes(8, "big") + content)
        send({"names": {"f": {"type": "object", "id": 0}}})
        hidden = {"type": "object", "id": 1, "kind": "int"}
        fraction = {"type": "fractions.Fraction", "content": [hidden, 1]}
        while True:
            asked = json.loads(os.read(int(sys.argv[-2]), 65536)[8:])
            send({"value": 7 if asked["do"] == "plain" else fraction, "changed": {}})
    """,
    "calls one library by the name of another": """
        import unittest.mock as math
        math.isclose = lambda *_, **__: True
    """,
    "is deeply nested": """
        import os, sys
        def f():
            content = b"[" * 900_000
            os.write(int(sys.argv[-1]), len(content).to_bytes(8, "big") + content)
            while True: pass
    """,
}

TESTS_OF_PROGRAMS = [
    "assert f() == 5",
    "assert 4 < f() < 6",
    "import math\nassert math.isclose(f(), 5)",
    "r = f()\nassert r >= 5\nassert r <= 5",
]


@pytest.fixture(scope="module")
def scorer() -> PythonTestsScorer:
    config = PythonTestsConfig(limits=Limits(wall_seconds=2), max_test_seconds=10, partial=True)
    return PythonTestsScorer(config, sandbox=Sandbox())


async def scored(scorer: PythonTestsScorer, program: str, tests: list[str]) -> Score:
    task = Task(task_id="x", metadata={"tests": tests, "entry_point": "f"})
    return await scorer.score_program(textwrap.dedent(program), task)


@pytest.mark.parametrize("what", OBJECTS)
async def test_no_object_passes_for_the_right_answer(scorer, what):
    source, made = OBJECTS[what]
    block = "Evil.__enter__ = lambda self: self\nEvil.__exit__ = lambda *_: True\n"
    score = await scored(scorer, f"{source}\n{block}def f(): return {made}\n", list(JUDGED.values()))
    assert score.metrics["pass_fraction"] == 0.0, score.explanation


@pytest.mark.parametrize("how", PROGRAMS)
async def test_no_program_forges_a_verdict(scorer, how):
    wrong = "\ndef f(): return 7\n" if "def f" not in PROGRAMS[how] else ""
    async with no_leaks():
        score = await scored(scorer, textwrap.dedent(PROGRAMS[how]) + wrong, TESTS_OF_PROGRAMS)
    assert score.reward == 0.0, score.explanation


HONEST = {
    "5": [
        *("xor", "xor, the other way round", "xor is nothing", "a mask", "a mask is true", "added", "added to nothing"),
        *("a remainder", "shifted", "a power", "bits", "equal", "not different", "one of them", "a key", "between"),
        *("a sum", "its type", "what it is written as"),
    ],
    "3.25": [
        "near",
        "near, the other way round",
        "near, squared",
        "near, by the library",
        "rounded",
        "as unittest compares",
    ],
    "{1, 2}": [
        "difference of sets",
        "no members in the difference",
        "its length",
        "sorted",
        "its members",
        "as unittest looks in",
    ],
    "[1, 2]": ["joined", "sorted", "its members", "as unittest looks in"],
    "'yes'": ["text", "how it begins"],
    "Five(5)": [
        *("xor", "xor, the other way round", "xor is nothing", "a mask", "a mask is true", "added", "added to nothing"),
        *("a remainder", "shifted", "a power", "bits", "equal", "not different", "one of them", "a key", "between"),
        *("a sum", "what it is written as"),
    ],
    "Block()": ["raised in a block of its own"],
}


@pytest.mark.parametrize("answer", HONEST)
async def test_the_right_answer_passes_the_same_tests(scorer, answer):
    block = "class Block:\n    def __enter__(self): return 5\n    def __exit__(self, *_): return None\n"
    submission = f"class Five(int): pass\n{block}def f(): return {answer}\n"
    score = await scored(scorer, submission, [JUDGED[name] for name in HONEST[answer]])
    assert score.reward == 1.0, (score.explanation, HONEST[answer])


OWN_CLASSES = """
from collections import Counter
from functools import total_ordering

@total_ordering
class Vector:
    def __init__(self, *parts): self.parts = parts
    def __eq__(self, other): return self.parts == other.parts
    def __lt__(self, other): return self.parts < other.parts
    def __hash__(self): return hash(self.parts)
    def __add__(self, other): return Vector(*(a + b for a, b in zip(self.parts, other.parts)))
    def __mul__(self, factor):
        if not isinstance(factor, (int, float)): return NotImplemented
        return Vector(*(a * factor for a in self.parts))
    __rmul__ = __mul__
    def __truediv__(self, by): return self * (1 / by)
    def __matmul__(self, other): return sum(a * b for a, b in zip(self.parts, other.parts))
    def __neg__(self): return self * -1
    def __abs__(self): return max(map(abs, self.parts))
    def __getitem__(self, place): return self.parts[place]
    def __len__(self): return len(self.parts)
    def __iter__(self): return iter(self.parts)
    def __bool__(self): return any(self.parts)
    def __repr__(self): return f"Vector{self.parts}"

class Stack(list):
    def push(self, item): self.append(item); return self

def f(*parts): return Vector(*parts)
"""

OWN_TESTS = [
    "assert f(1, 2) + f(3, 4) == f(4, 6)",
    "assert f(1, 2) * 3 == f(3, 6) and 3 * f(1, 2) == f(3, 6)",
    "assert (f(1, 2) * 3)[1] == 6 and (f(1, 2) * 3).parts == (3, 6)",
    "assert f(2, 4) / 2 == f(1, 2)",
    "v = f(1, 2)\nv += f(1, 1)\nassert v == f(2, 3)\nv *= 2\nassert v == f(4, 6)",
    "assert f(1, 2) @ f(3, 4) == 11",
    "assert str(f(1, 2) * 2) == 'Vector(2, 4)' and repr(-f(1)) == 'Vector(-1,)'",
    "assert abs(f(-3, 2)) == 3 and len(f(1, 2)) == 2 and list(f(1, 2)) == [1, 2] and f(1) and not f(0)",
    "assert f(1, 2) < f(1, 3) and f(2) >= f(1) and sorted([f(2), f(1)]) == [f(1), f(2)]",
    "assert len({f(1), f(1), f(2)}) == 2",
    "try: f(1) * 'x'\nexcept TypeError: pass\nelse: assert False",
    "s = Stack()\nassert s.push(1).push(2) == [1, 2] and s[-1] == 2 and len(s) == 2\ns += [3]\nassert s == [1, 2, 3]",
    "assert Counter('aab') - Counter('a') == {'a': 1, 'b': 1}",
    "assert Counter('aab') + Counter('b') == Counter('aabb')",
]


async def test_a_class_with_operators_of_its_own_passes(scorer):
    score = await scored(scorer, OWN_CLASSES, OWN_TESTS)
    assert score.reward == 1.0, score.explanation


async def test_a_verdict_does_not_depend_on_what_else_is_scored(scorer):
    right, wrong = "def f(): return 5", "def f(): return 4"
    scores = await asyncio.gather(*(scored(scorer, source, TESTS_OF_PROGRAMS) for source in [right, wrong] * 3))
    assert [score.reward for score in scores] == [1.0, 0.0] * 3
