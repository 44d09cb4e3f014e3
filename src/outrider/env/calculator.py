"""The calculator: works out arithmetic that a model writes, exactly where it can be, within bounds, without `eval`."""

import ast
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from outrider.core.errors import ToolRefusal
from outrider.env.tools import Tool, tool

LONGEST = 1_000
"""Characters of an expression."""

DEEPEST = 50
"""Levels of brackets and signs."""

MOST_BITS = 4_096
"""The size of the largest number, some 1,200 digits."""

MOST_ITEMS = 1_000
"""The largest n of a factorial, a combination or a permutation."""

_LARGEST_SHOWN = 10**9
"""The largest denominator that tells anybody anything."""

Value: TypeAlias = Fraction | float
"""A number: exact as a fraction for as long as what is done to it allows."""

_TYPED = str.maketrans({"\u00d7": "*", "·": "*", "÷": "/", "\u2212": "-", "\u2013": "-", "^": "**", "\n": " "})
_TOKENS = re.compile(
    r"(?:\s+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?![\w.])|\.\d+(?:[eE][-+]?\d+)?(?![\w.])|[A-Za-z_]\w*|\*\*|//|[-+*/%(),])*"
)
"""What an expression may consist of. A number that runs into a word would make the parser warn."""


class CalculatorArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What the calculator is asked."""

    expression: Annotated[
        str,
        Meta(description="Arithmetic such as (3 + 4.5) * 2 ** 10 / 7, sqrt(2), comb(10, 3), log(8, 2), sin(pi / 6)"),
    ]


def calculator() -> Tool:
    """The calculator as a tool."""
    description = (
        "Works out an arithmetic expression: + - * / // % **, brackets, the constants pi, e and tau, and the functions "
        f"{', '.join(sorted(_FUNCTIONS))}. Angles are in radians; log(x) is the natural logarithm, log(x, b) to base b."
    )
    return tool("calculator", description, CalculatorArguments, _answer)


async def _answer(arguments: CalculatorArguments) -> str:
    return shown(calculate(arguments.expression))


def calculate(expression: str) -> Value:
    """The value of `expression`. Raises `ToolRefusal`, which says what is wrong with it."""
    if len(expression) > LONGEST:
        raise ToolRefusal(f"the expression has {len(expression)} characters; {LONGEST} are allowed")
    typed = expression.translate(_TYPED).strip()
    understood = _TOKENS.match(typed)
    if understood is not None and understood.end() < len(typed):
        rest = typed[understood.end() :][:20]
        raise ToolRefusal(
            f"cannot read {rest!r}; write numbers, + - * / // % **, brackets and functions (2*pi, not 2pi)"
        )
    try:
        tree = ast.parse(typed, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        reason = exc.msg if isinstance(exc, SyntaxError) else "it is nested too deeply"
        raise ToolRefusal(f"cannot read the expression {expression[:100]!r}: {reason}") from exc
    try:
        return _value(tree.body, 0)
    except ZeroDivisionError as exc:
        raise ToolRefusal("division by zero") from exc
    except OverflowError as exc:
        raise ToolRefusal("the result is too large") from exc
    except ValueError as exc:
        raise ToolRefusal(f"there is no real result: {exc}") from exc


def shown(value: Value) -> str:
    """A value as text: whole numbers in full, others with 15 digits and, where they are not that short, as fraction."""
    if isinstance(value, float):
        return format(value, ".15g")
    if value.denominator == 1:
        return str(value.numerator)
    decimal = format(Decimal(value.numerator) / value.denominator, ".15g")
    if Fraction(decimal) == value or value.denominator > _LARGEST_SHOWN:
        return decimal
    return f"{decimal} (= {value})"


def _value(node: ast.expr, depth: int) -> Value:
    if depth > DEEPEST:
        raise ToolRefusal(f"the expression is nested more than {DEEPEST} levels deep")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(Fraction(number) if isinstance(number, int) else _exact(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left, depth + 1), _value(right, depth + 1)))
        case ast.Name(id=name) if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        case ast.Name(id=name):
            raise ToolRefusal(f"there is no {name!r}; the constants are {', '.join(_CONSTANTS)}")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name.lower(), [_value(arg, depth + 1) for arg in args])
    raise ToolRefusal("only numbers (1000, not 1,000), + - * / // % **, brackets and functions can be worked out")


def _call(name: str, args: list[Value]) -> Value:
    found = _FUNCTIONS.get(name)
    if found is None:
        raise ToolRefusal(f"there is no function {name!r}; there are {', '.join(sorted(_FUNCTIONS))}")
    function, least, most = found
    if not least <= len(args) <= most:
        raise ToolRefusal(f"{name} takes {least if least == most else f'{least} to {most}'} numbers, not {len(args)}")
    return _bounded(function(*args))


def _bounded(value: Value) -> Value:
    """The value, as a float if it is too large to stay exact."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MOST_BITS:
            return value
        value = float(value)
    if not math.isfinite(value):
        raise OverflowError
    return value


