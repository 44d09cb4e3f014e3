"""README and docs: every code block runs, every link leads somewhere, every command and setting is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from markdown import Block, blocks
from outrider.cli import COMMANDS, cli
from warm_outrider import run_code_warm, within_reach

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
NOT_RUN = {
    "make test\n": "it is what runs this test",
    "python train.py\n": "tests/integration/test_train_example.py does",
    "python train.py 1\n": "tests/integration/test_train_example.py does",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(block: Block, page: Path, folder: Path) -> None:
    """Run a block as a reader would: in the folder where the files shown before it are."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "examples" / "train_frozen_lake")}
    if block.language == "bash":
        with within_reach() as (programs, descriptor):
            environment["PATH"] = f"{programs}{os.pathsep}{path}"
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.code],
                cwd=ROOT if block.code.startswith("make ") else folder,
                env=environment,
                pass_fds=(descriptor,),
                capture_output=True,
                text=True,
                timeout=110,
                check=False,
            )
    else:
        done = run_code_warm(block.code, folder, environment, 110)
    assert done.returncode == 0, f"{name(page)}:{block.line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path):
    python_so_far = ""
    for block in blocks(page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.code)
        elif block.language == "python":
            # A later block may use what an earlier one defined, but what that one ran is not run again.
            run(block._replace(code=python_so_far + block.code), page, tmp_path)
            python_so_far += re.sub(r"^asyncio\.run\(.*$", "", block.code, flags=re.MULTILINE)
        elif block.language == "bash" and block.code not in NOT_RUN:
            run(block, page, tmp_path)


EXTRA_OF = {
    r"--mode math|^mode: math": "math",
    r"--mode rag": "rag",
    r"--mode web": "web",
    r"--ray\b|Cluster\(\)": "ray",
    r"from outrider\.cluster": "cluster",
    r"from outrider\.train|outrider rollout|^import numpy": "train",
    r"--provider-name aws|provider=\"aws\"": "aws",
    r"gymnasium:": "gymnasium",
    r"postgresql://": "postgres",
    r"outrider\.agent\.mcp": "mcp",
    r"[\w.]+\.parquet": "parquet",
    r"--data hf:": "hf",
}


def extras_of(code: str) -> set[str]:
    """The extras that some code or command lines need."""
    return {extra for use, extra in EXTRA_OF.items() if re.search(use, code, re.MULTILINE)}


def with_what_they_bring(extras: set[str]) -> set[str]:
    return extras | ({"cluster", "postgres"} if "ray" in extras else set())


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_extra_that_an_example_needs_stands_before_it(page: Path):
    lines = page.read_text().splitlines()
    for block in blocks(page):
        above = "\n".join(lines[: block.line]) + block.code
        installed = {extra for found in re.findall(r"-e '\.\[([\w,]+)\]'", above) for extra in found.split(",")}
        assert extras_of(block.code) <= with_what_they_bring(installed), f"{name(page)}:{block.line}"


EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in {".py", ".md"})


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_names_the_extra_that_it_needs(example: Path):
    text = example.read_text()
    above = text.split('"""')[1] if example.suffix == ".py" else text
    named = {extra for line in re.findall(r"Extra: (.*)", above) for extra in re.findall(r"`(\w+)`", line)}
    assert extras_of(text) <= with_what_they_bring(named)


def test_the_examples_in_the_help_name_their_extras():
    for command in COMMANDS:
        found = cli.get_command(click.Context(cli), command)
        for example in re.findall(r"^ +outrider .*$", (found and found.help) or "", re.MULTILINE):
            for use, extra in EXTRA_OF.items():
                named = f"extra: {extra}" in example or f"the extra `{extra}`" in str(found and found.help)
                assert named or not re.search(use, example), example


def test_make_run_ends_with_the_line_that_the_readme_needs_next():
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "run"], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
    )
    line = ". .venv/bin/activate"
    assert f'echo "    {line}"' in done.stdout.splitlines()[-1]
    assert f"make run\n{line}\n" in (ROOT / "README.md").read_text()


UNSAFE = re.compile(
    r"(?<![\w.])(eval|exec|__import__)\(|shell=True|os\.system\(|pickle\.loads?\(|yaml\.(unsafe_)?load\("
)


def test_no_page_or_example_teaches_to_run_text_as_code():
    programs = [path for path in (ROOT / "examples").rglob("*") if path.suffix in {".py", ".md", ".yaml", ".sh"}]
    for path in (*PAGES, *programs):
        assert not UNSAFE.search(path.read_text()), path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file(page: Path):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_every_test_file_that_a_page_names_is_there():
    named = {path for page in PAGES for path in re.findall(r"`(tests/[\w/.]+)`", page.read_text())}
    assert len(named) > 50
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_reference_names_every_command_and_the_help_every_option():
    reference = (ROOT / "docs" / "reference.md").read_text()
    for command in COMMANDS:
        assert f"| `{command}" in reference
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        assert found.help
        assert all(option.help for option in found.params if isinstance(option, click.Option))


def test_the_reference_names_every_method_of_the_store():
    from outrider.store.protocol import Store

    reference = (ROOT / "docs" / "reference.md").read_text()
    methods = [method for method in vars(Store) if not method.startswith("_") and method not in ("url", "close")]
    assert [method for method in methods if f"`{method}" not in reference] == []


def test_examples_say_what_they_are():
    for example in (ROOT / "examples").rglob("*.py"):
        assert example.read_text().startswith('"""'), example


def test_the_reference_names_every_field_of_a_benchmark_file():
    from outrider.evaluate.benchmark import FIELDS

    reference = (ROOT / "docs" / "reference.md").read_text()
    for field, names in FIELDS.items():
        assert f"| {field} | {', '.join(f'`{name}`' for name in names)} |" in reference


def test_the_reference_names_every_extra_and_every_environment():
    import tomllib

    from outrider.env.registry import BUILT_IN

    reference = (ROOT / "docs" / "reference.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [extra for extra in extras if extra not in {"test", "check"} and f"`{extra}`" not in reference] == []
    assert [tag for tag in BUILT_IN if f"`{tag}`" not in reference] == []
