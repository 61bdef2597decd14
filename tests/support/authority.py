"""The authorization server of the fixtures as tests use it, and a node that takes its tokens."""

import contextlib
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.start import HERE, raw, serving
from tests.support.node_process import RunningNode, running_node

TOOLS = """
[[tool]]
match = "good.fail"
auth_scope = "admin"
"""
WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Authority:
    def __init__(self, url: str) -> None:
        self.url = url
        self.resource = ""  # what its tokens are for: the node that was started last

    def do(self, what: str, **arguments: Any) -> Any:
        """One of the things `Control` in tests/servers/authserver.py can do."""
        data = json.dumps({"do": what, **arguments}).encode()
        request = urllib.request.Request(f"{self.url}/control", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def token(self, scope: str | None = "read write", *, header: Any = None, signer: Any = None, **claims: Any) -> str:
        """A good one, but for what the arguments change; None leaves a claim out."""
        return self.do("mint", claims={"aud": self.resource, "scope": scope, **claims}, header=header, signer=signer)

    def opaque(self, scope: str = "read write", **claims: Any) -> str:
        return self.do("opaque", claims={"aud": self.resource, "scope": scope, **claims})

    def count(self, path: str) -> int:
        return self.do("counts").get(path, 0)


@contextlib.contextmanager
def authority() -> Iterator[Authority]:
    with serving([sys.executable, str(HERE / "authserver.py")]) as url:
        yield Authority(url)


def issuer_toml(authority: Authority, **keys: Any) -> str:
    table = {"name": "corp", "url": authority.url, **keys}
    lines = "".join(f"{name} = {_toml(value)}\n" for name, value in table.items())
    return f"[[auth.issuers]]\n{lines}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {json.dumps(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


@contextlib.contextmanager
def protected_node(
    folder: Path, authority: Authority, extra: str = "", *, anonymous: str = "never", **issuer: Any
) -> Iterator[RunningNode]:
    """One server, "good", whose `echo` only reads, whose `exact` writes and whose `fail` is for administrators."""
    config = f'[auth]\nanonymous = "{anonymous}"\n{issuer_toml(authority, **issuer)}\n{TOOLS}\n{extra}\n'
    with running_node(folder, {"good": {"command": raw("all")}}, config) as node:
        before, authority.resource = authority.resource, f"{node.url}/mcp"
        yield node
        authority.resource = before
        log = (node.data.parent / "stderr.txt").read_text()
        assert "Traceback" not in log and "internal error" not in log, log
