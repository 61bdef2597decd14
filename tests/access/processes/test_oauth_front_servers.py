"""Authorization servers that change their keys, hide, lie, fail, or are asked about each token; how one is set up."""

import concurrent.futures
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.authority import WELL_KNOWN, Authority, authority, issuer_toml, protected_node
from tests.support.node_process import Answer, RunningNode, running_node, wait_for
from tests.support.raw_client import RawConnection, ask, call, legacy, legacy_session, modern, request
from tests.support.reserved_ports import reserve_port

OAUTH_METADATA = "/.well-known/oauth-authorization-server"
OPENID_METADATA = "/.well-known/openid-configuration"
ASKED = {"client_id": "node", "client_secret": "s3cr%t /:é"}


@pytest.fixture(scope="module")
def started() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture
def corp(started: Authority) -> Authority:
    started.do("reset")
    return started


def echo(node: RunningNode, token: str) -> Answer:
    return ask(node, call("good__echo", {"n": 1}, authorization=f"Bearer {token}"))


def reason(answer: Answer) -> str:
    assert answer.status == 401
    return answer.json["message"]


# Keys


def test_made_up_keys_are_not_looked_for_again_and_again_nor_delay_a_rotated_key(
    corp: Authority, tmp_path: Path
) -> None:
    with protected_node(tmp_path, corp) as node, concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert echo(node, corp.token()).status == 200
        made_up = [corp.token(signer=["EdDSA", f"made-up-{number}"]) for number in range(10)]
        assert reason(echo(node, made_up[0])).endswith("unknown key")
        corp.do("rotate", kid="second")
        waiting = [pool.submit(echo, node, token) for token in made_up]
        assert echo(node, corp.token()).status == 200
        assert all(reason(each.result()).endswith("unknown key") for each in waiting)
        assert corp.count("/jwks") <= 4
        assert reason(echo(node, corp.token(signer=["EdDSA", "first"], sub="late"))).endswith("unknown key")


def test_while_the_server_fails_known_keys_serve_and_unknown_keys_are_not_judged(
    corp: Authority, tmp_path: Path
) -> None:
    with protected_node(tmp_path, corp) as node:
        assert echo(node, corp.token()).status == 200
        corp.do("fail", path="/jwks", status=500)
        assert echo(node, corp.token(sub="another")).status == 200
        corp.do("rotate", kid="second")
        answer = echo(node, corp.token())
        assert (answer.status, answer.json["error"]) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("status", [500, 302, 404])
def test_a_server_that_never_answered_makes_nobody_welcome_until_it_does(
    corp: Authority, tmp_path: Path, status: int
) -> None:
    corp.do("fail", path="/jwks", status=status)
    with protected_node(tmp_path, corp) as node:
        token = corp.token()
        assert echo(node, token).status == 503
        asked = corp.count("/jwks")
        assert echo(node, token).status == 503  # asked again only after a while
        assert corp.count("/jwks") == asked
        static = node.admin("/admin/tokens", "POST", {"name": "x", "for": "client"})["token"]
        assert echo(node, static).status == 200
        corp.do("fail", path="/jwks", status=None)
        wait_for(lambda: echo(node, token).status == 200)


# Where the keys are


@pytest.mark.parametrize("at", [OAUTH_METADATA, OPENID_METADATA])
def test_the_keys_are_found_through_the_servers_metadata(corp: Authority, tmp_path: Path, at: str) -> None:
    corp.do("metadata", at=[at])
    with protected_node(tmp_path, corp) as node:
        assert echo(node, corp.token()).status == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://other.example"},
        {"jwks_uri": "http://keys.example/jwks"},
        {"jwks_uri": "file:///etc/hosts"},
        {"jwks_uri": None},
        {"jwks_uri": 7},
    ],
)
def test_metadata_that_is_wrong_is_not_believed(corp: Authority, tmp_path: Path, changes: Any) -> None:
    corp.do("metadata", changes=changes)
    with protected_node(tmp_path, corp) as node:
        assert echo(node, corp.token()).status == 503
        assert corp.count("/jwks") == 0
        assert "the keys of issuer corp cannot be fetched" in (node.data.parent / "stderr.txt").read_text()


