"""Does the public door take the access tokens it should, and no others? (MCP authorization, RFC 9728, RFC 6750)"""

import concurrent.futures
import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.authority import WELL_KNOWN, Authority, authority, protected_node
from tests.support.node_process import Answer, RunningNode, wait_for
from tests.support.raw_client import (
    RawConnection,
    ask,
    ask_in_every_way,
    call,
    hello,
    legacy,
    legacy_session,
    message,
    modern,
    request,
)

RULES = """
[[access]]
who = ["client:corp/reader@*", "role:corp/auditor"]
scope = "read"

[[access]]
who = ["client:corp/narrow@build"]
tools = ["good.echo"]
"""


@pytest.fixture(scope="module")
def corp() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture(scope="module")
def node(corp: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with protected_node(tmp_path_factory.mktemp("oauth"), corp, RULES) as started:
        yield started


def bearer(token: str) -> str:
    return f"Bearer {token}"


def tools(node: RunningNode, token: str) -> set[str]:
    listed = ask(node, modern("tools/list", authorization=bearer(token))).json["result"]["tools"]
    return {tool["name"].removeprefix("good__") for tool in listed}


def assert_invalid(node: RunningNode, answer: Answer) -> None:
    assert (answer.status, answer.json["error"]) == (401, "unauthorised")
    said = answer.headers["www-authenticate"]
    assert said.startswith(f'Bearer resource_metadata="{node.url}{WELL_KNOWN}/mcp", error="invalid_token"'), said


# A good token


@pytest.mark.parametrize("signer", [None, ["RS256", "rsa"], ["ES256", "ec"]])
def test_a_good_token_is_accepted_however_its_bytes_arrive(corp: Authority, node: RunningNode, signer: Any) -> None:
    token = corp.token(signer=signer)
    answer = ask_in_every_way(node, call("good__echo", {"n": 1}, authorization=bearer(token)))
    assert answer.json["result"]["structuredContent"] == {"n": 1}
    session = legacy_session(node, authorization=bearer(token))
    assert ask(node, legacy(session, "ping", authorization=bearer(token))).json["result"] == {}


def test_the_caller_is_known_by_issuer_subject_and_client(corp: Authority, node: RunningNode) -> None:
    token = corp.token(sub="bob@example.com", client_id="https://app.example/client.json")
    assert ask(node, call("good__echo", authorization=bearer(token))).status == 200

    def known() -> Any:
        listed = node.admin("/admin/audit")["records"]
        return [one for one in listed if "bob%40example.com@https://app.example/client.json" in json.dumps(one)]

    (record, *_) = wait_for(known)
    assert "client:corp/bob%40example.com@https://app.example/client.json" in json.dumps(record)
    assert token not in json.dumps(node.admin("/admin/audit"))


def test_a_verified_token_is_not_asked_about_again(corp: Authority, node: RunningNode) -> None:
    token = corp.token()
    assert ask(node, call("good__echo", authorization=bearer(token))).status == 200
    before = corp.do("counts")
    for _ in range(20):
        assert ask(node, call("good__echo", authorization=bearer(token))).status == 200
    assert corp.do("counts") == before


def test_a_static_token_is_still_accepted(node: RunningNode) -> None:
    static = node.admin("/admin/tokens", "POST", {"name": "small", "for": "client"})["token"]
    assert "result" in ask(node, call("good__echo", authorization=bearer(static))).json
    assert_invalid(node, ask(node, call("good__echo", authorization=bearer("ilc_" + "a" * 43))))
    node.admin("/admin/tokens/small", "DELETE")
    assert_invalid(node, ask(node, call("good__echo", authorization=bearer(static))))


def test_an_access_token_is_never_accepted_at_the_operator_endpoint(corp: Authority, node: RunningNode) -> None:
    token = corp.token("read write admin", sub="root", roles=["admin", "operator"])
    host, port = node.operator_url.removeprefix("http://").rsplit(":", 1)
    for path in ("/admin/status", "/admin/tokens", "/admin/config"):
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
            connection.request("GET", path, headers={"authorization": bearer(token)})
            assert connection.getresponse().status == 401


# Bad ones

Defect = Callable[[Authority], str]
HOUR = 3600
REGISTER = b'{"jsonrpc":"2.0","id":1,"method":"mcpax/register","params":{}}'
DEFECTS: dict[str, Defect] = {
    "unsigned": lambda corp: corp.do("unsigned", claims={"aud": corp.resource, "scope": "read"}),
    "unsigned, in capitals": lambda corp: corp.do("unsigned", claims={"aud": corp.resource}, alg="NONE"),
    "symmetric with the public key": lambda corp: corp.do("confused", claims={"aud": corp.resource, "scope": "read"}),
    "tampered payload": lambda corp: corp.do("tampered", token=corp.token("read"), claims={"scope": "admin"}),
    "other audience": lambda corp: corp.token(aud="https://other.example/mcp"),
    "audience of the whole machine": lambda corp: corp.token(aud=corp.resource.removesuffix("/mcp")),
    "no audience": lambda corp: corp.token(aud=None),
    "expired": lambda corp: corp.token(exp=int(time.time()) - HOUR),
    "no expiry": lambda corp: corp.token(exp=None),
    "not yet valid": lambda corp: corp.token(nbf=int(time.time()) + HOUR),
    "issued in the future": lambda corp: corp.token(iat=int(time.time()) + HOUR),
    "other issuer": lambda corp: corp.token(iss="https://evil.example"),
    "issuer with a slash more": lambda corp: corp.token(iss=corp.url + "/"),
    "no issuer": lambda corp: corp.token(iss=None),
    "no subject": lambda corp: corp.token(sub=None),
    "bound to a key": lambda corp: corp.token(cnf={"jkt": "x"}),
    "identity token": lambda corp: corp.token(header={"typ": "id+jwt"}),
    "key that was never published": lambda corp: corp.token(signer=["EdDSA", "nobody"]),
    "key of another, under a known name": lambda corp: corp.token(signer=["EdDSA", "mine"], header={"kid": "first"}),
    "key that the token brings": lambda corp: corp.token(
        signer=["ES256", "own"], header={"kid": None, "jwk": corp.do("jwk", alg="ES256", kid="own")}
    ),
    "address of a key that the token brings": lambda corp: corp.token(
        signer=["ES256", "own"], header={"jku": f"{corp.url}/jwks"}
    ),
    "algorithm of another key": lambda corp: corp.token(header={"alg": "ES256", "kid": "ec"}),
    "critical extension": lambda corp: corp.token(header={"crit": ["exp"]}),
    "not base64": lambda corp: corp.token()[:-4] + "!!!!",
    "cut short": lambda corp: corp.token()[:-8],
    "without its signature": lambda corp: corp.token().rpartition(".")[0] + ".",
    "two tokens": lambda corp: f"{corp.token()} {corp.token()}",
    "encrypted": lambda corp: "a.b.c.d.e",
    "huge": lambda corp: corp.token(sub="x" * 7000),
    "garbage": lambda corp: "opaque",
}


@pytest.mark.req("AX-10.1-3")
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_bad_token_is_refused_with_the_way_to_get_a_better_token(
    corp: Authority, node: RunningNode, defect: str
) -> None:
    token = DEFECTS[defect](corp)
    for data in (
        call("good__echo", authorization=bearer(token)),
        hello(authorization=bearer(token)),
        request("GET", "/sse", {"authorization": bearer(token)}),
        request("GET", "/mcp", {"authorization": bearer(token), "mcp-session-id": "x"}),
    ):
        assert_invalid(node, ask(node, data))
    assert ask(node, request("POST", "/ax", {"authorization": bearer(token)}, REGISTER)).status == 401


def test_a_token_in_the_url_is_refused_even_beside_a_good_token(corp: Authority, node: RunningNode) -> None:
    token = corp.token()
    for path in (f"/mcp?access_token={token}", f"/mcp?a=1&%61ccess_token={token}", "/mcp?access_token="):
        assert_invalid(node, ask(node, call("good__echo", path=path)))
        assert_invalid(node, ask(node, call("good__echo", path=path, authorization=bearer(token))))


def test_without_a_credential_only_the_way_to_obtain_a_credential_is_shown(node: RunningNode) -> None:
    for value in (None, "Basic eDp5", "DPoP x"):
        answer = ask(node, call("good__echo", authorization=value))
        assert answer.status == 401
        said = answer.headers["www-authenticate"]
        assert said == f'Bearer resource_metadata="{node.url}{WELL_KNOWN}/mcp", scope="read write"'


def test_key_sets_that_cannot_be_trusted_open_nothing(corp: Authority, tmp_path: Path) -> None:
    """Each is published to a node of its own, which knows no older one."""
    good = corp.do("jwk", alg="EdDSA", kid="first")
    sets = {
        "for encryption": [corp.do("jwk", alg="EdDSA", kid="first", changes={"use": "enc"})],
        "for signing only": [corp.do("jwk", alg="EdDSA", kid="first", changes={"key_ops": ["sign"]})],
        "of another algorithm": [corp.do("jwk", alg="EdDSA", kid="first", changes={"alg": "ES256"})],
        "published with its private half": [corp.do("jwk", alg="EdDSA", kid="first", changes={"d": "AAAA"})],
        "twice the same name": [good, corp.do("jwk", alg="RS256", kid="other", changes={"kid": "first"})],
        "symmetric": [{"kty": "oct", "kid": "first", "k": "AAAA"}],
        "nothing": [],
    }
    try:
        for place, (name, keys) in enumerate(sets.items()):
            corp.do("publish", keys=keys)
            with protected_node(tmp_path / str(place), corp) as node:
                answer = ask(node, call("good__echo", authorization=bearer(corp.token())))
                assert answer.status == 401, name
                assert_invalid(node, answer)
    finally:
        corp.do(
            "publish",
            keys=[good, *(corp.do("jwk", alg=alg, kid=kid) for alg, kid in (("RS256", "rsa"), ("ES256", "ec")))],
        )


# How far


def test_scopes_decide_which_tools_there_are(corp: Authority, node: RunningNode) -> None:
    assert "exact" not in tools(node, corp.token("read")) and "echo" in tools(node, corp.token("read"))
    assert "exact" in tools(node, corp.token("interlock:write"))
    assert "fail" not in tools(node, corp.token("write")) and "fail" in tools(node, corp.token("admin"))
    assert "exact" in tools(node, corp.token(None, scp=["openid", "write"]))


def test_a_tool_beyond_the_scope_names_the_scope_it_needs(corp: Authority, node: RunningNode) -> None:
    token = corp.token("read")
    session = legacy_session(node, authorization=bearer(token))
    calls = node.link("good")["calls"]
    for name, needed in (("good__exact", "write"), ("good.exact", "write"), ("good__fail", "admin")):
        for data in (
            call(name, authorization=bearer(token)),
            legacy(session, "tools/call", {"name": name}, authorization=bearer(token)),
        ):
            answer = ask_in_every_way(node, data)
            assert (answer.status, answer.json["error"]) == (403, "insufficient_scope")
            said = answer.headers["www-authenticate"]
            metadata = f'resource_metadata="{node.url}{WELL_KNOWN}/mcp"'
            assert said == f'Bearer {metadata}, error="insufficient_scope", scope="{needed}"'
    assert ask(node, call("good__exact", path="/mcp/only/good", authorization=bearer(token))).status == 403
    assert ask(node, call("exact", path="/mcp/only/good", authorization=bearer(token))).status == 403
    assert node.link("good")["calls"] == calls  # nothing was sent on
    assert ask(node, call("good__nothing", authorization=bearer(token))).json["error"]["code"] == -32601


def test_a_token_without_a_scope_of_ours_may_do_nothing(corp: Authority, node: RunningNode) -> None:
    for scope in (None, "", "openid profile", "READ"):
        answer = ask(node, modern("tools/list", authorization=bearer(corp.token(scope))))
        assert answer.status == 403
        assert 'error="insufficient_scope", scope="read"' in answer.headers["www-authenticate"]


def test_access_entries_hold_for_clients_of_an_authorization_server(corp: Authority, node: RunningNode) -> None:
    assert "exact" not in tools(node, corp.token("admin", sub="reader"))
    assert "exact" not in tools(node, corp.token("admin", roles=["auditor"]))
    assert tools(node, corp.token("admin", sub="narrow", client_id="build")) == {"echo"}
    # A name that only looks like one of the entries is another's.
    assert "exact" in tools(node, corp.token("admin", sub="narrow", client_id="x@build"))
    assert "exact" in tools(node, corp.token("admin", sub="reader@x", client_id="y"))
    # What an entry does not grant, no token can: there the tool is simply not there.
    token = corp.token("read", sub="reader")
    answer = ask(node, call("good__exact", authorization=bearer(token)))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)