def _exact(number: float) -> Fraction:
    """The decimal number that was written, not the binary one that is nearest to it."""
    if not math.isfinite(number):
        raise OverflowError
    return Fraction(repr(number))


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits <= 1 or bits * abs(exponent.numerator) <= 2 * MOST_BITS:
            return base**exponent.numerator
    result: float | complex = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ValueError("a negative number has no real power of that kind")  # noqa: TRY004 the number is at fault
    return result


def _square_root(value: Value) -> Value:
    if isinstance(value, Fraction) and value >= 0:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _whole(value: Value) -> int:
    if value != int(value):
        raise ValueError("it needs whole numbers")
    return int(value)


def _count(value: Value) -> int:
    count = _whole(value)
    if count > MOST_ITEMS:
        raise ToolRefusal(f"{count} is too large; {MOST_ITEMS} is the most for factorials, combinations, permutations")
    return count


def _rounded(value: Value, digits: Value = Fraction(0)) -> Value:
    n_digits = _whole(digits)
    if abs(n_digits) > MOST_ITEMS:
        raise OverflowError
    return Fraction(round(value, n_digits)) if isinstance(value, Fraction) else round(value, n_digits)


def _logarithm(value: Value, base: Value = math.e) -> Value:
    return math.log(value) if base == math.e else math.log(value) / math.log(base)


def _exactly(function: Callable[..., int]) -> Callable[..., Value]:
    return lambda *args: Fraction(function(*args))


def _of_whole(function: Callable[..., int], whole: Callable[[Value], int]) -> Callable[..., Value]:
    return lambda *args: Fraction(function(*map(whole, args)))


_CONSTANTS: Mapping[str, float] = MappingProxyType({"pi": math.pi, "e": math.e, "tau": math.tau})

_OPERATORS: Mapping[type[ast.operator], Callable[[Value, Value], Value]] = MappingProxyType(
    {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
        ast.FloorDiv: lambda a, b: Fraction(a // b),
        ast.Mod: lambda a, b: a % b,
        ast.Pow: _power,
    }
)

_FUNCTIONS: Mapping[str, tuple[Callable[..., Value], int, int]] = MappingProxyType(
    {
        "sqrt": (_square_root, 1, 1),
        "cbrt": (math.cbrt, 1, 1),
        "exp": (math.exp, 1, 1),
        "ln": (math.log, 1, 1),
        "log": (_logarithm, 1, 2),
        "log2": (math.log2, 1, 1),
        "log10": (math.log10, 1, 1),
        "sin": (math.sin, 1, 1),
        "cos": (math.cos, 1, 1),
        "tan": (math.tan, 1, 1),
        "asin": (math.asin, 1, 1),
        "acos": (math.acos, 1, 1),
        "atan": (math.atan, 1, 1),
        "degrees": (math.degrees, 1, 1),
        "radians": (math.radians, 1, 1),
        "abs": (abs, 1, 1),
        "round": (_rounded, 1, 2),
        "floor": (_exactly(math.floor), 1, 1),
        "ceil": (_exactly(math.ceil), 1, 1),
        "min": (min, 1, LONGEST),
        "max": (max, 1, LONGEST),
        "gcd": (_of_whole(math.gcd, _whole), 2, LONGEST),
        "lcm": (_of_whole(math.lcm, _whole), 2, LONGEST),
        "factorial": (_of_whole(math.factorial, _count), 1, 1),
        "comb": (_of_whole(math.comb, _count), 2, 2),
        "perm": (_of_whole(math.perm, _count), 2, 2),
    }
)
"""Each with the least and the most numbers it takes."""
