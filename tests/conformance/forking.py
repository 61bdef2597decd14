"""A process that has loaded our client of the suite once and runs it for each scenario in a fork of itself.

    python -m tests.conformance.forking SOCKET         the host: listens there, says "ready"
    python -S forking.py SOCKET ERA URL                what the suite starts: runs the client in the host

What the suite starts costs hundredths of a second instead of one for the SDK. A fork has the environment, the output
and the arguments of the process that asked for it, which ends with the fork's exit code.
"""

import contextlib
import json
import os
import signal
import socket
import sys

BYTES_MAX = 1024 * 1024


def ask(path: str, era: str, url: str) -> int:
    with socket.socket(socket.AF_UNIX) as host:
        host.connect(path)
        message = json.dumps({"arguments": [era, url], "env": dict(os.environ)}).encode()
        socket.send_fds(host, [len(message).to_bytes(4, "big")], [1, 2])
        host.sendall(message)
        code = host.recv(1)
        return code[0] if code else 1


def serve(path: str) -> None:
    from tests.conformance import upstream

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork: it answers for itself
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        print("ready", flush=True)
        while True:
            asking, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(asking, upstream.main)
            asking.close()


def _answer(asking: socket.socket, run: object) -> None:
    import threading
    import traceback

    size, streams, _, _ = socket.recv_fds(asking, 4, 2)
    message = b""
    while len(message) < int.from_bytes(size, "big"):
        message += asking.recv(BYTES_MAX)
    told = json.loads(message)
    for descriptor, number in zip(streams, (1, 2), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(told["env"])

    def watch() -> None:
        with contextlib.suppress(OSError):
            asking.recv(1)
        os.kill(os.getpid(), signal.SIGINT)  # the suite ended what asked

    threading.Thread(target=watch, daemon=True).start()
    code = 1
    try:
        run(*told["arguments"], os.environ["MCP_CONFORMANCE_SCENARIO"])  # type: ignore[operator]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            asking.sendall(bytes([code]))
        os._exit(code)


@contextlib.contextmanager
def hosting(era: str):  # type: ignore[no-untyped-def]
    """The command to be given to the suite, while the host runs."""
    import subprocess
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "host.sock")
        command = [sys.executable, "-m", "tests.conformance.forking", path]
        root = Path(__file__).resolve().parents[2]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as host:
            try:
                assert host.stdout is not None
                assert host.stdout.readline() == b"ready\n"
                yield [sys.executable, "-S", str(Path(__file__).resolve()), path, era]
            finally:
                host.kill()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(*sys.argv[1:4]))
