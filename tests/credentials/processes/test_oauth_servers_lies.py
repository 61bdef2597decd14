"""Servers and authorization servers that lie, strangers at the callback: nothing is believed that was not proven."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.support import intervals
from tests.support.authority import Authority, authority
from tests.support.node_process import RunningNode, running_node
from tests.support.oauth_consent import (
    ask_for_page,
    find_leaks,
    give_consent,
    guarded_server,
    query,
    visit,
    wait_for_consent_request,
    wait_for_refusal,
    whoami,
)

METADATA = "/.well-known/oauth-authorization-server/flows"


@pytest.fixture(scope="module")
def started() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture
def corp(started: Authority) -> Authority:
    started.do("reset")
    return started


# What is found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resource", "https://evil.example/mcp"], "that of another resource"),
        (["--resource", "http://127.0.0.1/mcp"], "that of another resource"),
        (["--issuer", "http://login.example.com"], "not at an https URL"),
        (["--issuer", "https://login.example.com?x=1"], "not at an https URL"),
        (["--issuer", "ftp://login.example.com\nX: y"], "not at an https URL"),
        (["--metadata-url", "http://169.254.169.254/latest/meta-data"], "cannot be fetched"),
        (["--metadata-url", "file:///etc/passwd"], "cannot be fetched"),
        (["--metadata-url", "http://127.0.0.1:1/x"], "cannot be fetched"),
        (["--metadata-url", "not a url"], "cannot be fetched"),
    ],
)
def test_a_server_that_names_something_else_is_refused(
    corp: Authority, tmp_path: Path, options: list[str], words: str
) -> None:
    with guarded_server(corp, *options) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_refusal(node, "crm", words)
        assert corp.do("seen", of="register") == []
        assert node.admin("/admin/links/crm/authorize", "POST")["error"] == "auth_failed"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"issuer": "https://honest.example"}, "names another issuer"),
        ({"token_endpoint": "http://login.example.com/token"}, "endpoint that is not https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "endpoint that is not https"),
        ({"registration_endpoint": "http://10.0.0.1/register"}, "endpoint that is not https"),
        ({"token_endpoint": None}, "not authorization server metadata"),
        ({"token_endpoint": 7}, "not authorization server metadata"),
    ],
)
def test_an_authorization_server_whose_metadata_does_not_fit_is_refused(
    corp: Authority, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    corp.do("metadata", changes=changes)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_refusal(node, "crm", words)
        assert corp.do("seen", of="register") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"authorization_endpoint": None}, "no page"),
        ({"registration_endpoint": None}, "get a client_id there"),
        ({"token_endpoint_auth_methods_supported": ["tls_client_auth"]}, "get a client_id there"),
    ],
)
def test_an_authorization_server_that_cannot_be_used_safely_sends_nobody_anywhere(
    corp: Authority, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    corp.do("metadata", changes=changes)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        answer = node.admin("/admin/links/crm/authorize", "POST")
        assert answer["error"] == "auth_failed" and words in answer["message"]


@pytest.mark.parametrize("stands", [1024 * 1024, "http://127.0.0.1:1/elsewhere", [], "text", {"issuer": None}])
def test_documents_that_are_huge_or_lead_elsewhere_are_not_read(corp: Authority, tmp_path: Path, stands: Any) -> None:
    corp.do("document", path=METADATA, stands=stands)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_refusal(node, "crm", "cannot be used")


def test_a_document_that_never_comes_is_given_up(corp: Authority, tmp_path: Path) -> None:
    corp.do("hold")
    try:
        sooner = {intervals.FETCH_S: 0.5}
        with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}, settings=sooner) as node:
            refusing_within(node, "no answer within 0.5 s")
    finally:
        corp.do("release")


def refusing_within(node: RunningNode, words: str) -> None:
    link = node.wait_link("crm", {"state": "unauthorised"}, 30.0)
    assert words in link["reason"]


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        ({"registered": {"client_id": ""}}, "no client_id"),
        ({"registered": {"client_id": "x" * 5000}}, "no client_id"),
        ({"registered": {"token_endpoint_auth_method": "client_secret_basic"}}, "gives nothing for"),
        ({"register_status": 400}, "invalid_redirect_uri"),
        ({"register_status": 500}, "invalid_redirect_uri"),
    ],
)
def test_a_registration_that_cannot_be_used_is_named(
    corp: Authority, tmp_path: Path, flows: dict[str, Any], words: str
) -> None:
    corp.do("flows", **flows)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        assert words in node.admin("/admin/links/crm/authorize", "POST")["message"]


# What is given


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"token_type": "DPoP"}, "other than Bearer"),
        ({"access_token": "a\r\nX-Injected: yes"}, "no header may carry"),
        ({"access_token": "a b"}, "no header may carry"),
        ({"access_token": ""}, "no header may carry"),
        ({"access_token": "x" * 9000}, "too long"),
        ({"refresh_token": "x" * 9000}, "too long"),
        ({"access_token": 7}, "not a token"),
        ({"token_type": None}, "not a token"),
    ],
)
def test_a_token_that_is_none_is_not_taken(corp: Authority, tmp_path: Path, answer: Any, words: str) -> None:
    corp.do("flows", answer=answer)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        page = visit(ask_for_page(node, "crm"))
        assert page.status == 502 and words in page.text
        assert node.link("crm")["state"] == "unauthorised"
        assert find_leaks(tmp_path) == []


@pytest.mark.parametrize("lifetime", ["3600", "soon", -5, 0, None, 1e300])
def test_a_lifetime_that_makes_no_sense_does_no_harm(corp: Authority, tmp_path: Path, lifetime: Any) -> None:
    corp.do("flows", answer={"expires_in": lifetime})
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        give_consent(node, "crm", "ada")
        assert whoami(node, "crm") == "ada"


def test_the_token_endpoints_own_words_are_shown_to_nobody(corp: Authority, tmp_path: Path) -> None:
    corp.do("flows", token_error="<script>alert(1)</script>")
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        page = visit(ask_for_page(node, "crm"))
        assert page.status == 502 and "script" not in page.text and "HTTP 400" in page.text
        assert "code_verifier" not in (tmp_path / "stderr.txt").read_text()


# What comes back


def ask(node: RunningNode, target: str, method: str = "GET") -> tuple[int, str, Any]:
    """At the operator door, without a token."""
    where = urlsplit(node.operator_url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers
    finally:
        connection.close()


def callback(node: RunningNode, *parameters: tuple[str, str]) -> tuple[int, str]:
    return ask(node, f"/oauth/callback?{urlencode(parameters)}")[:2]


@pytest.mark.req("AIP-30.auth-3")
def test_a_callback_that_was_not_requested_is_refused(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        state = query(ask_for_page(node, "crm"))["state"]
        issuer = f"{corp.url}/flows"
        for parameters in (
            [],
            [("code", "x")],
            [("state", "forged"), ("code", "x"), ("iss", issuer)],
            [("state", state[:-1]), ("code", "x"), ("iss", issuer)],
            [("state", state), ("iss", issuer)],
            [("state", state), ("code", "x"), ("error", "y"), ("iss", issuer)],
            [("state", state), ("state", state), ("code", "x"), ("iss", issuer)],
            [("state", state), ("code", "x"), ("code", "y"), ("iss", issuer)],
            [("state", state), ("code", "x" * 5000), ("iss", issuer)],
            [("state", "\ufffd"), ("code", "\0")],
        ):
            status, text = callback(node, *parameters)
            assert status == 400 and "Nothing was done" in text, parameters
        assert corp.do("seen", of="token") == []
        assert visit(ask_for_page(node, "crm")).status == 200  # and the page that was asked for is still good


@pytest.mark.req("AIP-30.auth-3")
def test_a_page_is_good_once(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        page = visit(ask_for_page(node, "crm"), "ada")
        assert page.status == 200
        assert visit(page.url, "eve").status == 400
        node.wait_link("crm", {"state": "ready"})
        assert whoami(node, "crm") == "ada"
        assert len(corp.do("seen", of="token")) == 1


@pytest.mark.parametrize("iss", [None, "https://evil.example", "{}/", ""])
def test_an_answer_from_somebody_else_is_not_acted_upon(corp: Authority, tmp_path: Path, iss: str | None) -> None:
    corp.do("flows", iss=None if iss is None else iss.format(f"{corp.url}/flows"))
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        page = visit(ask_for_page(node, "crm"))
        assert page.status == 400 and "did not come from the authorization server" in page.text
        assert corp.do("seen", of="token") == []
        corp.do("flows", iss="own")
        assert visit(page.url).status == 400  # nor is it good any more


def test_an_error_of_somebody_else_is_not_shown(corp: Authority, tmp_path: Path) -> None:
    corp.do("flows", iss="https://evil.example", denies="call_0800_evil")
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        page = visit(ask_for_page(node, "crm"))
        assert page.status == 400 and "evil" not in page.text


def test_a_person_who_does_not_agree_is_informed_and_may_change_their_mind(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        for error, shown in (("access_denied", "access_denied"), ("<b>x</b>", "without a name")):
            corp.do("flows", denies=error)
            page = visit(ask_for_page(node, "crm"))
            assert page.status == 400 and shown in page.text and "<b>" not in page.text
        corp.do("flows", denies=None)
        give_consent(node, "crm")


def test_the_callback_is_the_only_path_of_its_endpoint_without_a_token(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        for target, method in (
            ("/admin/links/crm/authorize", "POST"),
            ("/admin/secrets", "GET"),
            ("/admin/secrets/token/crm", "DELETE"),
            ("/oauth/callback/", "GET"),
            ("/oauth/callback/../../admin/secrets", "GET"),
            ("//oauth/callback", "GET"),
            ("/oauth%2Fcallback", "POST"),
        ):
            status, _, _ = ask(node, target, method)
            assert status in (401, 405), target
        status, _, headers = ask(node, "/oauth/callback?state=x&code=y")
        assert status == 400
        assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert ask(node, "/oauth/callback", "POST")[0] == 405


def test_people_are_not_brought_back_over_plain_http_beyond_the_machine(corp: Authority, tmp_path: Path) -> None:
    place = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\noperator_url = "http://ops.example"\n'
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}, place) as node:
        wait_for_consent_request(node, "crm")
        answer = node.admin("/admin/links/crm/authorize", "POST")
        assert "set node.operator_url to https" in answer["message"]
