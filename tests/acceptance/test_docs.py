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

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
NOT_RUN = {
    "make test\n": "it is what runs this test",
    "python train.py 1\n": "tests/integration/test_train_example.py does",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(block: Block, page: Path, folder: Path) -> None:
    """Run a block as a reader would: in the folder where the files shown before it are."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(ROOT / "examples" / "train_frozen_lake")
    if block.language == "bash":
        command = ["bash", "-euo", "pipefail", "-c", block.code]
    else:
        command = [sys.executable, "-c", block.code]
    cwd = ROOT if block.code.startswith("make ") else folder
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False)
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


def test_every_test_file_that_the_readme_names_is_there():
    for path in re.findall(r"`(tests/[\w/.]+)`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path


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
