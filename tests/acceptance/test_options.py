"""Every option of every command is given to that command on a command line somewhere in the tests or the docs.

A command line is a list of words in the sources of the tests: the arguments of a call, the items of a list or tuple, or
a text that is split. It belongs to the command that it names. Words that a starred name or a helper of the same file
adds belong to the line that they are added to. Comments, names and texts that only mention an option do not count, and
neither do command lines that are refused (`code=2`, `code == 2`, `refusal`) nor those of tests that only `make soak` or
`make strangers` runs: an option counts where it does what it is for, in what CI runs.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path

import click
import pytest

from markdown import blocks
from outrider.cli import cli

ROOT = Path(__file__).parent.parent.parent

Path_ = tuple[str, ...]
"""A command with its groups, such as ("pool", "ls")."""


def commands(command: click.Command = cli, path: Path_ = ()) -> Iterator[tuple[Path_, click.Command]]:
    context = click.Context(command)
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


OPTIONS = {
    path: {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
    for path, command in commands()
}


def given(words: list[str]) -> Iterator[tuple[Path_, str]]:
    """The options in a command line, each with the command that it is given to."""
    for index, word in enumerate(words):
        path = next((path for path in ((word, *words[index + 1 : index + 2]), (word,)) if path in OPTIONS), None)
        if path is not None:
            for option in words[index + len(path) :]:
                yield path, option.partition("=")[0] if option.startswith("-") else ""
            return
    yield from (((), word) for word in words)


Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Mapping[str, list[ast.expr]]
"""What the names in a function stand for, as far as it is written down."""

SHELL = re.compile(r"(?:^|[\s;/])outrider ((?:[a-z]+ )[^\n|;&]*)")
DEPTH = 5
MOST = 1000


def in_shell(text: str) -> Iterator[list[str]]:
    """The command lines in a text with whole commands in it, such as a shell script."""
    for line in SHELL.findall(text.replace("\\\n", " ")):
        yield line.split()


def carried_out(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, without refused calls, tests that CI does not run, and texts that are only read."""
    match node:
        case ast.Call(keywords=keywords) if any(ast.unparse(one) == "code=2" for one in keywords):
            return
        case ast.Call(func=ast.Name(id="refusal")) | ast.Expr(value=ast.Constant()):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            inside: list[ast.AST] = [] if is_left_out(node.decorator_list) or is_refused(node) else [*node.body]
        case ast.Compare(left=left, comparators=others):
            inside = [one for one in (left, *others) if not isinstance(one, ast.Constant | ast.JoinedStr)]
        case _:
            inside = [*ast.iter_child_nodes(node)]
    yield node
    for child in inside:
        yield from carried_out(child)


def is_refused(function: Function) -> bool:
    """Whether it asserts that what it has called ended with the code of a refusal."""
    asserted = (ast.unparse(node.test) for node in ast.walk(function) if isinstance(node, ast.Assert))
    return any(re.search(r"\b(?:\w*code) == 2$", text) for text in asserted)


def is_left_out(marks: Sequence[ast.expr]) -> bool:
    """Whether `make test` does not run what has these marks."""
    return any(isinstance(mark, ast.Attribute) and mark.attr in {"soak", "strangers"} for mark in marks)


