"""A fake node: the real operator app over fixed data, and a public endpoint that answers two MCP methods.

Both are served by uvicorn on a thread, the one on run/admin.sock or a TCP port, the other on a TCP port.
"""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from msgspec import Raw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.operator.fake_approvals import FakeApprovals

from interlock.access.api import ISSUE_TOKEN, LIST_TOKENS, REVOKE_TOKEN, IssuedToken, IssueToken, RevokedTokens, Tokens
from interlock.access.operations import check_token
from interlock.approvals.api import (
    PROPOSE_CLASSES,
    REVOKE_KEY,
    SIGN_CLASSES,
    Approval,
    ClassifiedTools,
    ClassifyTools,
    ClassProposals,
    RevokedKeys,
    SignClasses,
)
from interlock.catalog.api import (
    CLASSIFY_TOOL,
    GET_TOOL,
    LIST_ROUTES,
    LIST_SKILLS,
    LIST_TOOLS,
    ToolDetail,
    ToolRoutes,
    Tools,
)
from interlock.credentials.api import (
    AUTHORIZE_LINK,
    LIST_SECRETS,
    REMOVE_SECRET,
    SET_SECRET,
    TAKE_OAUTH_RETURN,
    Consent,
    RemovedSecret,
    Secrets,
    SetSecret,
    StoredSecret,
)
from interlock.credentials.token import ConsentPage
from interlock.drivers.api import Skills
from interlock.gate.protocol.held_call import Presented, read_proof_untrusted
from interlock.links.api import (
    GET_LINK,
    GET_LINK_LOG,
    LIST_LINKS,
    RELEASE_LINK,
    RESTART_LINK,
    Link,
    LinkLog,
    Links,
    ReleasedSegment,
    RestartedLink,
)
from interlock.operator.api import GET_CONFIGURATION, GET_STATUS, EffectiveConfiguration, Status
from interlock.operator.operation import Handlers, handlers_of, handles
from interlock.store.api import READ_AUDIT, AuditPage
from interlock.store.ports import Unavailable
from interlock.wire.refusal import NotFound, Refused

AGGREGATOR = "550e8400-e29b-41d4-a716-446655440000"  # as in `fake_approvals`
STARTED = "2026-11-15T10:00:00Z"


def as_json(value: object) -> Any:
    """A value of the operator API as a reader decodes it."""
    return json.loads(msgspec.json.encode(value))


def link(segment: str, state: str = "ready", **more: Any) -> dict[str, Any]:
    return {
        "segment": segment,
        "kind": "spawned",
        "transport": "stdio",
        "era": "modern",
        "protocol_version": "2026-07-28",
        "state": state,
        "reason": None,
        "since": STARTED,
        "server": {"name": f"mcp-server-{segment}", "version": "1.2.3"},
        "tools": 2,
        "prompts": 0,
        "resources": 0,
        "withheld": [],
        "in_flight": 0,
        "calls": 12,
        "errors": 0,
        "restarts": 0,
        "pid": 4242,
        "latency_ms": 3.14,
    } | more


def tool(name: str, **more: Any) -> dict[str, Any]:
    segment, _, local = name.partition(".")
    return {
        "name": name,
        "alias": name.replace(".", "__"),
        "segment": segment,
        "original": local,
        "title": None,
        "description": f"Does {local}.\nSecond line.",
        "state": "ready",
        "capability": {"mutable": False, "reversible": True, "idempotent": True, "cost_class": "free"},
        "hops": 1,
        "withheld": None,
        "unclassified": False,
    } | more


