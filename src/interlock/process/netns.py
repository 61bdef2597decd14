"""Sockets inside the network namespace of another process, held by this one. Linux only.

A socket stays in the namespace in which it was made. So a short-lived helper process enters the namespace, binds
sockets there and hands them over: what connects to them reaches us, and there is no other way out. A helper process,
because entering a user namespace needs a process with one thread (setns(2)).
"""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

HELPER_S: Final = 10.0

# As the owner of the user namespace we may do anything in it, and so enter the network that belongs to it. FREEBIND:
# its loopback interface may not be up yet.
_HELPER: Final = """
import ctypes, fcntl, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def enter(descriptor, kind):
    if libc.setns(descriptor, kind):
        sys.exit(os.strerror(ctypes.get_errno()))
network = os.open(f"/proc/{int(sys.argv[1])}/ns/net", os.O_RDONLY)
owner = fcntl.ioctl(network, 0xb701)
if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
    enter(owner, 0x10000000)
enter(network, 0x40000000)
made = []
for place in sys.argv[2:]:
    kind, host, port = place.split(" ")
    inside = socket.socket(type=socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    inside.setsockopt(socket.IPPROTO_IP, 15, 1)
    inside.bind((host, int(port)))
    if kind == "tcp":
        inside.listen(128)
    made.append(inside)
socket.send_fds(socket.socket(fileno=0), [b"+"], [each.fileno() for each in made])
"""


class Place(msgspec.Struct, frozen=True):
    kind: str  # tcp or udp
    host: str
    port: int


class NamespaceClosed(Exception):
    """The namespace cannot be entered; the message says why."""


def listen_inside(pid: int, places: Sequence[Place]) -> list[socket.socket]:
    """Sockets of the process's network namespace, in the order of `places`. Blocks for some tens of milliseconds."""
    ours, theirs = socket.socketpair()
    words = [f"{place.kind} {place.host} {place.port}" for place in places]
    with ours, theirs:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _HELPER, str(pid), *words],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=HELPER_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as failed:
            raise NamespaceClosed(str(failed)) from failed
        if ended.returncode != 0:
            words = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            raise NamespaceClosed(words[-1] if words else f"exit code {ended.returncode}")
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            _, descriptors, _, _ = socket.recv_fds(ours, 1, len(places))
            made = [socket.socket(fileno=each) for each in descriptors]
            if len(made) == len(places):
                return made
    raise NamespaceClosed("no socket came out of it")
