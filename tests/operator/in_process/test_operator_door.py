"""Does the operator door answer what the node says, and name what is wrong with everything else?"""

import http.client
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.operator.fake_node import FakeOperations, as_json, serving, tcp_listener

from interlock.config.plan import Address
from interlock.fronts.exchange import OwnAddress, own_address
from interlock.operator.app import operator_app
from interlock.operator.endpoint import BODY_BYTES_MAX
from interlock.operator.openapi import OPERATIONS

GOOD = "Bearer ilo_good"
LOOKS = "Bearer ilo_looks"


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.raw = response.read()

    @property
    def body(self) -> Any:
        assert self.headers.get_content_type() == "application/json"
        return json.loads(self.raw)


class Door:
    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            return Reply(connection.getresponse())
        finally:
            connection.close()


class ReplaceableApp:
    """An application that each test replaces, so that one server does for many tests."""

    port: int
    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


async def authenticate(request: Request) -> str | None:
    who = {GOOD: "operator:me", LOOKS: "operator:intern"}.get(request.headers.get("authorization", ""))
    request.state.roles = {"viewer"} if who == "operator:intern" else {"viewer", "operator", "admin"}
    return who


@pytest.fixture(scope="module")
def server() -> Iterator[ReplaceableApp]:
    listener, app = tcp_listener(), ReplaceableApp()
    app.port = listener.getsockname()[1]
    with serving(app, listener):
        yield app


@pytest.fixture
def door(server: ReplaceableApp, operations: FakeOperations) -> Door:
    """The app as the unix socket serves it: nobody is asked who they are."""
    server.app = operator_app(operations.handlers, authenticate=None)
    return Door(server.port)


@pytest.fixture
def guarded_door(server: ReplaceableApp, operations: FakeOperations) -> Door:
    server.app = operator_app(operations.handlers, authenticate=authenticate)
    return Door(server.port)


def json_body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/admin/status", lambda ops: ops.node.status()),
        ("/admin/links", lambda ops: ops.links.list_all()),
        ("/admin/links/git", lambda ops: ops.links.get("git")),
        ("/admin/links/time/logs", lambda ops: ops.links.logs("time", 200)),
        ("/admin/links/time/logs?lines=1", lambda ops: ops.links.logs("time", 1)),
        ("/admin/tools", lambda ops: ops.tools.list_all()),
        ("/admin/tools/routes", lambda ops: ops.tools.routes()),
        ("/admin/tools/time.convert_time", lambda ops: ops.tools.get("time.convert_time")),
        ("/admin/tools/time__convert_time", lambda ops: ops.tools.get("time.convert_time")),
        ("/admin/config", lambda ops: ops.node.configuration()),
        ("/admin/tokens", lambda ops: {"tokens": ops.token_list}),
        (
            "/admin/secrets",
            lambda ops: {"secrets": [{"kind": kind, "name": name, "destinations": []} for kind, name in ops.kept]},
        ),
    ],
)
def test_a_path_answers_with_what_the_operation_says(
    door: Door, operations: FakeOperations, path: str, expected: Any
) -> None:
    reply = door("GET", path)
    assert (reply.status, reply.body) == (200, as_json(expected(operations)))


def test_audit_pages_follow_after_and_limit(door: Door) -> None:
    reply = door("GET", "/admin/audit?after=3&limit=2")
    assert [record["seq"] for record in reply.body["records"]] == [4, 5]
    assert reply.body["last"] == 30


def test_restarting_a_link_takes_a_post(door: Door, operations: FakeOperations) -> None:
    assert door("POST", "/admin/links/time/restart").body == {
        "segment": "time",
        "state": "connecting",
        "reason": None,
    }
    assert operations.restarted == ["time"]


def test_agreeing_takes_a_post_and_is_refused_where_there_is_nothing_to_agree_to(door: Door) -> None:
    assert door("POST", "/admin/links/notes/authorize").body["url"].startswith("https://login.example.com/")
    assert door("POST", "/admin/links/time/authorize").body["error"] == "no_oauth"
    assert door("POST", "/admin/links/nowhere/authorize").status == 404
    assert door("GET", "/admin/links/notes/authorize").status == 405


