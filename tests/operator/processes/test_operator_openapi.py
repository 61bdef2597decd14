"""Does the OpenAPI document say what the operator endpoint does? Every endpoint of a real node is asked."""

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.requests import Request
from tests.cli.program import Interlock
from tests.operator.fake_node import FakeOperations
from tests.operator.operator_tree import OperatorTree, running_tree
from tools.operator_api import main

import interlock
from interlock.catalog.operations import CallOperations
from interlock.operator.app import operator_app
from interlock.operator.endpoint import BODY_BYTES_MAX
from interlock.operator.open_pages import CONSOLE_PAGES
from interlock.operator.openapi import OPERATIONS, document, member_help
from interlock.operator.operation import Operation, RequestBody, handlers_of
from interlock.rooms.operations import RoomOperations

DOCUMENT = document()
WATER = "greenhouse.water_beds"
TERMS = {
    **{"id": "x", "aggregator_id": "x", "tool": WATER, "tool_digest": "x", "who": "local", "rules": []},
    **{"calls": 1, "until": None, "issued_at": 0},
}
CLASSES = {
    "id": "3f9c0a1b-0000-4000-8000-000000000000",
    "entries": [{"tool": WATER, "digest": "x", "class": "read_only"}],
}
WITH_BODY = [one for one in OPERATIONS if one.input is not None]
PROPOSED = {"surface_name": "a_b", "change_controller": "A"}
REQUESTED = {"action": "request", "subject": "a_b", "body": PROPOSED}


BOARD = """
profile = "a"
[link]
transport = "uart_cbor"
port = "simulated"
heartbeat_ms = 50
[[tool]]
id = 1
name = "look"
mutable = false
reversible = true
"""


def name_of(endpoint: Operation[Any]) -> str:
    return f"{endpoint.method} {endpoint.path}"


def operation(endpoint: Operation[Any]) -> dict[str, Any]:
    path = endpoint.path.replace(":path}", "}")
    found: dict[str, Any] = DOCUMENT["paths"][path][endpoint.method.lower()]
    return found


def check(endpoint: Operation[Any], status: int, content_type: str, raw: bytes) -> None:
    """The answer is one that the document promises."""
    described = operation(endpoint)["responses"]
    assert str(status) in described, (name_of(endpoint), status, raw)
    content = described[str(status)]["content"]
    assert content_type in content, (name_of(endpoint), content_type)
    if content_type == "application/json":
        value, schema = json.loads(raw), content[content_type]["schema"]
        validator(schema).validate(value)
        assert list(undocumented(value, schema)) == []


def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def undocumented(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Members that the document does not name; a schema allows them, for answers may gain some."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        yield from undocumented(value, DOCUMENT["components"]["schemas"][name], f"{path}({name})")
    elif "anyOf" in schema:
        (arm, *_) = (one for one in schema["anyOf"] if validator(one).is_valid(value))
        yield from undocumented(value, arm, path)
    elif isinstance(value, list):
        for item in value:
            yield from undocumented(item, schema.get("items", {}), f"{path}[]")
    elif isinstance(value, dict) and "properties" in schema:
        if not path.endswith("(AuditRecord)"):  # it has further members by what happened
            yield from (f"{path}.{key}" for key in value.keys() - schema["properties"].keys())
        for key in value.keys() & schema["properties"].keys():
            yield from undocumented(value[key], schema["properties"][key], f"{path}.{key}")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for key, item in value.items():
            yield from undocumented(item, schema["additionalProperties"], f"{path}.{key}")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorTree]:
    interlock = Interlock(tmp_path_factory.mktemp("tree"))
    (interlock.folder / ".devices").mkdir()
    (interlock.folder / ".devices" / "board.toml").write_text(BOARD)
    with running_tree(interlock) as made:
        yield made


