"""Servers that want a token a person agrees to: found out, asked for, kept, renewed, widened, and never given away."""

import concurrent.futures
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.servers.start import raw
from tests.support import intervals
from tests.support.authority import Authority, authority
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.oauth_consent import (
    ask_for_page,
    call,
    find_leaks,
    give_consent,
    guarded_server,
    query,
    refresh_count,
    visit,
    wait_for_consent_request,
    wait_for_refusal,
    whoami,
)

ERAS = ["legacy", "modern"]
SOONER = {intervals.RESPAWN_WAIT_S: 0.5}  # a call of a server nobody agreed to waits no longer


@pytest.fixture(scope="module")
def started() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture
def corp(started: Authority) -> Authority:
    started.do("reset")
    return started


def log_of(node: RunningNode) -> str:
    return (node.data.parent / "stderr.txt").read_text()


def reason(node: RunningNode, tool: str, **options: Any) -> str:
    error = call(node, tool, **options).message["error"]
    assert error["code"] == 32002
    return str(error["data"]["reason"])


# Agreeing


@pytest.mark.parametrize("metadata", ["header", "path", "root"])
@pytest.mark.parametrize("era", ERAS)
def test_a_server_that_wants_a_token_says_so_and_works_once_somebody_agreed(
    corp: Authority, tmp_path: Path, era: str, metadata: str
) -> None:
    with (
        guarded_server(corp, "--metadata", metadata, era=era) as url,
        running_node(tmp_path, {"crm": {"url": url}}) as node,
    ):
        link = wait_for_consent_request(node, "crm")
        assert link["tools"] == 0 and "interlock links restart crm" in link["reason"]
        asked = query(ask_for_page(node, "crm"))
        assert asked["redirect_uri"] == f"{node.operator_url}/oauth/callback"
        assert asked["resource"] == (url.removesuffix("/mcp") if metadata == "root" else url)
        assert give_consent(node, "crm", "ada")["tools"] == 5
        assert whoami(node, "crm") == "ada"
        assert node.link("crm")["token"]["expires_at"] is not None


def test_the_command_line_says_what_to_do_and_shows_the_page(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        status = node.cli("status")
        assert "unauthorised" in status.stdout and "interlock links restart crm" in " ".join(status.stdout.split())
        shown = node.cli("links", "restart", "crm")
        assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 1)
        assert visit(shown.stdout.strip()).status == 200
        node.wait_link("crm", {"state": "ready"})
        assert "restarted" in node.cli("links", "restart", "crm").stdout
        node.wait_link("crm", {"state": "ready"})
        again = node.cli("links", "restart", "crm", "--authorize", "--json")
        assert visit(json.loads(again.stdout)["url"], "bob").status == 200
        wait_for(lambda: whoami(node, "crm") == "bob")
        assert "until" in node.cli("status", "crm").stdout


def test_the_older_transport_is_given_the_token_too(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp, "--metadata", "root", era="legacy") as url:
        old = {"url": url.replace("/mcp", "/sse"), "transport": "sse"}
        with running_node(tmp_path, {"old": old}) as node:
            assert give_consent(node, "old", "ada")["transport"] == "sse"
            assert whoami(node, "old") == "ada"


