"""A new capability is one file and one entry of the table: each thing that it declares is used from outside."""

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cli.program import Interlock, Running

import interlock

SOURCES = Path(interlock.__file__).parent
TOY = Path(__file__).resolve().parents[1] / "toy.py"
IMPORT = "from interlock.core.capability import Capability, Command\n"
TOY_IMPORT = "from interlock.core.capability import Capability, Command, ConfigurationSection\n"
TABLE_END = "    ),\n)\n"
TOY_ENTRY = """\
    ),
    Capability(
        name="toy",
        section=ConfigurationSection("toy", "interlock.toy:ToyPlan", "A toy."),
        operations=("interlock.toy:OPERATIONS",),
        commands={"toy": Command("interlock.toy:app")},
        parts="interlock.toy:ToyParts",
    ),
)
"""
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


@pytest.fixture
def program(tmp_path: Path) -> Interlock:
    """Return the program with the toy: a copy of the sources, one more file, and one more entry."""
    copy = tmp_path / "src" / "interlock"
    # With the compiled files, which stay valid: copytree keeps the times of the sources.
    shutil.copytree(SOURCES, copy)
    shutil.copy(TOY, copy / "toy.py")
    table = copy / "node" / "capabilities.py"
    text = table.read_text()
    assert text.count(IMPORT) == text.count(TABLE_END) == 1
    table.write_text(text.replace(IMPORT, TOY_IMPORT).replace(TABLE_END, TOY_ENTRY))
    folder = tmp_path / "home"
    folder.mkdir()
    program = Interlock(folder)
    program.env["PYTHONPATH"] = str(copy.parent)
    config = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n[toy]\ngreeting = "Good morning"\n'
    (folder / "interlock.toml").write_text(config)
    return program


@pytest.fixture
def node(program: Interlock) -> Iterator[Running]:
    with program.start("serve", "--json") as running:
        yield running


def request(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_a_capability_is_one_file_and_one_entry(program: Interlock, node: Running) -> None:
    status = json.loads(node.next_line())
    token = program("access", "token", "--for", "operator", "--name", "tester", "--json").json["token"]
    operator = {"authorization": f"Bearer {token}"}

    # The tool over MCP, with the greeting of the configuration.
    params = {"name": "toy.greet", "arguments": {"name": "Ada"}, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    code, text = request(
        status["node"]["url"],
        "POST",
        "/mcp",
        message,
        **{
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "toy.greet",
        },
    )
    assert code == 200, text
    assert json.loads(text)["result"]["structuredContent"] == {"text": "Good morning, Ada"}

    # The operation over HTTP.
    operator_url = status["node"]["operator_url"]
    assert request(operator_url, "GET", "/admin/toy", **operator) == (200, '{"greeted":["Ada"]}')

    # The command.
    listed = program("toy")
    assert (listed.code, listed.out) == (0, "Ada\n"), listed.err

    # The metric.
    code, text = request(operator_url, "GET", "/metrics", **operator)
    assert code == 200 and "interlock_toy_greetings_total 1\n" in text

    # The section: its keys are checked and shown.
    assert program("check", "--effective", "--json").json["toy"] == {"greeting": "Good morning"}
    wrong = program("check", "--json", INTERLOCK_TOY__GREETNG="Hi")
    assert wrong.code != 0 and "greeting" in wrong.out + wrong.err