class FakeNode:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(GET_STATUS)
    def status(self) -> Status:
        if self._data.broken:
            raise RuntimeError("/secret/path: the fake is broken")
        status = {
            "node": {
                "name": "default",
                "version": "0.1.0",
                "pid": 4000,
                "url": self._data.url,
                "mcp_url": self._data.url,
                "operator_url": "http://127.0.0.1:7412",
                "started_at": STARTED,
                "uptime_s": 3725.0,
                "data": "/data",
                "aggregator_id": "550e8400-e29b-41d4-a716-446655440000",
                "tree": "default",
                "audit_trouble": None,
                "require_proof": "mutable",
            },
            "configuration": None,
            "parents": [],
            "budgets": [],
            "links": self._data.link_list,
            "catalog": {"version": 3, "tools": 145, "prompts": 1, "resources": 0, "templates": 0},
            "clients": {"sessions": 2, "unplaced_logs": 0, "streams": 1, "surfaces": {"local: flat (mcp.surface)": 2}},
            "calls": {"total": 120, "failed": 3, "in_flight": 1, "parked": 7},
            "gate": {"mode": "gated", "tools": 0, "unclassified": 0, "without_approver": 0},
            "approvals": {"waiting": 0, "channels": {}},
            "loosened": self._data.loosened,
        }
        return msgspec.convert(status, Status)

    @handles(GET_CONFIGURATION)
    def configuration(self) -> EffectiveConfiguration:
        return {"node": {"name": "default"}}


class FakeLinks:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(LIST_LINKS)
    def list_all(self) -> Links:
        return msgspec.convert({"links": self._data.link_list}, Links)

    @handles(GET_LINK)
    def get(self, segment: str) -> Link:
        for one in self._data.link_list:
            if one["segment"] == segment:
                return msgspec.convert(one, Link)
        raise NotFound("link", segment, [str(one["segment"]) for one in self._data.link_list], few=True)

    @handles(GET_LINK_LOG)
    def logs(self, segment: str, lines: int) -> LinkLog:
        self.get(segment)
        return msgspec.convert({"segment": segment, "lines": self._data.log_lines[-lines:]}, LinkLog)

    @handles(RESTART_LINK)
    async def restart(self, segment: str) -> RestartedLink:
        self.get(segment)
        if segment == "git":
            raise Refused("draining", "the node is shutting down")
        self._data.restarted.append(segment)
        return RestartedLink(segment=segment, state="connecting")

    @handles(RELEASE_LINK)
    async def release(self, segment: str) -> ReleasedSegment:
        if segment != "greenhouse":
            raise NotFound("owner", segment, ["greenhouse"], few=True)
        return ReleasedSegment(segment=segment, held=False)


class FakeConsents:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(AUTHORIZE_LINK)
    async def authorize(self, segment: str) -> Consent:
        self._data.links.get(segment)
        if segment != "notes":
            raise Refused("no_oauth", f"{segment} is reached without OAuth", {"segment": segment})
        return Consent(
            segment=segment,
            url="https://login.example.com/authorize?state=x",
            issuer="https://login.example.com",
            scopes=("a", "b"),
            expires_at="2026-11-15T10:10:00Z",
        )

    @handles(TAKE_OAUTH_RETURN)
    async def take_return(self, parameters: list[tuple[str, str]]) -> ConsentPage:
        self._data.returned.append(parameters)
        return ConsentPage(400, "<i>No</i>", "a & b <script>")


class FakeSecrets:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(LIST_SECRETS)
    async def list_all(self) -> Secrets:
        kept = [{"kind": kind, "name": name} for kind, name in self._data.kept]
        return msgspec.convert({"secrets": kept}, Secrets)

    @handles(SET_SECRET)
    async def set(self, body: SetSecret, by: str) -> StoredSecret:
        name, value = body.name, body.value
        if body.unless_kept:
            return self._keep(name, value)
        if name == "bad":
            raise Refused("bad_secret_name", "no")
        self._data.kept[("secret", name)] = value
        return StoredSecret(name=name, restarted=("notes",))

    def _keep(self, name: str, value: str) -> StoredSecret:
        new = ("secret", name) not in self._data.kept
        same = self._data.kept.setdefault(("secret", name), value) == value
        return StoredSecret(name=name, state="new" if new else "same" if same else "differs", restarted=())

    @handles(REMOVE_SECRET)
    async def remove(self, kind: str, name: str, by: str) -> RemovedSecret:
        if self._data.kept.pop((kind, name), None) is None:
            raise NotFound("secret", name, [known for _, known in self._data.kept])
        return msgspec.convert({"removed": {"kind": kind, "name": name}}, RemovedSecret)


