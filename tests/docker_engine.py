"""A real docker engine for tests, with everything it has in a folder of its own: a pytest plugin with one fixture.

`docker_engine` is one engine for each test process, started when first asked for. It has no network and one image,
`IMAGE`, made of the host's busybox.
"""

import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

IMAGE = "outrider-small:1"
PACKAGES = ("docker.io", "busybox-static")
START_SECONDS = 60.0
STOP_SECONDS = 40.0
_HTTP_ERRORS = 400
_FILES = {"etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}
_FOLDERS = {"root": 0o700, "tmp": 0o1777, "etc": 0o755, "bin": 0o755}


class DockerEngine:
    """A running engine; `socket` is where it answers."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "docker.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Ends with this process, if that is killed."""
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        command = ["setpriv", "--pdeathsig", "TERM", "dockerd", f"--host=unix://{self.socket}", "--bridge=none"]
        command += ["--iptables=false", "--ip6tables=false", "--storage-driver=overlay2", "--log-level=warn"]
        command += [f"--cgroup-parent={self._cgroup}"]
        command += [f"--{option}={self._folder / name}" for option, name in places.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            said = (self._folder / "log").read_text()[-2000:]
            assert self._process.poll() is None, f"dockerd has ended: {said}"
            assert time.monotonic() < deadline, f"dockerd does not answer: {said}"
            time.sleep(0.05)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """What the engine answers to a request of its API."""
        connection = _UnixConnection(self.socket)
        try:
            connection.request(method, path, body=body, headers={"Content-Type": "application/x-tar"} if body else {})
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        assert answer.status < _HTTP_ERRORS, f"{method} {path}: {said!r}"
        return json.loads(said) if answer.headers.get("Content-Type") == "application/json" and said else said

    def first_process(self, container: str) -> int:
        """The first process of a container, as this host counts."""
        return int(self.ask("GET", f"/containers/{container}/json")["State"]["Pid"])

    def remove_containers(self, owner: str) -> None:
        """What a test that failed has left."""
        filters = quote(json.dumps({"label": [f"outrider.owner={owner}"]}))
        for left in self.ask("GET", f"/containers/json?all=1&filters={filters}"):
            self.ask("DELETE", f"/containers/{left['Id']}?force=1&v=1")

    def add_image(self) -> None:
        repository, _, tag = IMAGE.partition(":")
        self.ask("POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}", _root_folder())

    def remove(self) -> None:
        """What a stopped engine leaves: its folder, what may be mounted there, and its control groups."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for left in reversed([place for place in mounts if place.startswith(f"{self._folder}/")]):
            subprocess.run(["umount", left], check=True, timeout=10)
        shutil.rmtree(self._folder)
        for group in Path("/sys/fs/cgroup").glob(f"**/{self._cgroup}"):
            group.rmdir()

    @property
    def _cgroup(self) -> str:
        return f"outrider-test-{os.getpid()}"

    def _answers(self) -> bool:
        try:
            self.ask("GET", "/_ping")
        except OSError:
            return False
        return True


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _root_folder() -> bytes:
    """A system of one program, as tar: busybox, which is its shell and has all else built in."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=10).stdout.split()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, mode in _FOLDERS.items():
            tar.addfile(_entry(name, mode, tarfile.DIRTYPE))
        for name, content in {"bin/busybox": Path(busybox).read_bytes(), **_FILES}.items():
            entry = _entry(name, 0o755)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name in names:
            if name != "busybox":
                link = _entry(f"bin/{name}", 0o777, tarfile.SYMTYPE)
                link.linkname = "busybox"
                tar.addfile(link)
    return packed.getvalue()


def _entry(name: str, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    entry.type = kind
    return entry


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """One engine for this test process (each pytest-xdist worker has its own)."""
    if os.geteuid() != 0:
        pytest.skip("a docker engine of one's own can be started by root only")
    if any(shutil.which(program) is None for program in ("dockerd", "containerd", "busybox")):
        pytest.skip(f"the docker engine is missing; apt-get install {' '.join(PACKAGES)}")
    engine = DockerEngine(Path(tempfile.mkdtemp(prefix="od-")))
    try:
        engine.start()
        engine.add_image()
        yield engine
    finally:
        engine.stop()
        engine.remove()
