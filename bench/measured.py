"""Which commit a section of the results was measured on, and whether it still says what the code does.

Only a commit can be measured anew by others, so results of a working tree with changes are drafts. A section holds for
all later commits that change nothing in what is measured, nor the versions it is measured with, but the results alone;
that of the soak, if they change nothing in `tests` either.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
MEASURED = ("src", "bench", "pyproject.toml", "constraints.txt")
ALSO_MEASURED = {"soak": ("tests",)}
"""By section."""

LOCAL_CHANGES = " with local changes"
COMMIT = re.compile(rf"at commit ([0-9a-f]+)({LOCAL_CHANGES})?")
N_NAMED = 3


def commit(root: Path = ROOT) -> str:
    """The commit that is measured, and whether the working tree differs from it."""
    said = _git(root, "rev-parse", "--short=10", "HEAD")
    if said.returncode:
        return "unknown"
    return said.stdout.strip() + (LOCAL_CHANGES if changes(root) else "")


def changes(root: Path = ROOT) -> list[str]:
    """Files that differ from the commit, without the results; of new ones, those that could be measured."""
    changed = _git(root, "diff", "--name-only", "HEAD").stdout
    new = _git(root, "ls-files", "--others", "--exclude-standard", "--", *MEASURED).stdout
    return [path for path in (changed + new).splitlines() if not _is_result(path)]


def unpublishable(results: str, root: Path = ROOT) -> dict[str, str]:
    """The sections that cannot be measured again: drafts, and those of commits that are not in the history, and why.

    A shallow clone does not have the history, so there only drafts are found.
    """
    is_shallow = _git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    return _reasons(results, root, _is_draft if is_shallow else _origin)


def outdated(results: str, root: Path = ROOT) -> dict[str, str]:
    """The sections that must be measured anew, by name, and why."""
    return _reasons(results, root, _reason)


def _reasons(results: str, root: Path, reason_of: Callable[[str, Path, Sequence[str]], str | None]) -> dict[str, str]:
    reasons = {}
    for section in results.split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        reason = reason_of(text, root, (*MEASURED, *ALSO_MEASURED.get(name.lower(), ())))
        if reason is not None:
            reasons[name.lower()] = reason
    return reasons


def _is_draft(text: str, _root: Path, _measured: Sequence[str] = ()) -> str | None:
    found = COMMIT.search(text)
    if found is None:
        return "it does not say which commit it was measured on"
    name, local_changes = found.groups()
    return f"it is a draft: measured at {name}{local_changes}" if local_changes else None


def _origin(text: str, root: Path, _measured: Sequence[str] = ()) -> str | None:
    if (reason := _is_draft(text, root)) is not None:
        return reason
    name = _commit_of(text)
    if _git(root, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}").returncode:
        return f"its commit {name} is not in this repository"
    if _git(root, "merge-base", "--is-ancestor", name, "HEAD").returncode:
        return f"its commit {name} is not an ancestor of HEAD"
    return None


def _reason(text: str, root: Path, measured: Sequence[str]) -> str | None:
    if (reason := _origin(text, root)) is not None:
        return reason
    name = _commit_of(text)
    differing = _git(root, "diff", "--name-only", f"{name}..HEAD", "--", *measured).stdout.splitlines()
    paths = [path for path in differing if not _is_result(path)]
    if not paths:
        return None
    more = f" and {len(paths) - N_NAMED} more" if len(paths) > N_NAMED else ""
    return f"changed since {name}: {', '.join(paths[:N_NAMED])}{more}"


def _commit_of(text: str) -> str:
    found = COMMIT.search(text)
    assert found is not None
    return found[1]


def _is_result(path: str) -> bool:
    """Whether the file is written by a measurement."""
    file = PurePosixPath(path)
    return file.parent.name == "bench" and (file.name == "RESULTS.md" or file.suffix == ".svg")


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