def test_a_secret_is_set_listed_and_removed_and_never_answered(door: Door, operations: FakeOperations) -> None:
    made = door("POST", "/admin/secrets", json_body(name="key", value="hush"), Content_Type="application/json")
    assert (made.status, made.body) == (201, {"name": "key", "restarted": ["notes"]})
    assert b"hush" not in door("GET", "/admin/secrets").raw
    assert door("DELETE", "/admin/secrets/secret/key").status == 200
    assert door("DELETE", "/admin/secrets/secret/key").status == 404
    assert door("DELETE", "/admin/secrets/client/https%3A%2F%2Flogin.example.com%2Fx").status == 200
    assert door("DELETE", "/admin/secrets/other/key").status == 404
    assert operations.kept == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "bad", "value": "x"}, 409),
        ({"name": "key"}, 400),
        ({"name": "key", "value": ""}, 400),
        ({"name": "key", "value": 7}, 400),
        ({"name": "x" * 100, "value": "x"}, 400),
        ({"name": "key", "value": "x", "more": 1}, 400),
        ({"name": "key", "value": "x" * 70_000}, 413),
    ],
)
def test_a_secret_of_another_shape_is_refused(door: Door, body: dict[str, Any], status: int) -> None:
    assert door("POST", "/admin/secrets", json_body(**body), Content_Type="application/json").status == status


def test_a_returning_browser_is_served_without_a_token_and_shown_a_safe_page(
    guarded_door: Door, operations: FakeOperations
) -> None:
    reply = guarded_door("GET", "/oauth/callback?state=a%20b&code=c&code=d")
    assert reply.status == 400 and reply.headers.get_content_type() == "text/html"
    assert b"&lt;i&gt;No" in reply.raw and b"a &amp; b &lt;script&gt;" in reply.raw
    assert operations.returned == [[("state", "a b"), ("code", "c"), ("code", "d")]]
    assert guarded_door("HEAD", "/oauth/callback?state=a&code=c").status == 405
    assert len(operations.returned) == 1
    assert guarded_door("GET", "/oauth/callback/").status == 401
    assert guarded_door("GET", "/oauth").status == 401


def test_a_token_is_issued_listed_and_revoked(door: Door) -> None:
    made = door("POST", "/admin/tokens", json_body(name="ci", **{"for": "client"}), Content_Type="application/json")
    assert made.status == 201
    assert made.body["token"].startswith("ilc_")
    assert "ci" in [token["name"] for token in door("GET", "/admin/tokens").body["tokens"]]
    assert door("DELETE", "/admin/tokens/ci").body == {"revoked": [made.body["id"]]}
    assert door("DELETE", "/admin/tokens/ci").status == 404


@pytest.mark.parametrize("path", ["/admin/status", "/admin/tokens", "/nowhere", "/admin/links/%00"])
@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer ilc_good"}, {"Authorization": "Basic b2s="}])
def test_without_an_operators_credential_every_path_is_401(guarded_door: Door, path: str, sent: dict[str, str]) -> None:
    reply = guarded_door("GET", path, **sent)
    assert (reply.status, reply.body["error"]) == (401, "unauthorised")
    assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def test_an_unauthenticated_post_does_nothing(guarded_door: Door, operations: FakeOperations) -> None:
    assert guarded_door("POST", "/admin/links/time/restart").status == 401
    assert operations.restarted == []


