"""Does a real container engine do with a driver of kind docker what the recording client is told?

The image is made here, of the interpreter that runs the tests; nothing is pulled. Where no engine runs, the tests are
skipped and say so.
"""

import asyncio
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.drivers.driver_stage import SERVER, DriverStage, driver_stage, until, wait_until_settled
from tests.drivers.installs import Place

from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed, InstallFailed
from interlock.drivers.protocol.model import Driver

IMAGE = "localhost/interlock-test/python:1"
PYTHON = "/usr/bin/python3"
LEFT_OUT = ("test", "site-packages", "dist-packages", "idlelib", "ensurepip", "__pycache__", "tkinter", "turtledemo")
VALUE = "a value that no local user may read"
HTTP = """
import http.server, json
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}
SAYS = {
    "initialize": {
        "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}
    },
    "tools/list": {"tools": [TOOL]},
    "ping": {},
}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = SAYS.get(asked["method"])
        error = {"code": -32601, "message": "unknown"}
        answer = {"jsonrpc": "2.0", "id": asked.get("id"), **({"error": error} if known is None else {"result": known})}
        body = json.dumps(answer).encode() if "id" in asked else b""
        self.send_response(200 if body else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""


def ask(engine: str, *words: str) -> str:
    return subprocess.run([engine, *words], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program that runs containers, with the image."""
    for name in ("podman", "docker"):
        found = shutil.which(name)
        if found is None or subprocess.run([found, "info"], capture_output=True, timeout=30, check=False).returncode:
            continue
        tar = tmp_path_factory.mktemp("image") / "image.tar"
        write_image(tar)
        ask(found, "import", str(tar), IMAGE)
        yield found
        ask(found, "rmi", "--force", IMAGE)
        return
    pytest.skip("NO CONTAINER ENGINE RUNS HERE: docker and podman are shown with a recording client only")


def write_image(path: Path) -> None:
    """The interpreter, its standard library, and the libraries they are linked with, each where it is here."""
    real = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    programs = [real, *(library / "lib-dynload").glob("*.so")]
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    linked = {word for word in told.split() if word.startswith("/") and ".so" in word and not word.endswith(":")}

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = entry.name.split("/")
        return None if any(part in LEFT_OUT or part.startswith("config-") for part in parts) else entry

    with tarfile.open(path, "w") as tar:
        tar.dereference = True
        for each in (real, *map(Path, sorted(linked))):
            tar.add(each, str(each))
        tar.add(library, str(library), filter=kept)
        link = tarfile.TarInfo(PYTHON)
        link.type, link.linkname = tarfile.SYMTYPE, str(real)
        tar.addfile(link)
        for folder in ("tmp", "etc", "proc", "dev", "sys", "run"):
            empty = tarfile.TarInfo(folder)
            empty.type, empty.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(empty)


def installing(stage: DriverStage, place: Place, engine: str) -> None:
    alone = stage.folder / "engine"  # without the client of another engine, which does not run
    alone.mkdir()
    (alone / Path(engine).name).symlink_to(engine)
    others = [each for each in place.env["PATH"].split(":") if not (Path(each) / "docker").exists()]
    place.env["PATH"] = ":".join((str(alone), *others))

    async def install(driver: Driver, folder: Path, say: Any) -> Installed | InstallFailed:
        return await place.install(driver)

    stage.environment = msgspec.structs.replace(stage.environment, install=install)


def containers(engine: str, *words: str) -> list[str]:
    return ask(engine, "ps", "--all", "--filter", "label=dev.interlock.driver=driven-mcp@1", *words).splitlines()


def argv_of_all_processes() -> str:
    """What every local user can read."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


@pytest.mark.req("AIP-server-6")
async def test_a_real_container_speaks_over_stdio_and_none_is_left(engine: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    place = Place(tmp_path / "place")
    async with driver_stage(tmp_path) as stage:
        installing(stage, place, engine)
        server = {
            "kind": "docker",
            "image": IMAGE,
            "args": [PYTHON, "/servers/driven.py", "--log", "/seen/driven.log"],
            "env": {"LEVEL": VALUE},
            "volumes": [f"{SERVER.parent}:/servers:ro", f"{seen}:/seen:rw"],
        }
        provider = await wait_until_settled(stage.provider(server=server, network={"egress": []}))
        assert provider.state is DriverState.READY, (provider.reason, provider.problems)
        stage.log.path = seen / "driven.log"
        (start,) = stage.log.starts
        assert start["env"]["LEVEL"] == VALUE  # it reached the server,
        running = argv_of_all_processes()
        assert f"/{Path(engine).name} run -i --rm --init " in running and "-e LEVEL " in running
        assert VALUE not in running  # and stands in no argv
        assert len(containers(engine, "--quiet")) == 1
        assert "tools/list" in stage.log.methods
    assert containers(engine, "--quiet") == []


@pytest.mark.req("AIP-server-6")
async def test_a_real_container_that_serves_http_is_published_on_the_loopback_alone(
    engine: str, tmp_path: Path
) -> None:
    place = Place(tmp_path / "place")
    async with driver_stage(tmp_path) as stage:
        installing(stage, place, engine)
        server = {"kind": "docker", "image": IMAGE, "args": [PYTHON, "-c", HTTP], "port": 8080}
        provider = stage.provider(server=server, transport="http", network={"egress": ["*"]}, tools={"echo": "says"})
        await wait_until_settled(provider)
        await until(lambda: provider.state in (DriverState.READY, DriverState.UNAVAILABLE, DriverState.REJECTED))
        assert provider.state is DriverState.READY, (provider.reason, provider.problems)
        (published,) = containers(engine, "--format", "{{.Ports}}")
        address, _, inside = published.partition("->")
        assert inside.startswith("8080") and address.startswith("127.0.0.1:")
        port = int(address.rpartition(":")[2])
        assert listeners(port) == {"127.0.0.1"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5).close()
    assert containers(engine, "--quiet") == []


def listeners(port: int) -> set[str]:
    """The addresses on which this machine listens on a port."""
    found = set()
    for each in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = each.split()[1], each.split()[3]
        address, _, listened = local.partition(":")
        if state == "0A" and int(listened, 16) == port:
            found.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    return found


@pytest.mark.req("AIP-server-6")
async def test_a_real_container_whose_client_was_killed_is_removed(engine: str, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    place = Place(tmp_path / "place")
    async with driver_stage(tmp_path) as stage:
        installing(stage, place, engine)
        args = [PYTHON, "/servers/driven.py", "--log", "/seen/driven.log", "--ignores-term"]
        volumes = [f"{SERVER.parent}:/servers:ro", f"{seen}:/seen:rw"]
        server = {"kind": "docker", "image": IMAGE, "args": args, "volumes": volumes}
        provider = await wait_until_settled(stage.provider(server=server, network={"egress": []}))
        assert provider.state is DriverState.READY, (provider.reason, provider.problems)
        assert len(containers(engine, "--quiet")) == 1
        async with asyncio.timeout(60):
            await provider.stop(at_once=True)
    assert containers(engine, "--quiet") == []
