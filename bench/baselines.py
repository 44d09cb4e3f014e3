"""The peers we measure against, each installed for real into an environment of its own under `bench/`."""

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
INSTALL_SECONDS = 900


class BaselineMissing(Exception):
    """The peer cannot be installed or started here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A peer from PyPI. `check` is a line of Python that works once it is installed.

    With `needs` those are installed instead of what it says it depends on.
    """

    name: str
    requirement: str
    check: str
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return HERE / f".venv-{self.name}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def system(self) -> str:
        """Its name in the figures, such as `agentlightning-0.3.0`."""
        return self.requirement.replace("==", "-")

    def install(self) -> Path:
        """The interpreter that can import it; installs it the first time."""
        installed = self.folder / f"installed-{self.system}"
        if not installed.exists():
            print(f"installing {self.requirement} into {self.folder} …", file=sys.stderr, flush=True)
            venv.create(self.folder, with_pip=True, clear=True)
            if self.needs:
                self._install(*self.needs)
            self._install(*(["--no-deps"] if self.needs else []), self.requirement)
            self._run("-W", "ignore", "-c", self.check)
            installed.touch()
        return self.python

    def _install(self, *arguments: str) -> None:
        self._run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)

    def _run(self, *arguments: str) -> None:
        try:
            done = subprocess.run(
                [self.python, *arguments],
                check=False,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                cwd=HERE,
            )
        except subprocess.TimeoutExpired as exc:
            raise BaselineMissing(f"{self.requirement} was not installed within {INSTALL_SECONDS} s") from exc
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise BaselineMissing(f"{self.requirement} cannot be installed here: {reason}")


AGENT_LIGHTNING = Baseline(
    name="agentlightning",
    requirement="agentlightning==0.3.0",
    check="import os; os.environ['LITELLM_LOCAL_MODEL_COST_MAP'] = 'True'; import agentlightning.store.memory",
)

RLINF = Baseline(
    name="rlinf",
    requirement="rlinf==0.3.0",
    needs=("ray[default]==2.60.0", "torch", "numpy", "omegaconf", "hydra-core"),
    check="from rlinf.scheduler import Channel, Cluster, Worker",
)
"""Torch is here for gloo, too."""