def test_an_operators_credential_is_accepted(guarded_door: Door) -> None:
    assert guarded_door("GET", "/admin/status", Authorization=GOOD).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/admin/links/time/restart", None),
        ("POST", "/admin/links/time/release", None),
        ("POST", "/admin/links/notes/authorize", None),
        ("POST", "/admin/tools/notes.odd/classify", None),
        ("POST", "/admin/secrets", {"name": "key", "value": "hush"}),
        ("DELETE", "/admin/secrets/client/https%3A%2F%2Flogin.example.com%2Fx", None),
        ("POST", "/admin/tokens", {"name": "root", "for": "operator"}),
        ("DELETE", "/admin/tokens/laptop", None),
        ("DELETE", "/admin/keys/ada", None),
    ],
)
def test_a_credential_that_only_looks_changes_nothing(
    guarded_door: Door, operations: FakeOperations, method: str, path: str, body: dict[str, str] | None
) -> None:
    """Least of all does it make itself one that may do more."""
    sent = None if body is None else json_body(**body)
    reply = guarded_door(method, path, sent, Authorization=LOOKS, Content_Type="application/json")
    assert (reply.status, reply.body["error"]) == (403, "role_required")
    assert (operations.restarted, operations.revoked_keys, len(operations.token_list)) == ([], [], 1)
    assert len(operations.kept) == 1
    assert guarded_door("GET", "/admin/tokens", Authorization=LOOKS).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/admin/status", {"GET", "HEAD"}),
        ("GET", "/admin/links/time/restart", {"POST"}),
        ("PUT", "/admin/tokens", {"GET", "HEAD", "POST"}),
        ("GET", "/admin/tokens/laptop", {"DELETE"}),
        ("PATCH", "/admin/tools", {"GET", "HEAD"}),
    ],
)
def test_the_wrong_method_is_405_and_names_the_right_methods(
    door: Door, method: str, path: str, allowed: set[str]
) -> None:
    reply = door(method, path)
    assert (reply.status, reply.body["error"]) == (405, "method_not_allowed")
    assert set(reply.headers["Allow"].replace(" ", "").split(",")) == allowed


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/status/", "/admin/nothing", "//admin/status"])
def test_an_unknown_path_is_a_named_404(door: Door, path: str) -> None:
    reply = door("GET", path)
    assert (reply.status, reply.body["error"]) == (404, "unknown_path")


@pytest.mark.parametrize(
    ("path", "what", "nearest"),
    [
        ("/admin/links/tme", "link", ["time"]),
        ("/admin/links/tme/logs", "link", ["time"]),
        ("/admin/tools/time.convert_tim", "tool", ["time.convert_time"]),
    ],
)
def test_an_unknown_name_is_a_404_that_names_the_nearest(door: Door, path: str, what: str, nearest: list[str]) -> None:
    reply = door("GET", path)
    assert (reply.status, reply.body["error"]) == (404, "not_found")
    assert what in reply.body["details"]
    assert reply.body["details"]["nearest"][: len(nearest)] == nearest


@pytest.mark.parametrize(
    "segment",
    [
        "%2e%2e",
        "%2F",
        "..%2Fstatus",
        "%00",
        "%FF%FE",
        "%0d%0aSet-Cookie:%20a=b",
        "%F0%9F%92%A9",
        "%",
        "%zz",
        "x" * 8000,
    ],
)
@pytest.mark.parametrize("form", ["/admin/links/{}", "/admin/tools/{}", "/admin/links/{}/logs"])
def test_an_odd_segment_is_a_404_and_nothing_worse(door: Door, form: str, segment: str) -> None:
    reply = door("GET", form.format(segment))
    assert reply.status == 404
    assert reply.body["error"] in ("not_found", "unknown_path")
    assert "Set-Cookie" not in reply.headers
    assert len(reply.body["message"]) < 1000
    assert door("GET", "/admin/status").status == 200


@pytest.mark.parametrize(
    "query",
    [
        *("lines=0", "lines=-1", "lines=ten", "lines=1e3", "lines=", "lines=%D9%A3", "lines=1&lines=2", "lines=999999"),
        *("lines=" + "9" * 5000, "line=3"),
    ],
)
def test_a_bad_query_parameter_is_named(door: Door, query: str) -> None:
    reply = door("GET", f"/admin/links/time/logs?{query}")
    assert (reply.status, reply.body["error"]) == (400, "invalid_parameter")
    assert reply.body["details"]["parameter"] == query.partition("=")[0]