@pytest.fixture(scope="module")
def places(tree: OperatorTree) -> dict[str, list[str]]:
    """Paths to ask, of every endpoint that has parts in its path."""
    held = tree.hold_call()
    definition = tree.get("/approvals?kind=definition")["approvals"][0]["id"]
    ticket = tree.post("/admin/passkeys", {"name": "ada"})["url"].rpartition("/")[2]
    segments = ("greenhouse", "board", "gone", "leaf", "ready-mcp", "nowhere")
    return {
        "/admin/links/{segment}": [f"/admin/links/{one}" for one in segments],
        "/admin/links/{segment}/frames": ["/admin/links/board/frames", "/admin/links/gone/frames"],
        "/admin/links/{segment}/logs": ["/admin/links/gone/logs", "/admin/links/gone/logs?lines=1"],
        "/admin/tools/{name}": [
            *("/admin/tools/greenhouse.water_beds", "/admin/tools/demo.ready?as=client:x"),
            *("/admin/tools/leaf.look", "/admin/tools/nowhere", "/admin/tools/leaf__tidy"),
        ],
        "/admin/drivers/{name}": [
            *("/admin/drivers/ready-mcp", "/admin/drivers/new-mcp", "/admin/drivers/broken-mcp"),
            *("/admin/drivers/demo.ready", "/admin/drivers/demo.new", "/admin/drivers/nowhere"),
        ],
        "/admin/rooms/{topic}/connections": ["/admin/rooms/yard/connections", "/admin/rooms/x/connections"],
        "/admin/rooms/{topic}/participants": ["/admin/rooms/yard/participants", "/admin/rooms/x/participants"],
        "/admin/names/entries/{name}": ["/admin/names/entries/org_alter_ingest", "/admin/names/entries/x"],
        "/admin/rooms/{topic}/observed": ["/admin/rooms/yard/observed", "/admin/rooms/x/observed"],
        "/approvals": ["/approvals", "/approvals?status=all", "/approvals?kind=call&status=pending"],
        "/approvals/{id}": [f"/approvals/{held}", f"/approvals/{held[:8]}", f"/approvals/{definition}", "/approvals/x"],
        "/approvals/{id}/passkey": [f"/approvals/{held}/passkey", "/approvals/x/passkey"],
        "/admin/passkeys/{ticket}": [f"/admin/passkeys/{ticket}", "/admin/passkeys/x"],
        "/console/{file}": ["/console/console.css", "/console/dom.js", "/console/icon.svg", "/console/x"],
        "/passkeys/{ticket}": [f"/passkeys/{ticket}", "/passkeys/x"],
    }


def test_the_document_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_the_committed_pages_are_the_generated_pages(tmp_path: Path) -> None:
    assert main(["--check"]) == 0
    (tmp_path / "docs").mkdir()
    assert main(["--check"], tmp_path) == 1
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0


def test_every_route_is_in_the_document_and_no_other() -> None:
    app = operator_app(FakeOperations().handlers, authenticate=None)
    routes = {
        (method, route.path.replace(":path}", "}"))  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert routes == described


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation(endpoint)["operationId"] for endpoint in OPERATIONS]
    assert len(names) == len(set(names))


def _handled() -> Iterator[Operation[Any]]:
    source = Path(interlock.__file__).parent
    for path in sorted(source.rglob("*.py")):
        if "@handles(" in path.read_text():
            module = importlib.import_module(".".join(("interlock", *path.relative_to(source).with_suffix("").parts)))
            for _, service in inspect.getmembers(module, inspect.isclass):
                for _, method in inspect.getmembers(service, lambda one: hasattr(one, "operation")):
                    yield method.operation


def test_every_operation_is_handled() -> None:
    handled = set(_handled())
    pages = {page.name for page in CONSOLE_PAGES} | {"visit_login", "visit_approvers"}
    answered_without_service = {"get_openapi", "get_session", "get_console_file"}
    assert {one.name for one in OPERATIONS if one not in handled} == pages | answered_without_service


def _structs() -> Iterator[type[msgspec.Struct]]:
    for path in sorted(Path(interlock.__file__).parent.glob("*/*api.py")):
        loaded = importlib.import_module(f"interlock.{path.parent.name}.{path.stem}")
        for _, found in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(found, msgspec.Struct) and found.__module__ == loaded.__name__:
                yield found