def test_with_a_jwks_url_no_metadata_is_needed(corp: Authority, tmp_path: Path) -> None:
    corp.do("metadata", at=[])
    with protected_node(tmp_path, corp, jwks_url=f"{corp.url}/jwks") as node:
        assert echo(node, corp.token()).status == 200
        assert corp.count(OAUTH_METADATA) == 0


# Introspection


def test_a_token_that_is_no_jwt_is_asked_about(corp: Authority, tmp_path: Path) -> None:
    with protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **ASKED) as node:
        good = corp.opaque()
        assert echo(node, good).json["result"]["structuredContent"] == {"n": 1}
        assert echo(node, good).status == 200
        assert corp.count("/introspect") == 1  # its word holds for a while
        assert corp.count("/jwks") == 0
        # A JWT of that server too, since it names no keys here.
        signed = corp.token()
        assert reason(echo(node, signed)) == "the token is not active"
        assert corp.count("/introspect") == 2
        assert reason(echo(node, signed)) == "the token is not active"
        assert corp.count("/introspect") == 2
        assert echo(node, corp.opaque(exp=None)).status == 200
        assert ask(node, call("good__exact", authorization=f"Bearer {corp.opaque('read')}")).status == 403


def test_introspection_claims_that_do_not_fit_refuse_the_token(corp: Authority, tmp_path: Path) -> None:
    with protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **ASKED) as node:
        refused = {
            "no": {"active": False},
            "another resource": {"aud": "https://other.example/mcp"},
            "no resource": {"aud": None},
            "over": {"exp": int(time.time()) - 3600},
            "another server": {"iss": "https://other.example"},
            "nobody": {"sub": None},
            "bound": {"token_type": "DPoP"},
            "bound by its claims": {"cnf": {"jkt": "x"}},
        }
        for name, claims in refused.items():
            assert echo(node, corp.opaque(**claims)).status == 401, name
        corp.do("fail", path="/introspect", status=500)
        assert echo(node, corp.opaque()).status == 503


@pytest.mark.parametrize(
    "answer", [None, [], "yes", {}, {"active": "yes"}, {"active": True, "aud": 7}, {"active": True, "exp": "soon"}]
)
def test_an_odd_answer_about_a_token_is_no_word_for_it(corp: Authority, tmp_path: Path, answer: Any) -> None:
    with protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **ASKED) as node:
        token = corp.opaque()
        corp.do("say", token=token, answer=answer)
        assert "no clear answer" in reason(echo(node, token))
        assert echo(node, corp.opaque()).status == 200


def test_a_token_that_cannot_be_read_is_not_sent_to_the_introspection_endpoint(corp: Authority, tmp_path: Path) -> None:
    header, claims, signature = corp.token().split(".")
    with protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **ASKED) as node:
        unreadable = {
            "cut claims": f"{header}.{claims[:-9]}.{signature}",
            "odd claims": corp.token(iss="https://other.example", aud=7),
            "no claims": f"{header}.A.{signature}",
            "no header": f"A.{claims}.{signature}",
            "encrypted": f"{header}.{claims}.{claims}.{claims}.{signature}",
        }
        for name, token in unreadable.items():
            assert reason(echo(node, token)) == "the token cannot be read", name
        assert corp.count("/introspect") == 0
        assert reason(echo(node, "one.dot")) == "the token is not active"
        assert corp.count("/introspect") == 1


