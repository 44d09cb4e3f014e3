"""Which browser to run."""

import os
import shutil
import sys
from pathlib import Path

from outrider.core.errors import InvalidInput

VARIABLE = "OUTRIDER_CHROMIUM"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_chromium(executable: str | None = None) -> str | None:
    """The program to start: the one given, `OUTRIDER_CHROMIUM`, one on the path; None: the one Playwright installed."""
    for source, given in (("executable", executable), (VARIABLE, os.environ.get(VARIABLE))):
        if given:
            found = shutil.which(given)
            if found is None:
                raise InvalidInput(f"{source} {given!r} is not a program that can be run")
            return found
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None and not any(_playwright_folder().glob("chromium*-*")):
        raise InvalidInput(
            "there is no Chromium here; install one (`apt install chromium`, or `playwright install chromium`), "
            f"or name it by {VARIABLE}"
        )
    return found


def require_display() -> None:
    """Raise `InvalidInput` if a window could not be seen here."""
    if sys.platform == "linux" and "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
        raise InvalidInput("headless: false needs a display, and there is none here (DISPLAY is not set)")


def _playwright_folder() -> Path:
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    if given:
        return Path(given)
    caches = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return caches / "ms-playwright"
