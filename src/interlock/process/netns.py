"""A listening socket inside the network namespace of another process, held by this one. Linux only.

A socket stays in the namespace in which it was made. So a short-lived helper process enters the namespace, listens
on its loopback interface and hands the socket over: what connects there reaches us, and there is no other way
out. A helper process, because entering a user namespace needs a process with one thread (setns(2)).
"""

import contextlib
import socket
import subprocess
import sys
from typing import Final

PORT: Final = 3128  # nothing else listens in a namespace of its own
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
inside = socket.socket()
inside.setsockopt(socket.IPPROTO_IP, 15, 1)
inside.bind(("127.0.0.1", PORT))
inside.listen(128)
socket.send_fds(socket.socket(fileno=0), [b"+"], [inside.fileno()])
"""


class NamespaceClosed(Exception):
    """The namespace cannot be entered; the message says why."""


def listen_inside(pid: int) -> socket.socket:
    """On 127.0.0.1:PORT of the process's network namespace. Blocks for some tens of milliseconds."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _HELPER.replace("PORT", str(PORT)), str(pid)],
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
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            if descriptors:
                return socket.socket(fileno=descriptors[0])
    raise NamespaceClosed("no socket came out of it")
