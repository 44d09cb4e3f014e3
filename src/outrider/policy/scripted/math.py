"""The script for math problems: reads what is asked and has the calculator do the arithmetic."""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import msgspec

from outrider.core.chat import Message, Role, ToolCall, ToolSpec, assistant
from outrider.core.decoding import from_json

CALCULATOR = "calculator"

Polynomial = dict[str, Fraction]
"""Coefficients by the letters they stand before: 3x² - 2xy + 1 is {"xx": 3, "xy": -2, "": 1}."""

_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[a-z]|[-+*/^()])")
_N = r"(\d+(?:\.\d+)?)"
_MOST_FACTORS = 100
"""Beyond this, nobody wants it multiplied out."""

_RESULT = re.compile(r"(?P<decimal>\S+)(?: \(= (?P<top>-?\d+)/(?P<bottom>\d+)\))?")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to work out, and how the results make the answer."""

    expressions: tuple[str, ...]
    answer: Callable[[Sequence[str]], str]


def _known(answer: str) -> Plan:
    return Plan((), lambda _: answer)


def _single(expression: str, form: str = "{}") -> Plan:
    return Plan((expression,), lambda results: form.format(results[0]))


class MathScript:
    """Knows school mathematics, as far as it is asked for in plain words."""

    def understands(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        if any(tool.name == CALCULATOR for tool in tools):
            return True
        return not tools and any(message.role is Role.SYSTEM and "\\boxed" in message.content for message in messages)

    def solve(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        plan = _plan(_question(messages))
        if plan is None:
            return _answering("\\text{unknown}")
        if not any(tool.name == CALCULATOR for tool in tools):
            return _answering(plan.answer([f"({expression})" for expression in plan.expressions]))
        results = _results(messages)
        missing = [expression for expression in plan.expressions if expression not in results]
        if missing:
            return assistant("", tuple(_call(text, len(messages), i) for i, text in enumerate(missing)))
        return _answering(plan.answer([results[expression] for expression in plan.expressions]))

    def guess(self, messages: Sequence[Message], tools: Sequence[ToolSpec], rng: random.Random) -> Message:  # noqa: ARG002
        return _answering(str(rng.randrange(1_000, 1_000_000)))


def _question(messages: Sequence[Message]) -> str:
    return next((" ".join(message.content.split()) for message in messages if message.role is Role.USER), "")


def _answering(answer: str) -> Message:
    return assistant(f"Final Answer: \\boxed{{{answer}}}")


def _call(expression: str, turn: int, number: int) -> ToolCall:
    arguments = msgspec.json.encode({"expression": expression}).decode()
    return ToolCall(id=f"calculator-{turn}-{number}", name=CALCULATOR, arguments=arguments)


def _results(messages: Sequence[Message]) -> dict[str, str]:
    """What the calculator has worked out so far, as LaTeX."""
    calls = {call.id: call for message in messages for call in message.tool_calls if call.name == CALCULATOR}
    results = {}
    for message in messages:
        call = calls.get(message.tool_call_id or "")
        if call is not None and message.role is Role.TOOL:
            results[_expression(call)] = _latex(message.content)
    return results


def _expression(call: ToolCall) -> str:
    try:
        return from_json(call.arguments, dict[str, str])["expression"]
    except (msgspec.DecodeError, KeyError):
        return ""


def _latex(result: str) -> str:
    match = _RESULT.fullmatch(result)
    if match is None:
        return f"\\text{{{result}}}"
    return f"\\frac{{{match['top']}}}{{{match['bottom']}}}" if match["top"] else match["decimal"]


def _plan(question: str) -> Plan | None:
    """What to do; None: the question is of no kind that the script knows."""
    for pattern, plan in _KINDS:
        if match := pattern.search(question):
            with suppress(ValueError, IndexError, ZeroDivisionError):  # it only looked like one
                return plan(match)
    return None


def _bill(match: re.Match[str]) -> Plan:
    """So many things at so much each, as often as they are named."""
    return _single(" + ".join(f"{n} * {price}" for n, price in re.findall(rf"{_N} \w+ at {_N}", match.string)))


def _product(match: re.Match[str]) -> Plan:
    return _single(" * ".join(f"({part})" for part in match[1].split(" of ")).replace("%)", " / 100)"))


def _word(match: re.Match[str]) -> Plan:
    """The arrangements of the letters of a word, of which some may be the same."""
    repeated = [_factorial(n) for n in Counter(match[1]).values() if n > 1]
    return _single(" / ".join(f"({part})" for part in [_factorial(len(match[1])), *repeated]))


def _factorial(n: int) -> str:
    return _falling(n, n)


def _falling(n: int, k: int) -> str:
    """The product of n and the numbers below it, k factors."""
    if k > _MOST_FACTORS:
        raise ValueError
    return " * ".join(str(n - i) for i in range(k)) or "1"


def _choice(match: re.Match[str]) -> Plan:
    k, n = int(match[1]), int(match[2])
    ranked = f"({_falling(n, k)})"
    return _single(ranked if match[3] == "ranked" else f"{ranked} / ({_factorial(k)})")


def _drawn(match: re.Match[str]) -> Plan:
    red, blue = int(match[1]), int(match[2])
    wanted, total = (red if match[3] == "red" else blue), red + blue
    return _single(f"({wanted} * {wanted - 1}) / ({total} * {total - 1})")


def _change(match: re.Match[str]) -> Plan:
    low, high = sorted((match[1], match[2]), key=float)
    return _single(f"100 * ({high} - {low}) / {match[1]}")


def _equation(match: re.Match[str]) -> Plan:
    letter = match[1]
    both = _difference(match[2], match[3])
    return _single(f"-({both.get('', 0)}) / ({both.get(letter, 0)})")


def _system(match: re.Match[str]) -> Plan:
    """Two equations in x and y, by Cramer's rule."""
    one, two = _difference(match[1], match[2]), _difference(match[3], match[4])
    (a, b, e), (c, d, f) = [[row.get(letters, Fraction(0)) for letters in ("x", "y", "")] for row in (one, two)]
    below = f"(({a}) * ({d}) - ({b}) * ({c}))"
    x = f"(({b}) * ({f}) - ({d}) * ({e})) / {below}"
    y = f"(({c}) * ({e}) - ({a}) * ({f})) / {below}"
    return Plan((x, y), lambda results: f"({results[0]}, {results[1]})")