@pytest.mark.parametrize("query", ["after=-1", "limit=0", "limit=1001", "after=99999999999999999999", "since=1"])
def test_the_audit_endpoint_refuses_what_it_cannot_count(door: Door, query: str) -> None:
    assert door("GET", f"/admin/audit?{query}").status == 400


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"name": NaN}', "invalid_json"),
        (b"[" * 30_000, "invalid_body"),
        (b'{"name":"a","for":"client","days":' + b"[" * 30_000, "invalid_body"),
        (b"[]", "invalid_body"),
        (b"null", "invalid_body"),
        (b"{}", "invalid_body"),
        (json_body(name="a"), "invalid_body"),
        (json_body(name="a", **{"for": "room"}), "invalid_body"),
        (json_body(name="", **{"for": "client"}), "invalid_body"),
        (json_body(name="a b", **{"for": "client"}), "invalid_body"),
        (json_body(name="-x", **{"for": "client"}), "invalid_body"),
        (json_body(name="a" * 65, **{"for": "client"}), "invalid_body"),
        (json_body(name="a", scope="root", **{"for": "client"}), "invalid_body"),
        (json_body(name="a", days=0, **{"for": "client"}), "invalid_body"),
        (json_body(name="a", days=True, **{"for": "client"}), "invalid_body"),
        (json_body(name="a", days="7", **{"for": "client"}), "invalid_body"),
        (json_body(name="a", door="client", **{"for": "client"}), "invalid_body"),
    ],
)
def test_a_bad_body_is_named_and_issues_nothing(
    door: Door, operations: FakeOperations, body: bytes, error: str
) -> None:
    reply = door("POST", "/admin/tokens", body, Content_Type="application/json")
    assert (reply.status, reply.body["error"]) == (400, error)
    assert len(operations.token_list) == 1


def test_a_huge_body_is_413(door: Door) -> None:
    huge = b'{"name": "' + b"a" * BODY_BYTES_MAX + b'", "for": "client"}'
    reply = door("POST", "/admin/tokens", huge, Content_Type="application/json")
    assert (reply.status, reply.body["error"]) == (413, "body_too_large")


def test_a_body_without_end_is_413_before_it_ends(door: Door) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection:
        connection.sendall(
            b"POST /admin/tokens HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"%x\r\n" % 16384 + b"a" * 16384 + b"\r\n"
        for _ in range(BODY_BYTES_MAX // 16384 + 1):
            connection.sendall(chunk)
        assert b" 413 " in connection.recv(4096).split(b"\r\n", 1)[0]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_a_body_that_is_not_declared_as_json_is_415(door: Door, media_type: str) -> None:
    body = json_body(name="a", **{"for": "client"})
    reply = door("POST", "/admin/tokens", body, Content_Type=media_type)
    assert (reply.status, reply.body["error"]) == (415, "unsupported_media_type")


def test_a_refusal_of_the_node_keeps_its_name(door: Door) -> None:
    reply = door("POST", "/admin/links/git/restart")
    assert (reply.status, reply.body["error"]) == (409, "draining")


def test_a_store_that_is_away_is_503(door: Door, operations: FakeOperations) -> None:
    operations.is_store_away = True
    reply = door("GET", "/admin/tokens")
    assert (reply.status, reply.body["error"]) == (503, "unavailable")
    assert b"store.db" not in reply.raw


def test_an_unexpected_failure_leaves_only_an_id_that_the_log_repeats(
    door: Door, operations: FakeOperations, caplog: pytest.LogCaptureFixture
) -> None:
    operations.broken = True
    with caplog.at_level(logging.ERROR, logger="interlock.operator"):
        reply = door("GET", "/admin/status")
    assert (reply.status, reply.body["error"]) == (500, "internal")
    assert b"secret" not in reply.raw
    assert b"RuntimeError" not in reply.raw
    assert reply.body["details"]["ref"] in caplog.text
    assert "the fake is broken" in caplog.text
    assert door("GET", "/admin/links").status == 200


def test_the_socket_of_a_data_folder_serves_the_same_app(node: FakeOperations, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(tmp_path / "data" / "run" / "admin.sock"))
        connection.sendall(b"GET /admin/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.endswith(b'{"node":{"name":"default"}}')


# Where a change comes from


OWN = "http://127.0.0.1:{port}"
CHANGES = [(one.method, re.sub(r"\{[^}]*\}", "x", one.path)) for one in OPERATIONS if one.method != "GET"]


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"origin": "https://evil.example"}, "bad_origin"),
        ({"origin": "null"}, "bad_origin"),
        ({"origin": "https://127.0.0.1:{port}"}, "bad_origin"),  # the scheme differs
        ({"origin": "http://127.0.0.1:1"}, "bad_origin"),
        ({"origin": "http://127.0.0.1:{port}.evil.example"}, "bad_origin"),
        ({"origin": "http://["}, "bad_origin"),
        ({"sec_fetch_site": "cross-site"}, "bad_origin"),
        ({"sec_fetch_site": "same-site"}, "bad_origin"),
        ({"sec_fetch_site": "none"}, "bad_origin"),
        ({"sec_fetch_site": "cross-site", "origin": OWN}, "bad_origin"),
        ({"host": "evil.example", "origin": "http://evil.example"}, "bad_host"),  # a name that was led here
        ({"host": "evil.example:{port}"}, "bad_host"),
        ({"host": ""}, "bad_host"),
    ],
    ids=str,
)
def test_a_change_that_another_page_asks_for_is_refused_at_every_path(
    guarded_door: Door, operations: FakeOperations, headers: dict[str, str], error: str
) -> None:
    said = {name: text.format(port=guarded_door.port) for name, text in headers.items()}
    before = as_json(operations.node.status())
    for method, path in CHANGES:
        reply = guarded_door(method, path, b"{}", authorization=GOOD, content_type="application/json", **said)
        assert (reply.status, reply.body["error"]) == (421 if error == "bad_host" else 403, error), path
    assert as_json(operations.node.status()) == before