class FakeTools:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(LIST_TOOLS)
    def list_all(self, search: str | None = None) -> Tools:
        return msgspec.convert({"tools": self._data.tool_list}, Tools)

    @handles(GET_TOOL)
    def get(self, name: str, caller: str = "local") -> ToolDetail:
        for one in self._data.tool_list:
            if name in (one["name"], one["alias"]):
                schema = {
                    "type": "object",
                    "properties": {
                        "timezone": {"type": "string", "description": "IANA name, for instance Europe/Berlin"},
                        "precision": {"type": "integer", "default": 0},
                    },
                    "required": ["timezone"],
                }
                detail = one | {
                    "definition": {"name": one["alias"], "inputSchema": schema},
                    "route": [one["segment"], one["original"]],
                    "era": "modern",
                    "owner": {"kind": "configuration", "verified": True},
                    "caller": caller,
                    "rungs": [
                        {"rung": 4, "name": "route", "verdict": "pass", "reason": "in scope"},
                        {"rung": 8, "name": "availability", "verdict": "pass", "reason": "ready"},
                        {"rung": 10, "name": "gate", "verdict": "hold", "reason": "it cannot be undone"},
                    ],
                }
                return msgspec.convert(detail, ToolDetail)
        raise NotFound("tool", name, [str(one["name"]) for one in self._data.tool_list])

    @handles(CLASSIFY_TOOL)
    async def classify(self, name: str) -> Approval:
        if not self._data.is_classified:
            (approval,) = (approval for approval in self._data.approvals.all if approval["tool"] == name)
            return msgspec.json.decode(msgspec.json.encode(approval), type=Approval)
        raise Refused("classified", "it is known what it does")

    @handles(LIST_SKILLS)
    def skills(self) -> Skills:
        return Skills(skills=())

    @handles(LIST_ROUTES)
    def routes(self) -> ToolRoutes:
        table = {
            one["name"]: {
                "downstream_session": f"spawned:{one['segment']}",
                "downstream_name": one["original"],
                "capability": one["capability"],
                "registered_at": STARTED,
            }
            for one in self._data.tool_list
        }
        return msgspec.convert(table, ToolRoutes)


class FakeClassification:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data
        self.signed: list[tuple[ClassifyTools, Presented]] = []

    @handles(PROPOSE_CLASSES)
    def proposals(self) -> ClassProposals:
        rows = [
            {
                "tool": one["name"],
                "digest": hashlib.sha256(one["name"].encode()).hexdigest(),
                "class": "read_only" if one["name"].endswith("read") else "irreversible",
                "by": "name",
                "question": None,
                "is_open": True,
                "description": one["description"],
            }
            for one in self._data.tool_list
            if one["unclassified"]
        ]
        return msgspec.convert({"aggregator_id": AGGREGATOR, "tools": rows}, ClassProposals)

    @handles(SIGN_CLASSES)
    async def sign(self, body: SignClasses, by: str) -> ClassifiedTools:
        proof = read_proof_untrusted(body.proof)
        assert isinstance(proof, Presented)
        self.signed.append((body, proof))
        return ClassifiedTools(classified=body.entries, left_out=())


class FakeAudit:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(READ_AUDIT)
    async def page(self, after: int, limit: int) -> AuditPage[Raw]:
        page = [record for record in self._data.records if record["seq"] > after][:limit]
        records = tuple(Raw(msgspec.json.encode(record)) for record in page)
        return AuditPage(records=records, last=self._data.records[-1]["seq"] if self._data.records else 0)


class FakeTokens:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(LIST_TOKENS)
    async def list_all(self) -> Tokens:
        if self._data.is_store_away:
            raise Unavailable("/data/store.db is locked")
        return msgspec.convert({"tokens": self._data.token_list}, Tokens)

    @handles(ISSUE_TOKEN)
    async def issue(self, body: IssueToken, by: str) -> IssuedToken:
        check_token(body)
        name, audience = body.name, body.audience
        made = {
            "id": "00000000000000aa",
            "name": name,
            "door": audience,
            "scope": body.scope or "write",
            "created_at": STARTED,
            "expires_at": "2026-12-15T10:00:00Z",
            "last_used_at": None,
            "days": body.days,
        }
        self._data.token_list.append(made)
        prefix = "ilc_" if audience == "client" else "ilo_"
        return IssuedToken(
            token=prefix + "x" * 43,
            id="00000000000000aa",
            name=name,
            audience=audience,
            expires_at="2026-12-15T10:00:00Z",
        )

    @handles(REVOKE_TOKEN)
    async def revoke(self, ref: str, by: str) -> RevokedTokens:
        gone = [one["id"] for one in self._data.token_list if ref in (one["id"], one["name"])]
        if not gone:
            raise NotFound("token", ref, [str(one["name"]) for one in self._data.token_list])
        self._data.token_list = [one for one in self._data.token_list if one["id"] not in gone]
        return RevokedTokens(revoked=tuple(gone))


