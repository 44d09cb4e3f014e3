"""Every call on a store that a chaos test or its processes make is recorded, to be checked in the end."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "history"
    monkeypatch.setenv("OUTRIDER_HISTORY", str(folder))
    return folder
