"""The kinds of machines that the contract is tried on, one line each."""

from contract_machines.kind_aws import aws
from contract_machines.kind_docker import docker
from contract_machines.kind_qemu import qemu
from contract_machines.kind_virtualbox import virtualbox
from contract_machines.kind_vmware import vmware
from contract_machines.kinds import Kind, attach, local

KINDS = {
    "process": Kind(local("process:ProcessProvider(folder=FOLDER)"), has_screen=False, outlives_owner=True),
    "browser": Kind(
        local("browser:BrowserProvider(folder=FOLDER)"), has_screen=True, outlives_owner=False, has_commands=False
    ),
    "desktop": Kind(local("desktop:DesktopProvider()"), has_screen=True, outlives_owner=False),
    "aws": Kind(aws, has_screen=False, outlives_owner=True, fixture="aws_cloud"),
    "docker": Kind(docker, has_screen=False, outlives_owner=True, fixture="docker_engine"),
    "qemu": Kind(qemu, has_screen=True, outlives_owner=True),
    "attach": Kind(attach, has_screen=False, outlives_owner=True),
    "vmware": Kind(vmware, has_screen=False, outlives_owner=True, fixture="guest_host"),
    "virtualbox": Kind(virtualbox, has_screen=False, outlives_owner=True, fixture="guest_host"),
}

SERVED = frozenset({"aws", "virtualbox", "vmware"})
"""Those whose guest is, as that of `attach`, a process machine behind OSWorld's protocol."""