def test_a_flood_of_made_up_tokens_shuts_out_nobody_from_elsewhere(corp: Authority, tmp_path: Path) -> None:
    proxy = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\ntrusted_proxies = ["127.0.0.1"]\n'
    with (
        protected_node(tmp_path, corp, proxy, introspection_url=f"{corp.url}/introspect", **ASKED) as node,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
        contextlib.ExitStack() as opened,
    ):

        def asking(token: str, source: str) -> bytes:
            return call("good__echo", {"n": 1}, authorization=f"Bearer {token}", **{"x-forwarded-for": source})

        known, new = corp.opaque(), corp.opaque()
        assert ask(node, asking(known, "192.0.2.9")).status == 200
        asked = corp.count("/introspect")
        corp.do("hold")
        try:
            sources = ("2001:db8::1", "2001:db8::2", "2001:db8::ffff:3")  # all of one site
            flood = [
                opened.enter_context(RawConnection(node, 30.0)).send(asking(f"made-up-{number}", sources[number % 3]))
                for number in range(90)
            ]
            wait_for(lambda: corp.count("/introspect") == asked + 2)
            waiting = pool.submit(ask, node, asking(new, "192.0.2.7"), 30.0)
            wait_for(lambda: corp.count("/introspect") == asked + 3)
            assert ask(node, asking(known, "2001:db8::1")).status == 200
        finally:
            corp.do("release")
        assert waiting.result().status == 200
        statuses = [answer.status for each in flood if (answer := each.response()) is not None]
        assert (statuses.count(401), statuses.count(503)) == (64, 26)


def test_many_requests_with_one_token_are_one_question_and_large_bodies_wait_unread(
    corp: Authority, tmp_path: Path
) -> None:
    large = {"text": "x" * 15 * 1024 * 1024}
    with (
        protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **ASKED) as node,
        concurrent.futures.ThreadPoolExecutor(12) as pool,
    ):
        token = corp.opaque()
        corp.do("hold")
        try:
            small = [pool.submit(echo, node, token) for _ in range(6)]
            wait_for(lambda: corp.count("/introspect") == 1)
            waiting = call("good__nothing", large, authorization=f"Bearer {token}")
            bulky = [pool.submit(ask, node, waiting, 30.0) for _ in range(4)]  # as many as one peer may have
            assert ask(node, request("GET", "/healthz")).status == 200
        finally:
            corp.do("release")
        assert {one.result().status for one in small} == {200}
        assert {one.result().status for one in bulky} == {200}
        assert corp.count("/introspect") == 1


def test_tokens_of_our_own_are_shown_to_nobody(corp: Authority, tmp_path: Path) -> None:
    with protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **ASKED) as node:
        for prefix in ("ilc_", "ilo_", "ils_", "ilr_"):
            for rest in ("a" * 43, "short", "a" * 43 + ".b.c"):
                assert echo(node, prefix + rest).status == 401
        operator = node.admin("/admin/tokens", "POST", {"name": "x", "for": "operator"})["token"]
        assert echo(node, operator).status == 401
        assert reason(echo(node, corp.token(iss="https://other.example"))).endswith("that is not accepted")
        assert corp.count("/introspect") == 0


def test_a_wrong_client_secret_makes_nobody_welcome(corp: Authority, tmp_path: Path) -> None:
    wrong = {"client_id": "node", "client_secret": "wrong-secret"}
    with protected_node(tmp_path, corp, introspection_url=f"{corp.url}/introspect", **wrong) as node:
        assert echo(node, corp.opaque()).status == 503
        log = (node.data.parent / "stderr.txt").read_text()
        assert "issuer corp cannot be asked about tokens: HTTP status 401" in log
        shown = node.cli("check", "--effective").stdout + json.dumps(node.admin("/admin/config"))
        assert "corp" in shown and "wrong-secret" not in log + shown


# Settings


def test_other_scopes_and_another_audience_can_be_agreed_on(corp: Authority, tmp_path: Path) -> None:
    scopes = {"mcp.look": "read", "mcp.use": "write"}
    with protected_node(tmp_path, corp, scopes=scopes, audience="api://interlock") as node:
        assert echo(node, corp.token("mcp.look", aud=["x", "api://interlock"])).status == 200
        assert reason(echo(node, corp.token("mcp.look"))) == "the token was issued for another resource"
        assert echo(node, corp.token("read", aud="api://interlock")).status == 403
        look = corp.token("mcp.look", aud="api://interlock")
        answer = ask(node, call("good__exact", authorization=f"Bearer {look}"))
        assert 'scope="mcp.use"' in answer.headers["www-authenticate"]
        assert ask(node, request("GET", WELL_KNOWN)).json["scopes_supported"] == ["mcp.look", "mcp.use"]