def test_every_field_says_what_it_is() -> None:
    hints = {one: get_type_hints(one, include_extras=True) for one in _structs()}
    described = {
        f"{one.__name__}.{name}": name in member_help(one)
        or any(isinstance(meta, msgspec.Meta) and meta.description for meta in getattr(hint, "__metadata__", ()))
        for one, fields in hints.items()
        for name, hint in fields.items()
        if not name.startswith("_")
    }
    assert len(described) > 250
    assert [field for field, is_described in described.items() if not is_described] == []
    assert [one.__name__ for one in hints if not one.__doc__] == []
    assert [one.__name__ for one in hints if not member_help(one).keys() <= hints[one].keys()] == []


def test_answers_are_frozen_and_only_bodies_refuse_what_they_do_not_know() -> None:
    for one in _structs():
        assert one.__struct_config__.frozen, one
        assert one.__struct_config__.forbid_unknown_fields == issubclass(one, RequestBody), one


@pytest.mark.timeout(180)
@pytest.mark.parametrize("endpoint", [one for one in OPERATIONS if one.method == "GET"], ids=name_of)
def test_answers_to_reads_have_the_documented_shape(
    tree: OperatorTree, places: dict[str, list[str]], endpoint: Operation[Any]
) -> None:
    statuses = set()
    for path in places.get(endpoint.path, [endpoint.path]):
        for accept in ["application/json", *(["text/html"] if endpoint.is_page else [])]:
            reply = tree.ask("GET", path, accept=accept)
            check_read(endpoint, reply.status, reply.content_type, reply.raw)
            statuses.add(reply.status)
    # No passkey and no key may sign here; `test_gate_grants` reads grants.
    if endpoint.role != "anyone" and not endpoint.path.endswith(("/passkey", "/grants/{id}")):
        assert 200 in statuses
    if endpoint.is_strict:
        unknown = tree.ask("GET", f"{places.get(endpoint.path, [endpoint.path])[0].partition('?')[0]}?nonsense=1")
        check(endpoint, unknown.status, unknown.content_type, unknown.raw)
        assert unknown.json["error"] == "invalid_parameter"


def check_read(endpoint: Operation[Any], status: int, content_type: str, raw: bytes) -> None:
    if endpoint.is_page and content_type == "text/html":
        assert raw.startswith(b"<!doctype html>")
        return
    check(endpoint, status, content_type, raw)


@pytest.mark.timeout(180)
def test_a_link_that_is_there_has_every_field_and_a_child_that_waits_only_the_first(tree: OperatorTree) -> None:
    links = {one["segment"]: one for one in tree.get("/admin/links")["links"]}
    schema = DOCUMENT["components"]["schemas"]["Link"]
    assert list(links["leaf"]) == list(schema["properties"])
    assert set(schema["properties"]) - links["greenhouse"].keys() == {"registration"}
    assert set(links["mute"]) == set(schema["required"])


@pytest.mark.timeout(180)
def test_a_driver_whose_file_cannot_be_read_lacks_what_the_file_would_say(tree: OperatorTree) -> None:
    schema = DOCUMENT["components"]["schemas"]["DriverDetail"]
    assert list(tree.get("/admin/drivers/ready-mcp")) == list(schema["properties"])
    assert set(tree.get("/admin/drivers/broken-mcp")) == set(schema["required"])


def test_a_member_that_is_not_documented_is_found() -> None:
    answer = {"links": [{"segment": "x", "budget": {"a": {"limit": 1, "used": 0, "left": 1}}, "odd": 1}]}
    found = undocumented(answer, {"$ref": "#/components/schemas/Links"})
    assert sorted(found) == ["(Links).links[](Link).budget.a(Spent).left", "(Links).links[](Link).odd"]