class CommandLines:
    """The command lines in a file of tests."""

    def __init__(self, tree: ast.Module) -> None:
        functions = [node for node in carried_out(tree) if isinstance(node, Function)]
        self._helpers = {node.name: node for node in functions if node.args.vararg is not None}
        of_module = values_of([node for node in tree.body if not isinstance(node, Function)])
        self._scopes = {node.name: {**of_module, **values_of(node.body), **parameters(node)} for node in functions}
        inside = {id(node) for function in functions for node in carried_out(function)}
        self.found = []
        for mark in of_module.get("pytestmark", []):
            if is_left_out(mark.elts if isinstance(mark, ast.List) else [mark]):
                return
        for function in functions:
            for node in carried_out(function):
                self.found += self._of(node, self._scopes[function.name])
        for node in carried_out(tree):
            if id(node) not in inside:
                self.found += self._of(node, of_module)

    def _of(self, node: ast.AST, scope: Scope, depth: int = 0) -> Iterator[list[str]]:
        match node:
            case ast.Call(func=func, args=args):
                lines = joined(args, scope)
                yield from lines
                helper = self._helpers.get(func.id) if isinstance(func, ast.Name) else None
                if helper is not None and depth < DEPTH:
                    for line in lines:
                        yield from self._through(helper, line, depth)
            case ast.List() | ast.Tuple() | ast.BinOp(op=ast.Add()):
                yield from words(node, scope)
            case ast.AugAssign(target=ast.Name() as target, value=value):
                yield from joined([target, value], scope)
            case ast.Constant(value=str(text)):
                yield from in_shell(text)
            case ast.JoinedStr(values=parts):
                yield from in_shell("".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts))

    def _through(self, helper: Function, line: list[str], depth: int) -> Iterator[list[str]]:
        """The lines that a helper makes of what it was called with."""
        assert helper.args.vararg is not None
        name = helper.args.vararg.arg
        scope = {**self._scopes[helper.name], name: [ast.Tuple([ast.Constant(word) for word in line])]}
        for node in carried_out(helper):
            match node:
                case ast.Call(args=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                    if any(isinstance(part, ast.Starred) and getattr(part.value, "id", "") == name for part in parts):
                        yield from self._of(node, scope, depth + 1)


def joined(parts: Sequence[ast.expr], scope: Scope, depth: int = 0) -> list[list[str]]:
    """The parts one after the other: once for each combination of what their names can stand for."""
    choices = [found for part in parts if (found := words(part, scope, depth)) != [[]]]
    return [[*chain.from_iterable(choice)] for choice in islice(product(*choices), MOST)]


def words(node: ast.expr, scope: Scope, depth: int = 0) -> list[list[str]]:
    found: list[list[str]] = [[]]
    match node:
        case ast.Constant(value=str(word)) | ast.JoinedStr(values=[ast.Constant(value=str(word)), *_]):
            found = [[word]]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            found = joined(parts, scope, depth)
        case ast.Call(func=ast.Attribute(value=value, attr="split"), args=[]):
            found = [" ".join(line).split() for line in words(value, scope, depth)]
        case ast.Starred(value=value):
            found = words(value, scope, depth)
        case ast.BinOp(left=first, op=ast.Add(), right=second):
            found = joined([first, second], scope, depth)
        case ast.IfExp(body=first, orelse=second):
            found = [*words(first, scope, depth), *words(second, scope, depth)]
        case ast.Name(id=name) if depth < DEPTH and scope.get(name):
            found = [line for value in scope[name] for line in words(value, scope, depth + 1)]
    return found


def values_of(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """What the names that are assigned to in `body` stand for."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in (node for statement in body for node in ast.walk(statement)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None:
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id].append(value)
    return found


def parameters(function: Function) -> dict[str, list[ast.expr]]:
    """What `pytest.mark.parametrize` gives for the arguments of a test."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[names, ast.List(elts=rows), *_]):
                names = ast.literal_eval(names)
                several = not isinstance(names, str)
                for row in map(without_marks, rows):
                    values = row.elts if several and isinstance(row, ast.Tuple | ast.List) else [row]
                    for name, value in zip(names if several else [names], values, strict=False):
                        found[name].append(value)
    return found


def without_marks(row: ast.expr) -> ast.expr:
    """The values of a row, of which one that `make test` leaves out has none."""
    match row:
        case ast.Call(func=ast.Attribute(attr="param"), args=values, keywords=keywords):
            return ast.Tuple([] if is_left_out([one.value for one in keywords]) else values)
    return row


def exercised() -> set[tuple[Path_, str]]:
    lines = []
    for path in (ROOT / "tests").rglob("*.py"):
        if path != Path(__file__) and " --" in (source := path.read_text()).replace('"', " "):
            lines += CommandLines(ast.parse(source)).found
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for block in blocks(page):
            if block.language == "bash":
                lines += in_shell(block.code)
    return {one for line in lines for one in given(line)}


def test_every_option_of_every_command_is_exercised_on_a_command_line():
    found = exercised()
    never = [
        (" ".join(("outrider", *path)), option.opts[-1])
        for path, command in commands()
        for option in command.params
        if isinstance(option, click.Option)
        and not any((path, name) in found for name in (*option.opts, *option.secondary_opts))
    ]
    assert never == []
    assert len(found) > 150


SOURCE = """
# outrider run --comment
def test_one():
    "--docstring"
    assert "--message" in run("run", "--own")
    both = ["status", "--tag"]
    run(*both, "--starred")

@pytest.mark.parametrize(("arguments", "says"), [(["--row"], "--says"), (["show", "--other"], "")])
def test_rows(arguments, says):
    run_json("run", *arguments)

def run_json(*arguments):
    return run(*arguments, "--json")

def test_shell():
    "outrider run --docstring"
    said = sh("cd x; outrider export \\\n --in-shell | head --of-head")
    assert "outrider run --message" in said

@pytest.mark.parametrize("arguments", [["run", "--refused"]])
def test_refused(arguments):
    run("run", "--refused", code=2)
    run(*arguments, code=2)
    refusal("run", "--refused")

@pytest.mark.parametrize("arguments", [["run", "--refused"]])
def test_refused_too(arguments):
    assert run(*arguments).returncode == 2

@pytest.mark.parametrize("arguments", [pytest.param(["run", "--row-of-soak"], marks=pytest.mark.soak)])
def test_row(arguments):
    run(*arguments)

@pytest.mark.soak
def test_long():
    run("run", "--soak")

@pytest.mark.strangers
def test_others():
    run("run", "--strangers")
"""


@pytest.mark.parametrize("mark", ["soak", "strangers"])
def test_no_command_line_counts_of_a_file_that_ci_does_not_run(mark):
    for marks in (f"pytest.mark.{mark}", f"[pytest.mark.{mark}, pytest.mark.timeout(9)]"):
        assert CommandLines(ast.parse(f"pytestmark = {marks}\ndef test_one():\n    run('run', '--own')")).found == []


def test_an_option_counts_for_the_command_that_it_is_given_to_and_nothing_else_counts():
    found = {one for line in CommandLines(ast.parse(SOURCE)).found for one in given(line) if one[0]}
    assert {(" ".join(path), name) for path, name in found if name} == {
        *{("run", "--own"), ("run", "--row"), ("run", "--json"), ("run", "--other")},
        *{("status", "--tag"), ("status", "--starred")},
        ("export", "--in-shell"),
    }