def test_without_scopes_the_access_entries_alone_decide(corp: Authority, tmp_path: Path) -> None:
    rules = '[[access]]\nwho = ["client:corp/reader@*"]\nscope = "read"\n'
    with protected_node(tmp_path, corp, rules, scopes={}) as node:
        for scope in (None, "openid"):
            assert ask(node, call("good__exact", authorization=f"Bearer {corp.token(scope)}")).status == 200
        answer = ask(node, call("good__exact", authorization=f"Bearer {corp.token(None, sub='reader')}"))
        assert answer.json["error"]["code"] == -32601
        assert "scopes_supported" not in ask(node, request("GET", WELL_KNOWN)).json
        assert "scope=" not in ask(node, call("good__echo")).headers["www-authenticate"]


def test_programs_on_this_machine_still_need_no_token_but_a_bad_token_is_refused(
    corp: Authority, tmp_path: Path
) -> None:
    with protected_node(tmp_path, corp, anonymous="loopback") as node:
        assert "result" in ask(node, call("good__echo")).json
        assert echo(node, corp.token(aud="https://other.example/mcp")).status == 401
        assert ask(node, call("good__echo", path="/mcp?access_token=x")).status == 401


def test_behind_a_proxy_tokens_are_for_the_public_url(corp: Authority, tmp_path: Path) -> None:
    port = reserve_port()
    place = (
        f'[node]\nlisten = "127.0.0.1:{port}"\noperator_listen = "127.0.0.1:0"\npublic_url = "https://Example.com/x"\n'
    )
    config = f'{place}[auth]\nanonymous = "never"\n{issuer_toml(corp)}'
    with running_node(tmp_path, {"good": {"command": raw("all")}}, config) as node:
        node.host, node.port = "127.0.0.1", port
        for aud, status in (
            ("https://example.com/x/mcp", 200),
            ("HTTPS://EXAMPLE.com/x/mcp", 200),
            ("https://example.com/X/mcp", 401),
            (f"http://127.0.0.1:{port}/mcp", 401),
        ):
            assert echo(node, corp.token(aud=aud)).status == status
        metadata = f"https://example.com{WELL_KNOWN}/x/mcp"
        assert f'resource_metadata="{metadata}"' in echo(node, "x").headers["www-authenticate"]
        for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp", f"{WELL_KNOWN}/x/mcp"):
            assert ask(node, request("GET", path)).json["resource"] == "https://example.com/x/mcp"


def test_without_an_authorization_server_none_is_advertised(tmp_path: Path) -> None:
    with running_node(tmp_path, {"good": {"command": raw("all")}}, '[auth]\nanonymous = "never"\n') as node:
        assert ask(node, request("GET", WELL_KNOWN)).status == 404
        answer = echo(node, "x.y.z")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


# Time


def test_at_the_end_of_a_token_its_streams_end_and_its_session_waits_for_a_newer_token(
    corp: Authority, tmp_path: Path
) -> None:
    with protected_node(tmp_path, corp) as node:
        bearer = f"Bearer {corp.token(exp=int(time.time()) - 30 + 3, sub='eve')}"  # the clocks may differ by 30 s
        session = legacy_session(node, authorization=bearer)
        opening = (
            request("GET", "/mcp", {"authorization": bearer, "mcp-session-id": session}),
            modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, authorization=bearer),
            request("GET", "/sse", {"authorization": bearer}),
        )
        with contextlib.ExitStack() as opened:
            streams = [opened.enter_context(RawConnection(node, 20.0)).send(data) for data in opening]
            for stream in streams:
                assert stream.stream_head().headers["content-type"] == "text/event-stream"
            for stream in streams:
                while stream.event() is not None:
                    pass
        assert reason(ask(node, legacy(session, "ping", authorization=bearer))) == "the token has expired"
        newer = f"Bearer {corp.token(sub='eve')}"
        assert ask(node, legacy(session, "ping", authorization=newer)).json["result"] == {}


# The extra


@pytest.fixture
def without_cryptography(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "poison"
    folder.mkdir()
    (folder / "cryptography.py").write_text("raise ModuleNotFoundError('gone', name='cryptography')\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def test_a_node_without_authorization_servers_does_not_load_what_they_need(
    tmp_path: Path, without_cryptography: dict[str, str]
) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}, env=without_cryptography) as node:
        assert "result" in ask(node, call("good__echo")).json