@pytest.mark.timeout(180)
def test_answers_to_changes_have_the_documented_shape(tree: OperatorTree, places: dict[str, list[str]]) -> None:
    held, ticket = places["/approvals/{id}"][0], places["/passkeys/{ticket}"][0]
    made_up = {"client_data": "aaaa", "attestation": "aaaa"}
    requests = [
        ("POST", "/admin/secrets", "/admin/secrets", {"name": "a-b", "value": "x"}, 201),
        ("POST", "/admin/secrets", "/admin/secrets", {"name": "a-b", "value": "y", "unless_kept": True}, 201),
        ("POST", "/admin/secrets", "/admin/secrets", {"name": "!", "value": "y"}, 409),
        ("DELETE", "/admin/secrets/{kind}/{name:path}", "/admin/secrets/secret/a-b", None, 200),
        ("DELETE", "/admin/secrets/{kind}/{name:path}", "/admin/secrets/secret/a-b", None, 404),
        ("POST", "/admin/tokens", "/admin/tokens", {"name": "laptop", "for": "client", "days": 3}, 201),
        ("DELETE", "/admin/tokens/{ref}", "/admin/tokens/laptop", None, 200),
        ("DELETE", "/admin/tokens/{ref}", "/admin/tokens/laptop", None, 404),
        ("DELETE", "/admin/keys/{ref}", "/admin/keys/nobody", None, 404),
        ("POST", "/admin/logins", "/admin/logins", None, 201),
        ("POST", "/admin/approvers", "/admin/approvers", {"name": "bob", "passphrase": "short"}, 409),
        ("POST", "/admin/approvers/passkeys", "/admin/approvers/passkeys", {"name": "bob"}, 201),
        ("POST", "/admin/approvers/passkeys/{ticket}", "/admin/approvers/passkeys/x", made_up, 404),
        ("POST", "/login", "/login", {"ticket": "x"}, 404),
        ("DELETE", "/session", "/session", None, 200),
        ("POST", "/admin/links/{segment}/restart", "/admin/links/greenhouse/restart", None, 200),
        ("POST", "/admin/links/{segment}/release", "/admin/links/nowhere/release", None, 404),
        ("POST", "/admin/links/{segment}/authorize", "/admin/links/greenhouse/authorize", None, 409),
        ("POST", "/admin/tools/{name:path}/classify", "/admin/tools/greenhouse.read_climate/classify", None, 409),
        ("POST", "/admin/tools/{name}/call", "/admin/tools/nowhere/call", {}, 200),
        ("POST", "/admin/tools/{name:path}/classify", "/admin/tools/nowhere/classify", None, 404),
        ("POST", "/approvals/{id}", held, {"decision": "approve"}, 403),
        ("POST", "/approvals/{id}", held, {"decision": "approve", "proof": "no"}, 403),
        ("POST", "/approvals/{id}", held, {"decision": "deny", "reason": "not now"}, 200),
        ("POST", "/approvals/{id}", held, {"decision": "deny"}, 409),
        ("POST", "/approvals/{id}/code", f"{held}/code", {"proof": "no"}, 409),
        ("POST", "/approvals/{id}/edit", f"{held}/edit", {"params": {}}, 409),
        ("POST", "/approvals/{id}/proof", f"{held}/proof", {"passphrase": "no"}, 409),
        ("POST", "/admin/grants/draft", "/admin/grants/draft", {"tool": WATER, "who": "local", "rules": []}, 200),
        ("POST", "/admin/grants/draft", "/admin/grants/draft", {"tool": "nowhere", "who": "local"}, 404),
        ("POST", "/admin/grants/draft", "/admin/grants/draft", {"tool": WATER}, 409),
        ("POST", "/admin/grants/passkey", "/admin/grants/passkey", {"terms": TERMS}, 400),
        ("POST", "/admin/grants", "/admin/grants", {"terms": TERMS, "proof": "no"}, 409),
        ("POST", "/admin/grants/proof", "/admin/grants/proof", {"terms": TERMS, "passphrase": "no"}, 400),
        ("POST", "/admin/grants/{id}/revoke", "/admin/grants/nothing/revoke", None, 404),
        ("POST", "/admin/classification", "/admin/classification", {**CLASSES, "proof": "no"}, 403),
        ("POST", "/admin/classification/passkey", "/admin/classification/passkey", CLASSES, 403),
        (
            "POST",
            "/admin/classification/proof",
            "/admin/classification/proof",
            {**CLASSES, "passphrase": "a guess"},
            403,
        ),
        ("POST", "/admin/agents/challenge", "/admin/agents/challenge", {"principal": "local", "name": "x"}, 404),
        ("POST", "/admin/agents/abort", "/admin/agents/abort", {"principal": "local", "name": "x"}, 404),
        ("POST", "/admin/rooms", "/admin/rooms", {"topic": "garden"}, 201),
        ("POST", "/admin/rooms/{topic}/migrate", "/admin/rooms/yard/migrate", None, 200),
        ("POST", "/admin/rooms", "/admin/rooms", {"topic": "garden"}, 409),
        ("POST", "/admin/participants/{id}/promote", "/admin/participants/x/promote", {}, 404),
        ("POST", "/admin/participants/{id}/demote", "/admin/participants/x/demote?topic=garden", {}, 404),
        ("POST", "/admin/participants/{id}/disconnect", "/admin/participants/x/disconnect", None, 404),
        ("POST", "/admin/names/check", "/admin/names/check", {"name": "a_b", "proposal": PROPOSED}, 200),
        ("POST", "/admin/names/verify", "/admin/names/verify", {"name": "a_b", "definition": {"name": "a_b"}}, 200),
        ("POST", "/admin/names/actions", "/admin/names/actions", {"action": "withdraw", "subject": "a_b"}, 404),
        ("POST", "/admin/names/actions", "/admin/names/actions", {**REQUESTED, "subject": "A"}, 409),
        ("POST", "/admin/names/actions", "/admin/names/actions", REQUESTED, 200),
        ("POST", "/admin/names/trust", "/admin/names/trust", {"source": "x", "trusted": True}, 404),
        ("POST", "/admin/names/pins", "/admin/names/pins", {"name": "no_such_name"}, 404),
        ("POST", "/admin/passkeys", "/admin/passkeys", {"name": "bob"}, 201),
        ("POST", "/passkeys/{ticket}", ticket, made_up, 403),
        ("POST", "/passkeys/{ticket}", "/passkeys/x", made_up, 404),
        ("POST", "/admin/drivers", "/admin/drivers", {"reference": "nonsense"}, 409),
        ("POST", "/admin/drivers/trials", "/admin/drivers/trials", {"reference": "nonsense"}, 409),
        ("POST", "/admin/drivers/{name}/test", "/admin/drivers/ready-mcp/test", {}, 200),
        ("POST", "/admin/drivers/{name}/test", "/admin/drivers/new-mcp/test", {}, 409),
        ("POST", "/admin/drivers/{name}/update", "/admin/drivers/ready-mcp/update", {"candidate": "0" * 64}, 409),
        ("POST", "/admin/drivers/{name}/allow", "/admin/drivers/new-mcp/allow", {"host": "api.example.com"}, 200),
        ("POST", "/admin/drivers/{name}/allow", "/admin/drivers/new-mcp/allow", {"host": "a b"}, 409),
        ("POST", "/admin/drivers/{name}/trust", "/admin/drivers/new-mcp/trust", {"digest": "0" * 64}, 409),
        ("POST", "/admin/drivers/{name}/trust", "/admin/drivers/broken-mcp/trust", {"digest": "0" * 64}, 409),
        ("DELETE", "/admin/drivers/{name}", "/admin/drivers/new-mcp?forget=true", None, 200),
        ("DELETE", "/admin/drivers/{name}", "/admin/drivers/new-mcp?forget=maybe", None, 400),
    ]
    by_name = {name_of(one): one for one in OPERATIONS}
    changing = {name for name, one in by_name.items() if one.method != "GET"}
    assert {f"{method} {path}" for method, path, *_ in requests} == changing
    for method, path, place, body, status in requests:
        reply = tree.ask(method, place, body)
        assert reply.status == status, (method, place, reply.raw)
        check(by_name[f"{method} {path}"], reply.status, reply.content_type, reply.raw)


