"""System calls that no server in a sandbox can make, as a filter for the kernel (seccomp(2), classic BPF).

Only what no namespace separates: the keys that the user's session holds for them, which every process of the same user
may read, and ways into the kernel that a server has no use for. Everything else is left to namespaces and lost
privileges, so that servers find the system they expect.
"""

import platform
import struct
from typing import Final

import msgspec


class _Machine(msgspec.Struct, frozen=True):
    audit: int  # AUDIT_ARCH_*
    calls: tuple[int, ...]  # add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd


# AIP-security-1
_IO_URING: Final = (425, 426, 427)  # setup, enter, register: on every machine; what it does no filter sees
_GENERIC: Final = (217, 218, 219, 241, 280, 282, *_IO_URING)
_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, (248, 249, 250, 298, 321, 323, *_IO_URING)),
    "aarch64": _Machine(0xC00000B7, _GENERIC),
    "riscv64": _Machine(0xC00000F3, _GENERIC),
}
_X32: Final = 0x40000000  # the same calls under other numbers
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # places in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """None: for this machine none is known."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    tests = [(_AT_LEAST, _X32), *((_EQUAL, number) for number in known.calls)]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # Programs for another architecture would count calls otherwise: none of theirs is made.
        (_EQUAL, 0, len(tests) + 2, known.audit),
        (_LOAD, 0, 0, _NUMBER),
        *((code, len(tests) - index, 0, value) for index, (code, value) in enumerate(tests)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
