"""The kinds of machines that the contract is tried on, one line each."""

from contract_machines.kinds import Kind, attach, local

KINDS = {
    "process": Kind(local("process:ProcessProvider(folder=FOLDER)"), has_screen=False, outlives_owner=True),
    "desktop": Kind(local("desktop:DesktopProvider()"), has_screen=True, outlives_owner=False),
    "attach": Kind(attach, has_screen=False, outlives_owner=True),
}