# Bad input


def _member(body: Any) -> str:
    return str(msgspec.structs.fields(body)[0].encode_name)


def _bad_bodies(endpoint: Operation[Any]) -> Iterator[tuple[str, bytes, str, int, str]]:
    body = endpoint.input
    as_json = "application/json"
    yield "no JSON", b"{", as_json, 400, "invalid_json"
    yield "no UTF-8", b'{"\xff": 1}', as_json, 400, "invalid_json"
    yield "no object", b"[]", as_json, 400, "invalid_body"
    yield "wrong type", json.dumps({_member(body): [1]}).encode(), as_json, 400, "invalid_body"
    yield "unknown member", json.dumps({"nonsense": 1}).encode(), as_json, 400, "invalid_body"
    yield "too large", b'"' + b"x" * BODY_BYTES_MAX + b'"', as_json, 413, "body_too_large"
    yield "not called JSON", b"{}", "text/plain", 415, "unsupported_media_type"


BAD = [
    pytest.param(endpoint, *bad, id=f"{name_of(endpoint)}: {what}")
    for endpoint in WITH_BODY
    for what, *bad in _bad_bodies(endpoint)
]


async def authenticate(request: Request) -> str | None:
    role = request.headers.get("authorization", "")
    request.state.roles = {"viewer", role}
    return role or None


