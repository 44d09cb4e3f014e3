"""A program for guests that no package has: it makes the kernel take up at once what was written to `/dev/urandom`.

Without it, clones of one snapshot draw the same random numbers for their first seconds.
"""

import struct

_BASE = 0x400000
_HEADERS = 64 + 56
_CODE = bytes.fromhex(
    "b810000000"  # mov eax, 16: ioctl
    "31ff"  # xor edi, edi: standard input, which is /dev/urandom
    "be07520000"  # mov esi, 0x5207: RNDRESEEDCRNG
    "0f05"  # syscall
    "89c7"  # mov edi, eax: its result is ours
    "f7df"  # neg edi
    "b83c000000"  # mov eax, 60: exit
    "0f05"  # syscall
)


def program() -> bytes:
    """An executable of Linux on x86-64 with one segment. It ends with 0 or with the kernel's error."""
    size = _HEADERS + len(_CODE)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return identity + header + segment + _CODE