@pytest.mark.parametrize("headers", [{}, {"origin": OWN}, {"sec_fetch_site": "same-origin"}, {"host": "localhost"}])
def test_a_change_of_the_own_page_or_of_a_program_is_taken(guarded_door: Door, headers: dict[str, str]) -> None:
    said = {name: text.format(port=guarded_door.port) for name, text in headers.items()}
    assert guarded_door("POST", "/admin/links/time/restart", authorization=GOOD, **said).status == 200


def test_looking_takes_no_origin(guarded_door: Door) -> None:
    assert guarded_door("GET", "/admin/status", authorization=GOOD, sec_fetch_site="none").status == 200


@pytest.mark.parametrize(
    ("address", "host", "origin", "taken"),
    [
        (own_address(Address("127.0.0.1", 7412), "https://ops.example"), "ops.example", "https://ops.example", True),
        (own_address(Address("127.0.0.1", 7412), "https://ops.example"), "ops.example", "http://evil.example", False),
        (own_address(Address("127.0.0.1", 7412), "https://ops.example"), "127.0.0.1", "https://ops.example", True),
        (own_address(Address("10.0.0.1", 7412), None), "10.0.0.1:7412", "http://10.0.0.1:7412", True),
        (own_address(Address("0.0.0.0", 7412), None), "any.example:7412", "http://any.example:7412", True),
        (own_address(Address("0.0.0.0", 7412), None), "any.example:7412", "http://evil.example", False),
        (own_address(Address("::1", 7412), None), "[::1]:7412", "http://[::1]:7412", True),
    ],
)
def test_our_origin_is_the_origin_of_the_request_or_the_configured_origin(
    address: OwnAddress, host: str, origin: str, taken: bool
) -> None:
    assert address.is_own_host(host)
    assert address.is_own_origin(origin, "http", host) is taken


def test_no_answer_is_kept_or_taken_for_another_kind(guarded_door: Door) -> None:
    for method, path, who in (
        ("GET", "/admin/status", GOOD),
        ("GET", "/admin/status", "Bearer no"),
        ("GET", "/nowhere", GOOD),
        ("PUT", "/admin/tokens", GOOD),
        ("POST", "/admin/tokens", GOOD),
        ("DELETE", "/admin/tokens/nobody", LOOKS),
    ):
        reply = guarded_door(method, path, authorization=who)
        assert reply.headers.get_all("cache-control") == ["no-store"], (method, path)
        assert reply.headers.get_all("x-content-type-options") == ["nosniff"], (method, path)
