"""A raw server that wants tokens of an authorization server, and says so as MCP asks (or as a test wants it to lie).

A session belongs to the user who began it. `whoami` tells whose token a call came with.
"""

import asyncio
import json
from argparse import ArgumentParser, Namespace
from typing import Any

from .server import Exchange, Server

WELL_KNOWN = "/.well-known/oauth-protected-resource"
ELSEWHERE = "/about/this-resource.json"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--guard", metavar="URL", help="HTTP: tokens of the authorization server whose /control is there"
    )
    parser.add_argument("--issuer", action="append", help="named in the metadata instead of URL/flows")
    parser.add_argument("--metadata", choices=("header", "path", "root", "none"), default="header")
    parser.add_argument("--metadata-url", help="named in the challenge, whatever is there")
    parser.add_argument("--resource", help="named in the metadata instead of the server's URL")
    parser.add_argument("--scope", default="", help="what every request needs, said in the challenge")
    parser.add_argument("--scopes-supported", help="said in the metadata")
    parser.add_argument("--call-scope", help="what tools/call of `exact` needs, said with 403")
    parser.add_argument("--open-greeting", action="store_true", help="initialize and server/discover need no token")


class Guard:
    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._sessions: dict[str, str] = {}
        self.url = ""  # of the MCP endpoint, once it is known

    def offer(self, server: Server) -> None:
        async def whoami(exchange: Exchange, arguments: str) -> str:
            told = await self._judge(exchange.message.headers)
            return json.dumps({"content": [{"type": "text", "text": told["sub"] if told else "nobody"}]})

        server.tool("whoami", whoami)

    def document(self, path: str) -> bytes | None:
        """The metadata, if it stands at this path."""
        options = self._options
        place = {"header": ELSEWHERE, "path": f"{WELL_KNOWN}/mcp", "root": WELL_KNOWN, "none": ""}[options.metadata]
        if path != place:
            return None
        said: dict[str, Any] = {
            "resource": options.resource or self._resource,
            "authorization_servers": options.issuer or [f"{options.guard}/flows"],
        }
        if options.scopes_supported is not None:
            said["scopes_supported"] = options.scopes_supported.split()
        return json.dumps(said).encode()

    async def refusal(self, headers: dict[str, str], body: bytes) -> tuple[int, str] | None:
        """The status and challenge for a request that may not pass."""
        asked = _maybe_json(body)
        method, name = asked.get("method"), (asked.get("params") or {}).get("name")
        if self._options.open_greeting and method in ("initialize", "server/discover", "notifications/initialized"):
            return None
        told = await self._judge(headers)
        if told is None or told["resource"] != (self._options.resource or self._resource):
            return 401, self._challenge(error="invalid_token" if "authorization" in headers else None)
        session = headers.get("mcp-session-id")
        if session is not None and self._sessions.setdefault(session, told["sub"]) != told["sub"]:
            return 403, ""
        wanted = self._options.call_scope
        if wanted and method == "tools/call" and name == "exact" and wanted not in told["scope"].split():
            return 403, self._challenge(error="insufficient_scope", scope=wanted)
        return None

    @property
    def _resource(self) -> str:
        return self.url.removesuffix("/mcp") if self._options.metadata == "root" else self.url

    def _challenge(self, *, error: str | None, scope: str | None = None) -> str:
        options = self._options
        where = options.metadata_url or (self.url.removesuffix("/mcp") + ELSEWHERE)
        said = {
            "error": error,
            "resource_metadata": where if options.metadata == "header" else None,
            "scope": scope or options.scope or None,
        }
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in said.items() if value is not None)

    async def _judge(self, headers: dict[str, str]) -> dict[str, Any] | None:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        return await asyncio.to_thread(self._ask, token) if token else None

    def _ask(self, token: str) -> dict[str, Any] | None:
        import urllib.request

        data = json.dumps({"do": "judge", "token": token}).encode()

        with urllib.request.urlopen(f"{self._options.guard}/control", data, timeout=20) as answer:
            told: dict[str, Any] | None = json.loads(answer.read())
            return told


def _maybe_json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