@pytest.mark.req("AX-10.1-1")
def test_a_token_is_sealed_on_disk_and_good_after_a_restart(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url:
        with running_node(tmp_path, {"crm": {"url": url}}) as node:
            give_consent(node, "crm", "ada")
            assert find_leaks(tmp_path) == []
            assert stat.S_IMODE((node.data / "secrets.key").stat().st_mode) == 0o600
            assert stat.S_IMODE((node.data / "secrets.db").stat().st_mode) == 0o600
            records = node.admin("/admin/audit?limit=1000")["records"]
            assert [(one["who"], one["tool"]) for one in records if one["method"] == "oauth/consent"] == [
                ("operator", "crm")
            ]
        with running_node(tmp_path, {"crm": {"url": url}}) as node:
            node.wait_link("crm", {"state": "ready"})
            assert whoami(node, "crm") == "ada"
            assert find_leaks(tmp_path) == []
        assert len(corp.do("seen", of="authorize")) == 1


@pytest.mark.req("AX-10.1-1", "AX-10.1-2")
def test_a_token_is_not_sent_to_another_server_under_the_same_name(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as first, guarded_server(corp) as second:
        with running_node(tmp_path, {"crm": {"url": first}}) as node:
            give_consent(node, "crm")
        with running_node(tmp_path, {"crm": {"url": second}}) as node:
            wait_for_consent_request(node, "crm")
            tokens = [one["name"] for one in node.admin("/admin/secrets")["secrets"] if one["kind"] == "token"]
            assert tokens == []


def test_a_node_without_the_first_secret_makes_no_files_for_them(tmp_path: Path) -> None:
    with running_node(tmp_path, {"good": {"command": raw("echo")}}) as node:
        assert node.admin("/admin/secrets") == {"secrets": []}
        assert not list(node.data.glob("secrets.*"))


# Renewing


def test_a_token_is_renewed_before_it_ends_and_no_call_notices(corp: Authority, tmp_path: Path) -> None:
    corp.do("flows", expires_in=2)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        give_consent(node, "crm", "ada")
        while refresh_count(corp) < 2:
            assert whoami(node, "crm") == "ada"
        assert node.link("crm")["errors"] == 0
        assert "refuses our credential" not in log_of(node).partition("ready")[2]


@pytest.mark.parametrize("era", ERAS)
def test_calls_whose_token_the_server_refuses_are_sent_again_with_one_new_token(
    corp: Authority, tmp_path: Path, era: str
) -> None:
    with guarded_server(corp, era=era) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        give_consent(node, "crm", "ada")
        corp.do("forget", of="tokens")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: whoami(node, "crm"), range(8))) == ["ada"] * 8
        assert refresh_count(corp) == 1
        assert find_leaks(tmp_path) == []


def test_a_token_that_another_process_renewed_is_taken_from_the_store(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        give_consent(node, "crm", "ada")
        corp.do("forget", of="tokens")
        assert node.cli("check", "--upstream").returncode == 0  # it uses the refresh token up
        assert refresh_count(corp) == 1
        assert whoami(node, "crm") == "ada"
        assert refresh_count(corp) == 1


@pytest.mark.parametrize("rotates", [True, False])
def test_whether_refresh_tokens_change_or_stay_they_go_on_working(
    corp: Authority, tmp_path: Path, rotates: bool
) -> None:
    corp.do("flows", rotates=rotates, expires_in=None)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        give_consent(node, "crm", "ada")
        corp.do("forget", of="tokens")
        assert whoami(node, "crm") == "ada"
        node.stop()
        corp.do("forget", of="tokens")
        with running_node(tmp_path, {"crm": {"url": url}}) as node:
            node.wait_link("crm", {"state": "ready"})
            assert whoami(node, "crm") == "ada"
        assert refresh_count(corp) == 2


def test_a_server_whose_tokens_are_gone_is_unauthorised_and_keeps_its_tools(corp: Authority, tmp_path: Path) -> None:
    servers = {"good": {"command": raw("echo")}}
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}, **servers}, settings=SOONER) as node:
        give_consent(node, "crm")
        corp.do("forget", of="tokens")
        corp.do("forget", of="refreshes")
        assert reason(node, "crm__whoami") == "unauthorised"
        assert wait_for_consent_request(node, "crm")["tools"] == 5
        error = call(node, "crm__whoami").message["error"]
        assert error["data"]["reason"] == "unauthorised" and "interlock status" in error["data"]["next"]
        assert "error" not in call(node, "good__exact").message
        give_consent(node, "crm", "ada")
        assert whoami(node, "crm") == "ada"


def test_an_authorization_server_that_hangs_delays_no_other_server(corp: Authority, tmp_path: Path) -> None:
    servers = {"good": {"command": raw("echo")}}
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}, **servers}) as node:
        give_consent(node, "crm", "ada")
        asked = corp.count("/flows/token")
        corp.do("forget", of="tokens")
        corp.do("hold")
        try:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(whoami, node, "crm")
                wait_for(lambda: corp.count("/.well-known/oauth-authorization-server/flows") or True)
                for _ in range(20):
                    assert "error" not in call(node, "good__exact").message
                assert not waiting.done() and corp.count("/flows/token") <= asked + 1
                corp.do("release")
                assert waiting.result() == "ada"
        finally:
            corp.do("release")


