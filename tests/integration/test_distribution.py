"""The wheel as users get it: built from the source distribution, and used outside of the repository."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

import outrider

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60


def ran(*command: str | Path, cwd: Path, seconds: float = SECONDS, **variables: str) -> str:
    """What a command prints, with none of the settings by which this Python finds the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    ran(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("outrider-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=sdist)
    (found,) = folder.glob("outrider-*.whl")
    return found


class Installed:
    """A virtual environment that has the wheel and what it requires, and nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        (self.packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        self.folder = folder
        self._linked: set[str] = set()
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "--quiet", "--no-deps")
        ran(*pip, "--no-index", wheel, cwd=folder)
        self.add(*requirements(distribution("outrider").requires))

    def add(self, *names: str) -> None:
        """Make these distributions and what they require importable, from where the tests have them."""
        for name in names:
            if name in self._linked:
                continue
            self._linked.add(name)
            try:
                found = distribution(name)
            except PackageNotFoundError:  # required on other systems
                continue
            for part in {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}:
                link = self.packages / part
                if not link.exists():
                    link.symlink_to(found.locate_file(part))
            self.add(*requirements(found.requires))

    def run(self, program: str, *arguments: str) -> str:
        return ran(self.bin / program, *arguments, cwd=self.folder)


def requirements(lines: list[str] | None, extra: str | None = None) -> Iterator[str]:
    """The names of what is required by all, or by an extra."""
    for line in lines or ():
        named = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        found = re.match(r"[\w.-]+", line)
        if found and (named[1] if named else None) == extra:
            yield found[0]


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With the core requirements alone."""
    return Installed(tmp_path_factory.mktemp("empty"), wheel)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """To be filled with extras."""
    return Installed(tmp_path_factory.mktemp("elsewhere"), wheel)


def test_the_core_alone_answers_and_runs_the_example_of_its_help(empty: Installed):
    help_text = empty.run("outrider", "--help")
    (example,) = re.findall(r"^ +outrider (run .*)$", help_text, re.MULTILINE)
    empty.run("outrider", *example.split(), "--name", "first")
    summary = json.loads((empty.folder / "results" / "first" / "summary.json").read_text())
    assert summary["total"]["n_scored"] == 8
    assert empty.run("outrider", "--version").split()[-1] == outrider.__version__
    where = "import outrider; print(outrider.__file__)"
    assert empty.run("python", "-c", where).strip() == str(empty.packages / "outrider" / "__init__.py")


def interpreters() -> dict[str, Path]:
    """A Python of each version from 3.11 on: this one, those of pyenv, and those on the path."""
    found = {f"3.{sys.version_info.minor}": Path(sys.executable)}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep) if folder != str(pyenv / "shims")]
    for folder in (*sorted(pyenv.glob("versions/*/bin")), *on_path):
        for program in folder.glob("python3.*"):
            match = re.fullmatch(r"python(3\.(\d+))", program.name)
            if match and int(match[2]) >= 11:
                found.setdefault(match[1], program)
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition(".")[2])))


@pytest.fixture(scope="module")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where dependencies come from."""
    folder = tmp_path_factory.mktemp("index")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--timeout", "10")
    done = subprocess.run([*pip, "click", "-d", folder], capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("package_index")
@pytest.mark.parametrize("version", interpreters())
def test_pip_resolves_what_the_wheel_requires_on_every_python_of_this_machine(
    wheel: Path, tmp_path: Path, version: str
):
    ran(interpreters()[version], "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    programs = tmp_path / "venv" / "bin"
    ran(programs / "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path, seconds=200)
    assert ran(programs / "python", "--version", cwd=tmp_path).startswith(f"Python {version}.")
    assert ran(programs / "outrider", "--version", cwd=tmp_path).split()[-1] == outrider.__version__
    run = ("run", "--mode", "FrozenLake", "--limit", "4", "--model", "builtin:solver", "--name", "first")
    ran(programs / "outrider", *run, cwd=tmp_path)
    summary = json.loads((tmp_path / "results" / "first" / "summary.json").read_text())
    assert summary["total"]["n_scored"] == 4
    ran(programs / "pip", "check", cwd=tmp_path)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["outrider", "run", "--mode", "rag", "--model", "builtin:solver"], r"install 'bm25s>=[\d.]+' 'numpy>=[\d.]+'"),
        (
            ["python", "-c", "from outrider.cluster import Cluster; Cluster(local=True)"],
            r"install 'cloudpickle>=[\d.]+'",
        ),
    ],
)
def test_a_missing_library_is_named_as_it_can_be_installed(empty: Installed, program: list[str], says: str):
    command = [empty.bin / program[0], *program[1:]]
    done = subprocess.run(command, cwd=empty.folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode != 0
    assert re.search(says, done.stderr.splitlines()[-1])


CLUSTER = """
from outrider.cluster import Cluster, SpreadPlacementStrategy, Worker

class Squarer(Worker):
    def square(self):
        return self._rank ** 2

if __name__ == "__main__":
    with Cluster(local=True) as cluster:
        print(Squarer.create_group().launch(cluster, SpreadPlacementStrategy(3)).square().wait())
"""


def test_with_their_extras_math_is_scored_and_a_local_cluster_needs_no_ray(installed: Installed):
    installed.add(*requirements(distribution("outrider").requires, "math"))
    installed.run("outrider", "run", "--mode", "math", "--limit", "2", "--model", "builtin:solver", "--name", "sums")
    assert len((installed.folder / "results" / "sums" / "results.jsonl").read_text().splitlines()) == 2
    installed.add(*requirements(distribution("outrider").requires, "cluster"))
    (installed.folder / "squares.py").write_text(CLUSTER)
    assert "[0, 1, 4]" in installed.run("python", "squares.py")
    assert not (installed.packages / "ray").exists()


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path):
    package = ROOT / "src"
    tracked = ran("git", "ls-files", "--cached", "--others", "--exclude-standard", "src", cwd=ROOT).split()
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {str((ROOT / name).relative_to(package)) for name in tracked if (ROOT / name).is_file()}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_index_shows_the_readme_without_links_that_lead_nowhere(wheel: Path):
    metadata = metadata_of(wheel)
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# Outrider")
    assert "docs/guides/evaluate.md" in (ROOT / "README.md").read_text()
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", text) == []


def test_links_of_the_readme_lead_to_the_files_of_a_release_once_their_address_is_known():
    spec = importlib.util.spec_from_file_location("index_readme", ROOT / "scripts" / "index_readme.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    readme = "[one](docs/one.md), [two](https://example.org/), [three](#three)\n```\n[four](four.md)\n```\n"
    assert hook.on_index(readme, "https://example.org/files/") == readme.replace(
        "docs/one.md", "https://example.org/files/docs/one.md"
    )
    assert hook.on_index(readme, "") == readme.replace("[one](docs/one.md)", "one")
    metadata: dict[str, Any] = {}
    hook.IndexReadme(str(ROOT), {"files-url": "https://example.org/files"}).update(metadata)
    assert metadata["urls"] == {"Source": "https://example.org/files"}
    assert "](https://example.org/files/docs/" in metadata["readme"]["text"]


def test_the_version_stands_in_one_place(wheel: Path):
    assert metadata_of(wheel)["Version"] == outrider.__version__
    assert wheel.name.startswith(f"outrider-{outrider.__version__}-")
    assert not re.search(r'^version = "', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    newest, *_ = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest in {"Unreleased", outrider.__version__}
