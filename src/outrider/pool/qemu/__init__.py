"""Virtual machines run by QEMU: its monitor, its processes, the guest's image and what runs inside."""
