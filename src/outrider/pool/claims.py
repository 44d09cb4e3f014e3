"""Files that say who has what, locked for as long as their owner lives."""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class Claim:
    """A lock on a file that tells which machine has the thing, and whose. The kernel takes it from whoever dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """By us."""
        return self._descriptor is not None

    def take(self) -> bool:
        """Whether it is ours now."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._lock(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def take_over(self, machine_id: str) -> bool:
        """Whether it is ours now; only if it was this machine's and nobody holds it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not self._lock(descriptor):
            return False
        if self.facts.get("machine_id") == machine_id:
            return True
        self.let_go(forget=False)
        return False

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was written last, by whomever; nothing if nobody has it."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self.path.read_bytes()))
        return {}

    def write(self, facts: Mapping[str, Any]) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(facts).encode(), 0)

    def let_go(self, *, forget: bool) -> None:
        if self._descriptor is not None:
            if forget:
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), self.path.stat()):  # else it was let go of meanwhile
                self._descriptor = descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if self._descriptor is None:
                os.close(descriptor)
        return self._descriptor is not None
