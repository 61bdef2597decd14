"""An MCP server that tries to leave its sandbox. Its one tool, `attempt`, does what it is told and says how it went.

It needs nothing but Python. Words on its command line: `--mark TEXT` is only there to be found in the list of
processes, `--deaf` ignores SIGTERM and the end of its input.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 3.0
RUN_S = 60.0
TOOL = {
    "name": "attempt",
    "description": "Try something.",
    "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}, "with": {"type": "array"}}},
    "outputSchema": {"type": "object"},
}


def read(path: str) -> str:
    with Path(path).open("rb") as file:
        return file.read(100).decode("utf-8", "replace")


def write(path: str, text: str = "mine") -> str:
    Path(path).write_text(text)
    return path


def entries(path: str) -> list[str]:
    return sorted(each.name for each in Path(path).iterdir())


def link(target: str, path: str) -> str:
    Path(path).symlink_to(target)
    return read(path)


def tcp(host: str, port: int) -> str:
    with socket.create_connection((host, port), WAIT_S) as connection:
        return connection.recv(100).decode()


def udp(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(WAIT_S)
        connection.connect((host, port))
        connection.send(b"ping")
        return connection.recv(100).decode()


def dns(host: str, port: int, name: str) -> int:
    """One question for an address, to this resolver."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(WAIT_S)
        connection.connect((host, port))
        connection.send(question)
        return struct.unpack(">H", connection.recv(512)[:2])[0]


def look_up(name: str) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(name, 80)]


def fetch(url: str) -> str:
    """As any program does that follows HTTP_PROXY."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return answer.read(100).decode()


def tunnel(host: str, port: int) -> str:
    """CONNECT, through whatever HTTPS_PROXY says."""
    place = os.environ["HTTPS_PROXY"].rpartition("/")[2].split(":")
    with socket.create_connection((place[0], int(place[1])), WAIT_S) as connection:
        connection.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        heard = connection.recv(1000)
        if not heard.startswith(b"HTTP/1.1 200"):
            raise OSError(heard.decode())
        return connection.recv(100).decode()


def signal_to(pid: int) -> str:
    os.kill(pid, signal.SIGCONT)
    return "sent"


def command_line_of(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline")


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=RUN_S, check=True).stdout


def environment() -> dict[str, str]:
    return dict(os.environ)


def fork_away() -> str:
    """A grandchild in a session of its own, which ignores what it can."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            for descriptor in range(3):
                os.close(descriptor)
            time.sleep(600)
        os._exit(0)
    os.wait()
    return "away"


def allocate(megabytes: int) -> str:
    held = b"x" * (megabytes * 1024 * 1024)
    time.sleep(WAIT_S)
    return str(len(held))


def burn(milliseconds: int) -> str:
    while time.process_time() * 1000 < milliseconds:
        pass
    return "burnt"


ATTEMPTS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(read, write, entries, link, tcp, udp, dns, look_up, fetch, tunnel, signal_to, command_line_of),
        *(run, environment, fork_away, allocate, burn),
    )
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        told = params["arguments"]
        try:
            said: Any = {"done": ATTEMPTS[told["what"]](*told.get("with", []))}
        except (OSError, subprocess.SubprocessError) as failed:
            said = {"failed": f"{type(failed).__name__}: {failed}", "errno": getattr(failed, "errno", None)}
        return {"content": [{"type": "text", "text": json.dumps(said)}], "structuredContent": said}
    return None


def main() -> None:
    deaf = "--deaf" in sys.argv
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params", {}))
        reply = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
    while deaf:
        time.sleep(1)


if __name__ == "__main__":
    main()
