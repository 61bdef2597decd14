"""Servers whose token the node gets by itself (client credentials), and secrets of its own store in what it sends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.servers.minting import key
from tests.servers.start import raw, serving
from tests.support.authority import Authority, authority
from tests.support.node_process import running_node, wait_for
from tests.support.oauth_consent import call, find_leaks, guarded_server, wait_for_refusal, whoami

ERAS = ["legacy", "modern"]
SECRET = "marker-secret 5%t/é:"


@pytest.fixture(scope="module")
def started() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture
def corp(started: Authority) -> Authority:
    started.do("reset")
    started.do("flows", knows_everybody=False)
    return started


def server(url: str, authority: Authority, **auth: Any) -> dict[str, Any]:
    usual = {"grant": "client_credentials", "client_id": "node", "issuer": f"{authority.url}/flows"}
    return {"url": url, "auth": {**usual, **auth}}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", None])
def test_a_node_with_a_secret_needs_nobody_to_agree(
    corp: Authority, tmp_path: Path, era: str, method: str | None
) -> None:
    corp.do("client", client_id="node", secret=SECRET)
    corp.do("metadata", changes={"token_endpoint_auth_methods_supported": [method] if method else None})
    with guarded_server(corp, "--scope", "a b", era=era) as url:
        table = server(url, corp, client_secret="${env:S}")
        with running_node(tmp_path, {"crm": table}, env={"S": SECRET}) as node:
            node.wait_link("crm", {"state": "ready"})
            assert whoami(node, "crm") == "node"
            (asked,) = corp.do("seen", of="token")
            assert (asked["grant_type"], asked["resource"], asked["scope"]) == ("client_credentials", url, "a b")
            assert ("client_secret" in asked) == (method == "client_secret_post")
            assert "no consent is needed" in node.admin("/admin/links/crm/authorize", "POST")["message"]
        assert find_leaks(tmp_path) == []


@pytest.mark.parametrize("alg", ["EdDSA", "ES256", "RS256", "PS256"])
def test_a_node_with_a_private_key_signs_for_its_token(corp: Authority, tmp_path: Path, alg: str) -> None:
    signer = key(alg, "client")
    corp.do("client", client_id="node", jwk=signer.jwk())
    corp.do("metadata", changes={"token_endpoint_auth_signing_alg_values_supported": [alg]})
    (tmp_path / "key.pem").write_bytes(signer.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with guarded_server(corp) as url:
        table = server(url, corp, private_key=str(tmp_path / "key.pem"))
        with running_node(tmp_path, {"crm": table}) as node:
            node.wait_link("crm", {"state": "ready"})
            assert whoami(node, "crm") == "node"


@pytest.mark.parametrize(
    ("pem", "words"),
    [(None, "cannot be read"), (b"not a key", "not a PEM key"), (b"", "not a PEM key")],
)
def test_a_private_key_that_is_none_is_named(corp: Authority, tmp_path: Path, pem: bytes | None, words: str) -> None:
    if pem is not None:
        (tmp_path / "key.pem").write_bytes(pem)
    with guarded_server(corp) as url:
        table = server(url, corp, private_key=str(tmp_path / "key.pem"))
        with running_node(tmp_path, {"crm": table}) as node:
            wait_for_refusal(node, "crm", "private_key", words)


def test_a_wrong_secret_is_the_authorization_servers_word_and_nothing_of_it_is_shown(
    corp: Authority, tmp_path: Path
) -> None:
    corp.do("client", client_id="node", secret="right")
    corp.do("metadata", changes={"token_endpoint_auth_methods_supported": ["client_secret_post"]})
    with guarded_server(corp) as url:
        table = server(url, corp, client_secret="${env:S}")
        with running_node(tmp_path, {"crm": table}, env={"S": SECRET}) as node:
            wait_for_refusal(node, "crm", "invalid_client")
            assert SECRET not in node.cli("status", "crm").stdout
        assert find_leaks(tmp_path) == []  # the authorization server had repeated it


@pytest.mark.req("AX-10.1-2")
def test_two_servers_on_one_host_get_tokens_of_their_own_for_their_own_url(corp: Authority, tmp_path: Path) -> None:
    corp.do("client", client_id="node", secret="s")
    with guarded_server(corp) as one, guarded_server(corp) as two:
        tables = {name: server(url, corp, client_secret="s") for name, url in (("one", one), ("two", two))}
        with running_node(tmp_path, tables) as node:
            for segment in tables:
                node.wait_link(segment, {"state": "ready"})  # each refuses a token that is for the other
                assert whoami(node, segment) == "node"
            assert sorted(asked["resource"] for asked in corp.do("seen", of="token")) == sorted([one, two])


def test_more_scope_is_asked_for_without_anybody_but_not_for_ever(corp: Authority, tmp_path: Path) -> None:
    corp.do("client", client_id="node", secret="s")
    with (
        guarded_server(corp, "--scope", "a", "--call-scope", "b") as url,
        running_node(tmp_path, {"crm": server(url, corp, client_secret="s")}) as node,
    ):
        node.wait_link("crm", {"state": "ready"})
        assert "error" not in call(node, "crm__exact").message
        assert [asked["scope"] for asked in corp.do("seen", of="token")] == ["a", "a b"]
    corp.do("flows", grants=["a"])
    with (
        guarded_server(corp, "--scope", "a", "--call-scope", "c") as url,
        running_node(tmp_path, {"other": server(url, corp, client_secret="s")}) as node,
    ):
        node.wait_link("other", {"state": "ready"})
        for _ in range(5):
            error = call(node, "other__exact").message["error"]
            assert error["data"]["reason"] in ("insufficient_scope", "unauthorised")
        assert len(corp.do("seen", of="token")) == 4


def test_scopes_of_the_configuration_are_all_that_is_asked_for(corp: Authority, tmp_path: Path) -> None:
    corp.do("client", client_id="node", secret="s")
    with (
        guarded_server(corp, "--scope", "a", "--call-scope", "b") as url,
        running_node(tmp_path, {"crm": server(url, corp, client_secret="s", scopes=["a"])}) as node,
    ):
        node.wait_link("crm", {"state": "ready"})
        assert call(node, "crm__exact").message["error"]["data"]["reason"] == "insufficient_scope"
        assert [asked["scope"] for asked in corp.do("seen", of="token")] == ["a"]


def test_a_token_without_a_refresh_token_is_requested_again_before_it_ends(corp: Authority, tmp_path: Path) -> None:
    corp.do("client", client_id="node", secret="s")
    corp.do("flows", expires_in=2)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": server(url, corp, client_secret="s")}) as node:
        node.wait_link("crm", {"state": "ready"})
        while len(corp.do("seen", of="token")) < 3:
            assert whoami(node, "crm") == "node"
        assert node.link("crm")["errors"] == 0


def test_an_authorization_server_that_is_away_is_asked_again_when_it_is_back(corp: Authority, tmp_path: Path) -> None:
    corp.do("client", client_id="node", secret="s")
    corp.do("fail", path="/flows/token", status=503)
    with guarded_server(corp) as url, running_node(tmp_path, {"crm": server(url, corp, client_secret="s")}) as node:
        wait_for_refusal(node, "crm", "gave no token", "503")
        corp.do("fail", path="/flows/token", status=None)
        node.admin("/admin/links/crm/restart", "POST")
        node.wait_link("crm", {"state": "ready"})


# Secrets of the node's own store


def test_a_secret_in_a_header_is_asked_for_used_and_shown_to_nobody(tmp_path: Path) -> None:
    with serving(raw("echo", "--token", "marker-secret-1")) as url:
        table = {"url": url, "headers": {"Authorization": "Bearer ${secrets.CRM_TOKEN}"}}
        with running_node(tmp_path, {"crm": table}) as node:
            wait_for_refusal(node, "crm", "interlock secrets set crm-token")
            wrong = node.cli("secrets", "set", "CRM_TOKEN", input="marker-secret-wrong\n")
            assert (wrong.returncode, wrong.stdout) == (0, "kept crm-token\ncrm restarted\n")
            wait_for_refusal(node, "crm", "401", "check its headers")
            node.cli("secrets", "set", "crm-token", input="marker-secret-1")
            node.wait_link("crm", {"state": "ready"})
            assert "error" not in call(node, "crm__exact").message
            assert node.cli("secrets", "list", "--json").stdout.count("crm-token") == 1
            node.admin("/admin/config")
        assert find_leaks(tmp_path) == []


def test_a_secret_in_the_environment_reaches_the_program_alone(tmp_path: Path) -> None:
    program = "import os,sys; print('it has', len(os.environ['KEY']), file=sys.stderr, flush=True); sys.stdin.read()"
    table = {"command": ["python3", "-c", program], "env": {"KEY": "a${secrets.KEY}b"}}
    with running_node(tmp_path, {"child": table}, announced=False) as node:
        wait_for_refusal(node, "child", "interlock secrets set key")
        node.cli("secrets", "set", "key", input="marker-secret")
        logs = wait_for(lambda: node.admin("/admin/links/child/logs")["lines"])
        assert logs[0]["text"] == "it has 15"
    assert find_leaks(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "value", "code", "error"),
    [
        ("a", "x", 1, "bad_secret_name"),
        ("Größe", "x", 1, "bad_secret_name"),
        ("../x", "x", 1, "bad_secret_name"),
        ("fine", "", 2, "bad_secret"),
        ("fine", "x" * 70_000, 2, "bad_secret"),
    ],
)
def test_a_secret_nobody_could_name_or_keep_is_refused(
    tmp_path: Path, name: str, value: str, code: int, error: str
) -> None:
    with running_node(tmp_path, {}) as node:
        done = node.cli("secrets", "set", name, "--json", input=value)
        assert done.returncode == code and f'"{error}"' in done.stdout


def test_a_secret_that_no_header_can_carry_ends_none(tmp_path: Path) -> None:
    with serving(raw("echo")) as url:
        table = {"url": url, "headers": {"X-Key": "${secrets.CRM_TOKEN}"}}
        with running_node(tmp_path, {"crm": table}) as node:
            node.cli("secrets", "set", "crm-token", input="a\r\nX-Injected: yes")
            wait_for_refusal(node, "crm", "X-Key", "set it again")


def test_secrets_can_be_kept_while_no_node_runs(tmp_path: Path) -> None:
    with running_node(tmp_path, {}) as node:
        node.stop()
        assert node.cli("secrets", "list").returncode == 0 and not list(node.data.glob("secrets.*"))
        assert node.cli("secrets", "set", "key", input="marker-secret").returncode == 0
        assert '"key"' in node.cli("secrets", "list", "--json").stdout
        assert node.cli("secrets", "remove", "key").returncode == 0
        assert node.cli("secrets", "remove", "key").returncode == 1
    assert find_leaks(tmp_path) == []