def _place(endpoint: Operation[Any]) -> str:
    return "/".join("x" if part.startswith("{") else part for part in endpoint.path.split("/"))


async def ask(
    endpoint: Operation[Any], role: str, body: bytes = b"", media: str = "application/json"
) -> httpx2.Response:
    unused: Any = None
    checked = [CallOperations(unused, unused, unused), RoomOperations(unused, unused, unused, unused, unused)]
    app = operator_app({**FakeOperations().handlers, **handlers_of(checked)}, authenticate=authenticate)
    transport = httpx2.ASGITransport(app=app)
    headers = {"authorization": role, "content-type": media} if role else {"content-type": media}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:7412") as client:
        return await client.request(endpoint.method, _place(endpoint), headers=headers, content=body)


@pytest.mark.parametrize(("endpoint", "body", "media", "status", "error"), BAD)
async def test_bad_input_is_refused_by_name(
    endpoint: Operation[Any], body: bytes, media: str, status: int, error: str
) -> None:
    reply = await ask(endpoint, "admin", body, media)
    assert (reply.status_code, reply.json()["error"]) == (status, error)
    assert reply.json().keys() == {"error", "message", "details"}
    check(endpoint, reply.status_code, reply.headers["content-type"], reply.content)


@pytest.mark.parametrize("endpoint", OPERATIONS, ids=name_of)
async def test_an_operation_requires_the_role_that_the_document_names(endpoint: Operation[Any]) -> None:
    body = b'{"decision":"deny"}' if endpoint.form is not None else b"{}"
    if not endpoint.is_stream:  # a stream that is let in does not end
        looks = await ask(endpoint, "viewer", body)
        is_refused = looks.status_code == 403 and looks.json()["error"] == "role_required"
        assert is_refused == (endpoint.role in ("operator", "admin"))
    stranger = await ask(endpoint, "", body)
    assert (stranger.status_code == 401) == (endpoint.role != "anyone")
    if stranger.status_code == 401:
        check(endpoint, 401, stranger.headers["content-type"], stranger.content)


async def test_the_traffic_of_a_device_is_for_admins_alone() -> None:
    frames = next(endpoint for endpoint in OPERATIONS if endpoint.path == "/admin/links/{segment}/frames")
    for role in ("viewer", "operator"):
        refused = await ask(frames, role)
        assert (refused.status_code, refused.json()["error"]) == (403, "role_required")
    assert (await ask(frames, "admin")).status_code != 403
