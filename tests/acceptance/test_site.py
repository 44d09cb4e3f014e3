"""The documentation as a site: it builds in strict mode, and has every page, link and code block."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SECONDS = 100


def build(checkout: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", checkout / "mkdocs.yml", "-d", site]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=site.parent)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site_and_the_readme_is_its_first(site: Path):
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page / "index.html").is_file()] == []
    first = (site / "index.html").read_text()
    assert 'href="guides/evaluate/"' in first
    assert 'href="CHANGELOG/"' in first
    assert 'href="bench/RESULTS/"' in first


def test_code_lists_and_tables_are_shown_as_such(site: Path):
    for page in site.rglob("*.html"):
        text = re.sub(r"<code.*?</code>", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r"```|^(<p>)?- \w|^\|", text, re.MULTILINE), page


def test_the_site_loads_nothing_from_elsewhere(site: Path):
    loaded = re.compile(
        r"<(?:script|img)[^>]*src=\"(?:https?:)?//|<link[^>]*href=\"(?:https?:)?//|@import|url\((?:https?:)?//"
    )
    assert [path for path in (*site.rglob("*.html"), *site.rglob("*.css")) if loaded.search(path.read_text())] == []


@pytest.mark.parametrize("link", ["docs/nowhere.md", "docs/quickstart.md#nowhere"])
def test_a_broken_link_in_the_readme_fails_the_build(tmp_path: Path, link: str):
    checkout = tmp_path / "checkout"
    for name in ("docs", "scripts", "examples", "bench"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns(".venv*", "__pycache__"))
    for name in ("README.md", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, checkout)
    with (checkout / "README.md").open("a") as readme:
        readme.write(f"\n[broken]({link})\n")
    done = build(checkout, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere" in done.stderr
