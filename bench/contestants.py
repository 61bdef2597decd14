"""Those who take part: each is started in front of a fast server and gives the address to load."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import environments
from bench.processes import (
    CACHE,
    ROOT,
    START_SECONDS,
    NotStarted,
    free_port,
    python,
    running,
    wait_for_ok,
    wait_for_port,
)

LOGS = CACHE / "bench-logs"
PATHS = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])}

NGINX = """
daemon off;
worker_processes 1;
{user}
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 100000000;
    upstream fast {{
        server 127.0.0.1:{server};
        keepalive 128;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{listen};
        location / {{
            proxy_pass http://fast;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""

NODE = """
[node]
listen = "127.0.0.1:{listen}"
operator_listen = "127.0.0.1:{operator}"

[auth]
anonymous = "never"

[gate]
unannotated = "allow"
"""

FASTMCP = """
import sys
from fastmcp.server import create_proxy
create_proxy("http://127.0.0.1:%s/mcp" % sys.argv[2]).run(
    transport="http", host="127.0.0.1", port=int(sys.argv[1]), log_level="ERROR", show_banner=False)
"""

FASTMCP_SHARED = """
import asyncio, sys
from fastmcp import Client
from fastmcp.server import create_proxy
async def main():
    async with Client("http://127.0.0.1:%s/mcp" % sys.argv[2]) as client:
        await create_proxy(client).run_async(
            transport="http", host="127.0.0.1", port=int(sys.argv[1]), log_level="ERROR", show_banner=False)
asyncio.run(main())
"""


@dataclass
class Ready:
    """A contestant that takes requests."""

    port: int
    pid: int | None  # None: there is nobody between load and server
    tool: str = "echo"
    token: str | None = None
    path: str = "/mcp"
    data: Path | None = None  # the folder of a node
    below: tuple[int, ...] = ()  # the processes of nodes behind it, whose time is its cost as well
    where: tuple[str, ...] = ()  # the options by which commands find the node

    @property
    def pids(self) -> tuple[int, ...]:
        return self.below if self.pid is None else (self.pid, *self.below)


Start = Callable[[int, set[int]], contextlib.AbstractContextManager[Ready]]


@contextlib.contextmanager
def direct(server: int, on: set[int]) -> Iterator[Ready]:
    yield Ready(server, None)


@contextlib.contextmanager
def nginx(server: int, on: set[int]) -> Iterator[Ready]:
    listen, log = free_port(), LOGS / "nginx.log"
    with tempfile.TemporaryDirectory() as folder:
        user = "user root;" if os.geteuid() == 0 else ""
        config = Path(folder) / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, user=user, server=server, listen=listen))
        command = [environments.nginx(), "-p", folder, "-e", "stderr", "-c", str(config)]
        with running(command, on, log) as process:
            wait_for_port(listen, process, log)
            yield Ready(listen, process.pid)


@contextlib.contextmanager
def interlock(server: int, on: set[int], program: Sequence[str] = ("-m", "interlock")) -> Iterator[Ready]:
    with node({"fast": dialled(server)}, on, program) as ready:
        yield replace(ready, tool="fast__echo")


def dialled(port: int) -> str:
    return f'url = "http://127.0.0.1:{port}/mcp"'


@contextlib.contextmanager
def node(
    servers: Mapping[str, str],
    on: set[int],
    program: Sequence[str] = ("-m", "interlock"),
    extra: str = "",
    files: Mapping[str, str] | None = None,
) -> Iterator[Ready]:
    """A node with its default limits in front of these servers: segment -> how to reach it, in TOML.

    `files` are written into its workspace first: path -> text.
    """
    listen, operator, log = free_port(), free_port(), LOGS / "interlock.log"
    with tempfile.TemporaryDirectory() as folder:
        config, data = Path(folder) / "workspace" / "interlock.toml", Path(folder) / "data"
        config.parent.mkdir()
        for name, text in (files or {}).items():
            path = config.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        tables = [f"[servers.{segment}]\n{reach}\n" for segment, reach in servers.items()]
        config.write_text("\n".join([NODE.format(listen=listen, operator=operator), *tables, extra]))
        where = ("--config", str(config), "--data", str(data))
        with running(python(*program, "serve", *where), on, log, PATHS) as process:
            wait_for_ok(f"http://127.0.0.1:{listen}/readyz", process, log)
            yield Ready(listen, process.pid, token=issue_token(where, "client"), data=data, where=where)


def wait_for_tool(node: Ready, name: str) -> None:
    """Raises NotStarted with what the node says of it."""
    deadline = time.monotonic() + START_SECONDS
    command = python("-m", "interlock", "tools", "show", name, "--json", *node.where)
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **PATHS})
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise NotStarted(done.stderr.strip()[-400:])
        time.sleep(0.2)


def issue_token(where: Sequence[str], kind: str) -> str:
    command = python("-m", "interlock", "access", "token", "--for", kind, "--name", "bench", "--json", *where)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **PATHS})
    if done.returncode != 0:
        raise NotStarted(f"no token: {done.stderr.strip()[-300:]}")
    return str(json.loads(done.stdout)["token"])


def fastmcp(program: str) -> Start:
    """FastMCP's proxy: given a URL it makes a client for every call, given a connected client it keeps that."""

    @contextlib.contextmanager
    def start(server: int, on: set[int]) -> Iterator[Ready]:
        interpreter = environments.python_with("fastmcp", "fastmcp==4.1.2")
        listen, log = free_port(), LOGS / "fastmcp.log"
        with running([str(interpreter), "-c", program, str(listen), str(server)], on, log) as process:
            wait_for_port(listen, process, log)
            yield Ready(listen, process.pid)

    return start


@contextlib.contextmanager
def mcp_proxy(server: int, on: set[int]) -> Iterator[Ready]:
    """It stands in front of stdio servers only: the fast server is its child, whose time is not counted."""
    interpreter = environments.python_with("mcp-proxy", "mcp-proxy==0.13.0")
    listen, log = free_port(), LOGS / "mcp-proxy.log"
    child = python("-m", "bench.fast_server", "--stdio", "--era", "legacy")
    command = [
        str(interpreter),
        "-m",
        "mcp_proxy",
        "--port",
        str(listen),
        "--pass-environment",
        "--log-level",
        "ERROR",
        "--",
        *child,
    ]
    with running(command, on, log, {"PYTHONPATH": str(ROOT)}) as process:
        wait_for_port(listen, process, log)
        yield Ready(listen, process.pid)


def sketch(program: Path) -> Start:
    """Any program that is run as `python PROGRAM LISTEN_PORT SERVER_PORT`, to compare a design before it is built."""

    @contextlib.contextmanager
    def start(server: int, on: set[int]) -> Iterator[Ready]:
        listen, log = free_port(), LOGS / "sketch.log"
        with running([sys.executable, str(program), str(listen), str(server)], on, log) as process:
            wait_for_port(listen, process, log)
            yield Ready(listen, process.pid)

    return start