def test_a_session_goes_by_the_token_of_each_request(corp: Authority, node: RunningNode) -> None:
    high, low = corp.token("write", sub="carol"), corp.token("read", sub="carol")
    session = legacy_session(node, authorization=bearer(low))
    for token, status in ((low, 403), (high, 200), (low, 403)):
        data = legacy(session, "tools/call", {"name": "good__exact", "arguments": {}}, authorization=bearer(token))
        assert ask(node, data).status == status
    stranger = corp.token("write", sub="mallory")
    assert ask(node, legacy(session, "ping", authorization=bearer(stranger))).status == 404


def test_the_older_transport_goes_by_the_token_of_each_post(corp: Authority, node: RunningNode) -> None:
    low, high = corp.token("read", sub="dora"), corp.token("write", sub="dora")
    kind = {"content-type": "application/json"}
    with RawConnection(node) as stream:
        stream.send(request("GET", "/sse", {"authorization": bearer(low)})).stream_head()
        endpoint = stream.event()
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        posted = request("POST", endpoint, {"authorization": bearer(low), **kind}, message("initialize", info))
        assert ask(node, posted).status == 202
        assert "result" in stream.event()
        for token, status in ((low, 403), (high, 202)):
            body = message("tools/call", {"name": "good__exact", "arguments": {}}, 7)
            posted = request("POST", endpoint, {"authorization": bearer(token), **kind}, body)
            assert ask(node, posted).status == status
        assert stream.event()["id"] == 7