class FakeKeys:
    def __init__(self, data: "FakeOperations") -> None:
        self._data = data

    @handles(REVOKE_KEY)
    async def revoke(self, ref: str, by: str) -> RevokedKeys:
        if ref == "nobody":
            raise NotFound("anchor", ref, ["ada"], few=True)
        self._data.revoked_keys.append((ref, by))
        return RevokedKeys(revoked=(ref,), voided=())


class FakeOperations:
    """`Operations` over fixed values that a test may change while the node runs."""

    def __init__(self) -> None:
        self.url = "http://127.0.0.1:7411/mcp"
        self.is_store_away = False
        self.is_classified = True
        self.revoked_keys: list[tuple[str, str]] = []
        self.loosened: list[str] = []  # what a signature is missing for
        self.link_list = [
            link("time"),
            link("memory", era="legacy", protocol_version="2025-11-25", tools=9, latency_ms=41.7, kind="spawned"),
            link(
                "search-with-a-rather-long-segment-name",
                "slow",
                kind="dialled",
                transport="http",
                reason="did not list its tools within 10 s; the list from its last connection is used until it does",
                tools=130,
                pid=None,
            ),
            link(
                "git",
                "failed",
                era=None,
                protocol_version=None,
                server=None,
                reason="the program ended with exit code 127 right after it was started: mcp-server-git: not found",
                tools=0,
                latency_ms=None,
                pid=None,
                restarts=5,
            ),
            link(
                "notes",
                "unauthorised",
                kind="dialled",
                transport="http",
                reason="the server answers 401",
                withheld=[{"name": "delete all", "reason": "two tools have this name after normalisation"}],
                tools=4,
                pid=None,
                latency_ms=None,
            ),
        ]
        self.tool_list = [
            tool("memory.create_entities", capability={"mutable": True, "reversible": True}),
            tool("notes.delete_all", state="unauthorised", capability={"mutable": True, "reversible": False}),
            tool("notes.odd", withheld="its input schema is not an object"),
            tool("time.convert_time"),
            tool("time.get_current_time", title="Current time"),
        ]
        self.returned: list[list[tuple[str, str]]] = []
        self.kept: dict[tuple[str, str], str] = {("client", "https://login.example.com/x"): "hush"}
        self.log_lines = [
            {"at": "2026-11-15T10:00:01Z", "text": "server started"},
            {"at": "2026-11-15T10:00:02Z", "text": "\x1b[2J\x1b[31mred\x1b[0m \x07bell \u202egnihton"},
        ]
        self.records = [
            {
                "seq": number,
                "hash": f"{number:064x}",
                "at": f"2026-11-15T10:00:{number:02d}Z",
                "who": "local" if number % 2 else "client:laptop",
                "via": "http",
                "method": "tools/call",
                "tool": "time.get_current_time",
                "args_sha256": "0" * 64,
                "verdict": "admitted" if number % 5 else "refused",
                "outcome": "ok" if number % 5 else "refused",
                "ms": 1.5 * number,
            }
            | ({} if number % 5 else {"reason": "tool_degraded"})
            for number in range(1, 31)
        ]
        self.token_list: list[dict[str, Any]] = [
            {
                "id": "3f9c0a1b22de47aa",
                "name": "laptop",
                "door": "client",
                "scope": "write",
                "created_at": STARTED,
                "expires_at": "2026-12-15T10:00:00Z",
                "last_used_at": None,
            }
        ]
        self.restarted: list[str] = []
        self.broken = False
        self.node = FakeNode(self)
        self.links = FakeLinks(self)
        self.consents = FakeConsents(self)
        self.secrets = FakeSecrets(self)
        self.tools = FakeTools(self)
        self.classification = FakeClassification(self)
        self.audit = FakeAudit(self)
        self.tokens = FakeTokens(self)
        self.keys = FakeKeys(self)
        self.approvals = FakeApprovals()

    @property
    def handlers(self) -> Handlers:
        services = (self.node, self.links, self.consents, self.secrets, self.tools, self.classification, self.audit)
        return handlers_of((*services, self.tokens, self.keys, self.approvals))