# More scope


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_needs_more_scope_says_so_and_works_once_somebody_agreed_to_it(
    corp: Authority, tmp_path: Path, era: str
) -> None:
    with (
        guarded_server(corp, "--scope", "basic", "--call-scope", "extra", era=era) as url,
        running_node(tmp_path, {"crm": {"url": url}}) as node,
    ):
        give_consent(node, "crm", "ada")
        assert corp.do("seen", of="authorize")[0]["scope"] == "basic"
        assert reason(node, "crm__exact") == "insufficient_scope"
        assert node.link("crm")["state"] == "ready" and whoami(node, "crm") == "ada"
        page = ask_for_page(node, "crm")
        assert query(page)["scope"] == "basic extra"
        assert visit(page, "ada").status == 200
        assert "error" not in call(node, "crm__exact").message


def test_a_scope_that_is_asked_for_and_not_granted_is_not_asked_for_again(corp: Authority, tmp_path: Path) -> None:
    corp.do("flows", grants=["basic"])
    with (
        guarded_server(corp, "--scope", "basic", "--call-scope", "extra") as url,
        running_node(tmp_path, {"crm": {"url": url}}) as node,
    ):
        give_consent(node, "crm")
        for _ in range(3):
            assert reason(node, "crm__exact") == "insufficient_scope"
        visit(ask_for_page(node, "crm"))
        for _ in range(3):
            assert reason(node, "crm__exact") == "insufficient_scope"
        assert len(corp.do("seen", of="authorize")) == 2


@pytest.mark.parametrize(
    ("options", "auth", "scope"),
    [
        (["--scope", "a b"], {}, "a b"),
        (["--scopes-supported", "c d"], {}, "c d"),
        (["--scope", "a", "--scopes-supported", "c d"], {}, "a"),
        (["--scope", "a", "--scopes-supported", "c d"], {"scopes": ["own"]}, "own"),
        ([], {}, None),
    ],
)
def test_which_scopes_are_asked_for(
    corp: Authority, tmp_path: Path, options: list[str], auth: dict[str, Any], scope: str | None
) -> None:
    table = {"auth": auth} if auth else {}
    with guarded_server(corp, *options) as url, running_node(tmp_path, {"crm": {"url": url, **table}}) as node:
        wait_for_consent_request(node, "crm")
        assert query(ask_for_page(node, "crm")).get("scope") == scope


def test_offline_access_is_asked_for_where_it_exists(corp: Authority, tmp_path: Path) -> None:
    corp.do("metadata", changes={"scopes_supported": ["a", "offline_access"]})
    with guarded_server(corp, "--scope", "a") as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        asked = query(ask_for_page(node, "crm"))
        assert (asked["scope"], asked["prompt"]) == ("a offline_access", "consent")


# Who the node is


def test_the_node_registers_once_and_says_what_it_is(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}, "erp": {"url": url}}) as node:
        give_consent(node, "crm")
        give_consent(node, "erp")
        (registered,) = corp.do("seen", of="register")
        assert registered["redirect_uris"] == [f"{node.operator_url}/oauth/callback"]
        assert registered["application_type"] == "native"
        assert registered["grant_types"] == ["authorization_code", "refresh_token"]
        assert registered["token_endpoint_auth_method"] == "none"


def test_a_forgotten_registration_is_made_again(corp: Authority, tmp_path: Path) -> None:
    corp.do("flows", knows_everybody=False)
    changes = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    corp.do("metadata", changes=changes)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
        wait_for_consent_request(node, "crm")
        first = ask_for_page(node, "crm")
        corp.do("forget", of="clients")
        assert visit(first).status == 502
        give_consent(node, "crm")
        assert len(corp.do("seen", of="register")) == 2
        assert find_leaks(tmp_path) == []


