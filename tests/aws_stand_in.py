"""A cloud that speaks EC2's API: moto keeps the books, and a real local machine stands behind each instance.

It stands between boto3 and moto: starts a machine for what is launched and ends it with what is terminated, tells of
its address, and adds what moto does not have: the time until an instance runs, tokens, a quota, and faults.
"""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import parse_qs
from xml.etree import ElementTree as ET

import pytest

from hypervisor_stand_ins.machines import FAULT, STATE, Vm, running, state
from hypervisor_stand_ins.stage import product
from processes import line

REGION = "us-east-1"
ACCOUNT = "123456789012"
DEAF_HOST = "127.255.255.254"
IMAGE = "ami-0123456789abcdef0"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
ERROR = "<Response><Errors><Error><Code>{0}</Code><Message>{0} it is</Message></Error></Errors></Response>"


class Cloud(NamedTuple):
    """The cloud as tests see it."""

    url: str
    subnet_id: str
    host: Path
    """Where its machines are started."""

    @contextmanager
    def used(self, folder: Path) -> Iterator[None]:
        """With credentials for it in the environment. Machines that are left are ended."""
        with product(folder, self.host) as place, patch.dict(os.environ, CREDENTIALS):
            self.tell(state=str(place))
            yield

    def tell(self, **wishes: Any) -> None:
        """What shall go wrong from now on. What is not told is as it should be.

        `faults`: see `StandIn`; `quota`: so many instances may run; `no_boot`: what is launched stays `pending`, or is
        `deaf`: it runs at an address where nobody answers.
        """
        urllib.request.urlopen(f"{self.url}/stand-in", json.dumps({"state": str(state()), **wishes}).encode()).close()


@pytest.fixture(scope="session")
def aws_cloud(guest_host: Path) -> Iterator[Cloud]:
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}) as it:
        try:
            port, subnet_id = line(it).split()
            yield Cloud(f"http://127.0.0.1:{port}", subnet_id, guest_host)
        finally:
            it.kill()


def guest_pid(instance_id: str) -> int:
    """The process without which the machine of an instance is dead."""
    pid = Vm(Path(), instance_id).pid
    assert pid is not None
    return pid


class StandIn:
    """A WSGI application around another. A fault is {action, code, status, times, after}.

    So many times such a call is answered with an error; `after` it was carried out, or instead.
    """

    def __init__(self, moto: Any) -> None:
        self._moto = moto
        self._lock = threading.Lock()
        self._wishes: dict[str, Any] = {}
        self._hosts: dict[str, str] = {}
        self._launched: dict[str, str] = {}

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        from werkzeug.wrappers import Response

        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == "/stand-in":
            self._wishes = json.loads(body)
            os.environ[STATE] = self._wishes["state"]
            return Response()(environ, start)
        environ["wsgi.input"] = BytesIO(body)
        asked = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        fault = self._fault(asked) or {}
        if not fault or fault.get("after"):
            answer = self._carried_out(asked, environ)
        if fault:
            answer = Response(ERROR.format(fault["code"]), fault.get("status", 400))
        return answer(environ, start)

    def _fault(self, asked: Mapping[str, str]) -> dict[str, Any] | None:
        with self._lock:
            for fault in self._wishes.get("faults", ()):
                if fault["action"] == asked["Action"] and fault.setdefault("times", 1):
                    fault["times"] -= 1
                    return dict(fault)
        n_wanted = len(running()) + int(asked.get("MinCount", 0))
        is_launch = asked["Action"] == "RunInstances" and "DryRun" not in asked
        is_too_much = is_launch and n_wanted > self._wishes.get("quota", n_wanted)
        return {"code": "VcpuLimitExceeded"} if is_too_much else None

    def _carried_out(self, asked: Mapping[str, str], environ: dict[str, Any]) -> Any:
        from werkzeug.wrappers import Response

        token = asked.get("ClientToken", "") if asked["Action"] == "RunInstances" else ""
        if token in self._launched:
            return Response(self._launched[token], content_type="text/xml")
        answer = Response.from_app(self._moto, environ)
        if answer.status_code == 200:
            root = ET.fromstring(answer.get_data())
            self._follow(asked, root)
            answer.set_data(ET.tostring(root))
            if token:
                self._launched[token] = answer.get_data(as_text=True)
        return answer

    def _follow(self, asked: Mapping[str, str], root: ET.Element) -> None:
        """Do for real what moto says it has done, and say what there really is."""
        for item in root.iterfind(".//{*}instancesSet/{*}item"):
            instance_id = item.findtext("{*}instanceId") or ""
            if asked["Action"] == "TerminateInstances":
                Vm(Path(), instance_id).stop()
                continue
            if asked["Action"] == "RunInstances":
                if self._wishes.get("no_boot") == "deaf":
                    self._hosts[instance_id] = DEAF_HOST
                os.environ[FAULT] = "no boot" if self._wishes.get("no_boot") else ""
                folder = state() / instance_id
                folder.mkdir()
                Vm(folder, instance_id).start()
            self._correct(item, instance_id)

    def _correct(self, item: ET.Element, instance_id: str) -> None:
        host = self._hosts.get(instance_id) or Vm(state() / instance_id, instance_id).address
        name, code = (item.find(f"{{*}}instanceState/{{*}}{part}") for part in ("name", "code"))
        if host is not None:
            self._hosts[instance_id] = host
        elif name.text == "running":
            name.text, code.text = "pending", "0"
        for place in ("privateIpAddress", "ipAddress"):
            if (told := item.find(f"{{*}}{place}")) is not None:
                told.text = host or ""


def main() -> None:
    from moto.ec2 import ec2_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    moto = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, StandIn(moto), threaded=True, request_handler=Silent)
    subnet = ec2_backends[ACCOUNT][REGION].describe_subnets()[0]
    os.write(1, f"{server.server_port} {subnet.id}\n".encode())
    server.serve_forever()


if __name__ == "__main__":
    main()