# The metadata document


def test_anybody_may_read_where_tokens_come_from(corp: Authority, node: RunningNode) -> None:
    for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
        answer = ask(node, request("GET", path, {"origin": "https://page.example"}))
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.json == {
            "resource": f"{node.url}/mcp",
            "resource_name": "Interlock default",
            "authorization_servers": [corp.url],
            "scopes_supported": ["read", "write"],
            "bearer_methods_supported": ["header"],
        }
        asked = {"origin": "https://page.example", "access-control-request-headers": "mcp-protocol-version"}
        preflight = ask(node, request("OPTIONS", path, asked))
        assert (preflight.status, preflight.headers["access-control-allow-headers"]) == (204, "*")
        assert ask(node, request("POST", path, {}, b"{}")).status == 405
    assert ask(node, request("GET", f"{WELL_KNOWN}/other")).status == 404


# Many at once


def test_many_requests_with_one_new_token_are_one_verification(corp: Authority, tmp_path: Path) -> None:
    with protected_node(tmp_path / "n", corp) as node:
        data = call("good__echo", {"n": 1}, authorization=bearer(corp.token()))
        before = corp.count("/jwks")
        corp.do("hold")
        try:
            with concurrent.futures.ThreadPoolExecutor(20) as pool:
                asked = [pool.submit(ask, node, data) for _ in range(20)]
                wait_for(lambda: corp.count("/jwks") + corp.count("/.well-known/oauth-authorization-server") > before)
                with RawConnection(node) as gone:  # one that does not wait for the answer
                    gone.send(data)
                assert ask(node, request("GET", "/healthz")).status == 200
                corp.do("release")
                assert {one.result().status for one in asked} == {200}
        finally:
            corp.do("release")
        assert corp.count("/jwks") == before + 1