def test_where_a_document_says_who_a_client_is_the_nodes_own_is_named(corp: Authority, tmp_path: Path) -> None:
    corp.do("metadata", changes={"client_id_metadata_document_supported": True})
    place = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\npublic_url = "https://node.example"\n'
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}, place) as node:
        wait_for_consent_request(node, "crm")
        page = ask_for_page(node, "crm")
        assert query(page)["client_id"] == "https://node.example/oauth/client.json"
        assert visit(page).status == 200
        node.wait_link("crm", {"state": "ready"})
        corp.do("forget", of="tokens")
        node.admin("/admin/links/crm/restart", "POST")
        wait_for(lambda: refresh_count(corp) == 1)
        node.wait_link("crm", {"state": "ready"})
        assert corp.do("seen", of="register") == []


def test_the_document_about_the_node_can_be_read_by_anybody(tmp_path: Path) -> None:
    extra = '[auth]\nanonymous = "never"\n'
    with running_node(tmp_path, {}, extra) as node, Wire(node, "/oauth/client.json") as wire:
        document = wire.request("GET").json
        assert document["client_id"] == f"{node.url}/oauth/client.json"
        assert document["redirect_uris"] == [f"{node.operator_url}/oauth/callback"]
        assert document["token_endpoint_auth_method"] == "none"


def test_a_client_of_the_configuration_is_used_and_only_with_its_own_authorization_server(
    corp: Authority, tmp_path: Path
) -> None:
    corp.do("client", client_id="mine", secret="marker-secret-mine")
    corp.do("flows", knows_everybody=False)
    auth = {"client_id": "mine", "client_secret": "${env:CRM_SECRET}"}
    env = {"CRM_SECRET": "marker-secret-mine"}
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url, "auth": auth}}, env=env) as node:
        give_consent(node, "crm")
        assert {one["client"] for one in corp.do("seen", of="token")} == {"mine"}
        assert find_leaks(tmp_path) == []
        effective = node.cli("check", "--effective", env={**os.environ, **env}).stdout
        assert "***" in effective and "marker-secret" not in effective
    with authority() as other, guarded_server(other, port=urlsplit(url).port) as moved:
        assert moved == url
        with running_node(tmp_path, {"crm": {"url": url, "auth": auth}}, env=env) as node:
            node.wait_link("crm", {"state": "unauthorised"})
            answer = node.admin("/admin/links/crm/authorize", "POST")
            assert answer["error"] == "auth_failed" and f"belongs to {corp.url}/flows" in answer["message"]
            assert other.do("seen", of="token") == []
        assert find_leaks(tmp_path) == []


def test_an_authorization_server_that_changes_is_registered_with_again(corp: Authority, tmp_path: Path) -> None:
    with authority() as other:
        with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}) as node:
            give_consent(node, "crm")
        with guarded_server(other, port=urlsplit(url).port), running_node(tmp_path, {"crm": {"url": url}}) as node:
            give_consent(node, "crm", "ada")
            assert whoami(node, "crm") == "ada"
            assert len(other.do("seen", of="register")) == 1
            assert refresh_count(corp) == 0  # what it gave is not taken anywhere else


def test_only_the_issuer_of_the_configuration_is_believed(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url:
        pinned = {"crm": {"url": url, "auth": {"issuer": "https://login.example.com"}}}
        with running_node(tmp_path, pinned) as node:
            wait_for_refusal(node, "crm", "not the issuer in 'auth'")
            assert corp.do("seen", of="register") == []
        with running_node(tmp_path, {"crm": {"url": url, "auth": {"issuer": f"{corp.url}/flows"}}}) as node:
            give_consent(node, "crm")


# Taking it away


def test_a_token_that_is_removed_is_not_used_any_more(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": {"url": url}}, settings=SOONER) as node:
        give_consent(node, "crm")
        listed = node.cli("secrets", "list").stdout
        assert "token" in listed and "client" in listed and "marker" not in listed
        assert node.cli("secrets", "remove", "crm", "--kind", "token").returncode == 0
        wait_for_consent_request(node, "crm")
        assert reason(node, "crm__whoami") == "unauthorised"
        assert node.cli("secrets", "remove", f"{corp.url}/flows", "--kind", "client").returncode == 0
        assert node.admin("/admin/secrets") == {"secrets": []}