def _quadratic(match: re.Match[str]) -> Plan:
    both = _difference(match[1], match[2])
    a, b, c = (both.get(letters, Fraction(0)) for letters in ("xx", "x", ""))
    under = f"({b})**2 - 4 * ({a}) * ({c})"
    roots = [f"(-({b}) {sign} sqrt({under})) / (2 * ({a}))" for sign in "-+"]

    def answer(results: Sequence[str]) -> str:
        if results[0].isdigit() and isqrt(int(results[0])) ** 2 == int(results[0]):
            return f"\\{{{results[1]}, {results[2]}\\}}"
        exact = [f"\\frac{{{-b} {sign} \\sqrt{{{results[0]}}}}}{{{2 * a}}}" for sign in "-+"]
        return f"\\{{{exact[0]}, {exact[1]}\\}}"

    return Plan((under, *roots), answer)


def _inequality(match: re.Match[str]) -> Plan:
    left, sign, right = match[1], match[2], match[3]
    both = _difference(left, right)
    slope = both.get("x", Fraction(0))
    opening, closing = ("(", ")") if "=" not in sign else ("[", "]")
    is_below = ("<" in sign) == (slope > 0)
    form = f"(-\\infty, {{}}{closing}" if is_below else f"{opening}{{}}, \\infty)"
    return _single(f"-({both.get('', 0)}) / ({slope})", form)


def _rewritten(match: re.Match[str]) -> Plan:
    return _known(_written(_polynomial(match[1])))


def _quotient(match: re.Match[str]) -> Plan:
    """A polynomial in x divided by another that goes into it."""
    rest, divisor = _polynomial(match[1]), _polynomial(match[2])
    lead = max(divisor, key=len)
    quotient: Polynomial = {}
    while rest and len(top := max(rest, key=len)) >= len(lead):
        factor = {"x" * (len(top) - len(lead)): rest[top] / divisor[lead]}
        quotient = _sum(quotient, factor)
        rest = _sum(rest, _times(factor, divisor), -1)
    return _known(_written(quotient))


def _derivative(match: re.Match[str]) -> Plan:
    letter = match[2]
    terms = _polynomial(match[1]).items()
    derived = {letters.replace(letter, "", 1): factor * letters.count(letter) for letters, factor in terms}
    return _known(_written({letters: factor for letters, factor in derived.items() if factor}))


def _difference(left: str, right: str) -> Polynomial:
    return _sum(_polynomial(left), _polynomial(right), -1)


def _sum(one: Mapping[str, Fraction], other: Mapping[str, Fraction], sign: int = 1) -> Polynomial:
    total = {letters: one.get(letters, Fraction(0)) + sign * other.get(letters, 0) for letters in {**one, **other}}
    return {letters: factor for letters, factor in total.items() if factor}