class FakePublicEndpoint:
    """tools/list in two pages and tools/call with one tool per kind of answer; keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.token: str | None = None
        paths = ("/mcp/flat", "/mcp/only/{segment}")
        self.app = Starlette(routes=[Route(path, self._post, methods=["POST"]) for path in paths])
        schema = {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "any": {},
                "region": {"type": "string", "x-mcp-header": "Region"},
            },
        }
        names = (
            "say",
            "structured",
            "image",
            "fail",
            "progress",
            "ask",
            "breaks_off",
            "degraded",
            "mismatch",
            "escape",
        )
        self.tools = [
            {"name": f"demo__{name}", "inputSchema": schema, "_meta": {"x-mcpax-name": f"demo.{name}"}}
            for name in names
        ]

    async def _post(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append((dict(request.headers), body))
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"error": "unauthorised", "message": "no", "details": {}}, 401)
        params = body["params"]
        if body["method"] == "tools/list":
            half = len(self.tools) // 2
            if "cursor" not in params:
                return self._result(body, {"tools": self.tools[:half], "nextCursor": "more"})
            return self._result(body, {"tools": self.tools[half:]})
        match params["name"].removeprefix("demo__"):
            case "say":
                text = json.dumps(params["arguments"], ensure_ascii=False, sort_keys=True)
                return self._result(body, {"content": [{"type": "text", "text": f"you said {text}"}]})
            case "structured":
                # Digits and an integer that a float cannot hold.
                raw = '{"content":[],"structuredContent":{"big":123456789012345678901234567890,"x":1.10}}'
                return Response(f'{{"jsonrpc":"2.0","id":{body["id"]},"result":{raw}}}', media_type="application/json")
            case "image":
                block = {"type": "image", "mimeType": "image/png", "data": "aGVsbG8="}
                return self._result(body, {"content": [block]})
            case "fail":
                return self._result(body, {"content": [{"type": "text", "text": "no such thing"}], "isError": True})
            case "ask":
                return self._result(body, {"resultType": "input_required", "inputRequests": {}})
            case "escape":
                return self._result(body, {"content": [{"type": "text", "text": "\x1b]0;owned\x07"}]})
            case "degraded":
                error = {"code": 32002, "message": "tool_degraded", "data": {"reason": "subserver_unreachable"}}
                return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": error})
            case "mismatch":
                error = {"code": 32140, "message": "surface_mismatch", "data": {"detail": "argument /q\x1b[2J differs"}}
                return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": error})
            case "breaks_off":
                return StreamingResponse(iter([b": nothing comes\n\n"]), media_type="text/event-stream")
            case "progress":
                return StreamingResponse(self._progress(body), media_type="text/event-stream")
        error = {"code": -32601, "message": "tool_not_found", "data": {"reason": "tool_not_found"}}
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": error}, 404)

    def _progress(self, body: dict[str, Any]) -> Iterator[bytes]:
        for step in (1, 2):
            params = {
                "progressToken": body["params"]["_meta"]["progressToken"],
                "progress": step,
                "total": 2,
                "message": f"step {step}",
            }
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            yield f"event: message\ndata: {json.dumps(note)}\n\n".encode()
        result = {"jsonrpc": "2.0", "id": body["id"], "result": {"content": [{"type": "text", "text": "arrived"}]}}
        yield f"data: {json.dumps(result)}\n\n".encode()

    @staticmethod
    def _result(body: dict[str, Any], result: dict[str, Any]) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": {"resultType": "complete"} | result})


@contextlib.contextmanager
def serving(app: Any, listener: socket.socket) -> Iterator[None]:
    """The app on uvicorn, on a thread, until the block ends."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def tcp_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def unix_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"
