"""Fixtures on the SDKs of others for the official suite, alone and behind a node.

A fixture that speaks both eras is modern to the node. What it fails alone it may fail behind a node: that is its own.
"""

import contextlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import suite, toolbox
from tests.conformance.gateway import node
from tests.support.node_process import wait_for
from tests.support.reserved_ports import reserve_port

HERE = Path(__file__).parent
SEGMENT = "fixture"
START_SECONDS = 30.0
HOST = "localhost"  # what the fixtures expect in the header Host


@dataclass(frozen=True)
class Fixture:
    title: str
    eras: tuple[str, ...]  # that it speaks; the last one to a node
    command: Callable[[int], tuple[list[str], Path]]  # for a port: the words, and the folder to start them in

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        port = reserve_port()
        words, folder = self.command(port)
        with subprocess.Popen(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                url = f"http://{HOST}:{port}/mcp"
                wait_for(lambda: process.poll() is not None or is_answering(url), START_SECONDS)
                if process.returncode is not None:
                    raise RuntimeError(f"{self.title} did not start: exit code {process.returncode}")
                yield url
            finally:
                process.kill()


def python_fixture(version: str) -> Callable[[int], tuple[list[str], Path]]:
    """The everything server of the Python SDK, from its source distribution."""

    def command(port: int) -> tuple[list[str], Path]:
        folder = toolbox.sdk_source(version) / "examples" / "servers" / "everything-server"
        python = toolbox.sdk_v1() if version == toolbox.SDK_V1 else toolbox.sdk_v2()
        words = [str(python), "-m", "mcp_everything_server", "--port", str(port), "--log-level", "ERROR"]
        return words, folder

    return command


def typescript_fixture(port: int) -> tuple[list[str], Path]:
    """A fixture of ours on the TypeScript SDK, whose own is in no package."""
    packages = toolbox.npm_packages()
    return [str(toolbox.node()), str(HERE / "typescript_fixture.mjs"), str(port), str(packages)], HERE


FIXTURES = {
    "python-v1": Fixture(f"python-sdk {toolbox.SDK_V1}", ("legacy",), python_fixture(toolbox.SDK_V1)),
    "python-v2": Fixture(f"python-sdk {toolbox.SDK_V2}", ("legacy", "modern"), python_fixture(toolbox.SDK_V2)),
    "typescript-v1": Fixture(
        f"typescript-sdk {toolbox.PACKAGES['@modelcontextprotocol/sdk']}", ("legacy",), typescript_fixture
    ),
}


@dataclass(frozen=True)
class Foreign:
    """Which era the suite speaks in front, whose fixture stands behind, and whether a node is between them."""

    client: str
    fixture: str
    is_alone: bool = False

    @property
    def server(self) -> str:
        return self.client if self.is_alone else FIXTURES[self.fixture].eras[-1]

    @property
    def name(self) -> str:
        return f"{self.known_as}-http"

    @property
    def known_as(self) -> str:
        return f"{self.fixture}-{self.client}{'-alone' if self.is_alone else ''}"

    @property
    def title(self) -> str:
        return f"{self.client} client, {FIXTURES[self.fixture].title}"

    @property
    def alone(self) -> "Foreign | None":
        """The same without a node, where the fixture speaks the client's era."""
        if self.is_alone or self.client not in FIXTURES[self.fixture].eras:
            return None
        return Foreign(self.client, self.fixture, is_alone=True)

    def run(self) -> dict[str, suite.Scenario]:
        revision = suite.REQUIREMENTS[self.client]
        with FIXTURES[self.fixture].serving() as url:
            if self.is_alone:
                return suite.run_server(url, revision)
            with node({SEGMENT: url}, roots=["/shop"]) as running:
                found = running.link(SEGMENT)["era"]
                if found != self.server:
                    raise RuntimeError(f"the fixture was to be {self.server}, the node found it {found}")
                return suite.run_server(f"{running.url}/mcp/only/{SEGMENT}", revision)


FOREIGN_ALONE = [Foreign(era, name, is_alone=True) for name, one in FIXTURES.items() for era in one.eras]
FOREIGN = [Foreign(era, name) for name in FIXTURES for era in ("legacy", "modern")]


def is_answering(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