def _times(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> Polynomial:
    product: Polynomial = {}
    for letters, factor in one.items():
        for more, other_factor in other.items():
            product = _sum(product, {"".join(sorted(letters + more)): factor * other_factor})
    return product


def _polynomial(text: str) -> Polynomial:
    """The polynomial that `text` says, brackets multiplied out. What cannot be read ends the polynomial."""
    tokens = _TOKEN.findall(text)[::-1]
    return _terms(tokens)


def _terms(tokens: list[str]) -> Polynomial:
    sign = -1 if tokens and tokens[-1] == "-" else 1
    if tokens and tokens[-1] in "+-":
        tokens.pop()
    total = _sum({}, _factors(tokens), sign)
    while tokens and tokens[-1] in "+-":
        sign = -1 if tokens.pop() == "-" else 1
        total = _sum(total, _factors(tokens), sign)
    return total


def _factors(tokens: list[str]) -> Polynomial:
    product = _power(tokens)
    while tokens and tokens[-1] not in "+-)":
        if tokens[-1] == "/":
            tokens.pop()
            product = _times(product, {"": 1 / _power(tokens).get("", Fraction(1))})
            continue
        if tokens[-1] == "*":
            tokens.pop()
        product = _times(product, _power(tokens))
    return product


def _power(tokens: list[str]) -> Polynomial:
    first = tokens.pop() if tokens else "0"
    if first == "(":
        base = _terms(tokens)
        if tokens:
            tokens.pop()
    else:
        base = {first: Fraction(1)} if first.isalpha() else {"": Fraction(first)}
    if tokens and tokens[-1] == "^":
        tokens.pop()
        exponent = int(tokens.pop())
        if exponent > _MOST_FACTORS:
            raise ValueError
        powered: Polynomial = {"": Fraction(1)}
        for _ in range(exponent):
            powered = _times(powered, base)
        return powered
    return base


def _written(polynomial: Mapping[str, Fraction]) -> str:
    terms = ""
    for letters, factor in sorted(polynomial.items(), key=lambda term: (-len(term[0]), term[0])):
        sign = "-" if factor < 0 else "+"
        size = abs(factor)
        number = f"\\frac{{{size.numerator}}}{{{size.denominator}}}" if size.denominator > 1 else str(size)
        powers = "".join(f"{x}^{n}" if n > 1 else x for x, n in sorted(Counter(letters).items()))
        term = powers if powers and size == 1 else number + powers
        terms += f" {sign} {term}" if terms else term if factor > 0 else f"-{term}"
    return terms or "0"


_KINDS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Plan]], ...] = tuple(
    (re.compile(pattern), plan)
    for pattern, plan in (
        (rf"{_N} \w+ at {_N} dollars each", _bill),
        (rf"{_N} \w+ in {_N} \w+\. At the same speed,.* in {_N} \w+\?", lambda m: _single(f"{m[1]} / {m[2]} * {m[3]}")),
        (rf"{_N} \w+(?: \w+)? and loses {_N} .* after {_N} ", lambda m: _single(f"{m[1]} - {m[2]} * {m[3]}")),
        (rf"needs (\d+/\d+) .* for {_N} ", lambda m: _single(f"({m[1]}) * {m[2]}")),
        (rf"{_N} dollars.* reduced by {_N}%", lambda m: _single(f"{m[1]} * (1 - {m[2]} / 100)")),
        (
            rf"{_N} \w+ grows by {_N}% a year.* after {_N} years",
            lambda m: _single(f"{m[1]} * (1 + {m[2]} / 100)**{m[3]}"),
        ),
        (rf"(?:rises|falls) from {_N}(?: \w+)? to {_N}.* percent", _change),
        (r"ways can (\d+) of (\d+) \w+ be (\w+)", _choice),
        (r"letters of the word ([A-Z]+)", _word),
        (r"each of (\d+) people shakes hands", lambda m: _single(f"{m[1]} * ({m[1]} - 1) / 2")),
        (r"subsets does a set of (\d+)", lambda m: _single(f"2**{m[1]}")),
        (r"holds (\d+) red and (\d+) blue .* without replacement.* both are (red|blue)", _drawn),
        (r"What is the derivative of (.+) with respect to ([a-z])\?", _derivative),
        (r"What is ([\d/.]+%?(?: of [\d/.]+)+)", _product),
        (r"What is ([-+*/^()\d. ]*\d\)?)[,?]", lambda m: _single(m[1].replace("^", "**"))),
        (r"Solve for ([a-z]): ([^=]+)=([^=.]+)", _equation),
        (r"with (\S[^=]*)= ?(\S+) and (\S[^=]*)= ?(\d+)", _system),
        (r"real solutions of ([^=]+)=([^=.]+)\.", _quadratic),
        (r"For which x is ([^<>]+?) ?([<>]=?) ?([^<>?]+)\?", _inequality),
        (r"Simplify \(([^()]+)\) ?/ ?\(([^()]+)\)", _quotient),
        (r"(?:Expand|Simplify) (.+)\.", _rewritten),
    )
)
