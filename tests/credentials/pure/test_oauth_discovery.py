"""Where the tokens for a server come from: which places are looked at, which documents are believed."""

import json
from typing import Any

import pytest

from interlock.credentials.protocol.oauth_client import (
    covers,
    is_issuer,
    origin_of,
    read_authorization_server_untrusted,
    read_protected_resource_untrusted,
    resource_metadata_urls,
    server_resource,
)
from interlock.credentials.protocol.resource import BadMetadata

URL = "https://mcp.example.com/team/mcp"
ISSUER = "https://login.example.com/tenant"
SERVER: dict[str, Any] = {"issuer": ISSUER, "token_endpoint": "https://login.example.com/token"}


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp"),
        ("HTTPS://MCP.Example.com:443/Mcp?key=s#f", "https://mcp.example.com/Mcp"),
        ("https://mcp.example.com/", "https://mcp.example.com"),
        ("https://mcp.example.com", "https://mcp.example.com"),
        ("https://mcp.example.com/a/", "https://mcp.example.com/a/"),
        ("http://[::1]:8080/mcp", "http://[::1]:8080/mcp"),
    ],
)
def test_the_resource_of_a_server_is_its_url_without_what_may_be_secret(url: str, resource: str) -> None:
    assert server_resource(url) == resource


def test_metadata_is_looked_for_at_the_path_and_then_at_the_root() -> None:
    well_known = "https://mcp.example.com/.well-known/oauth-protected-resource"
    assert resource_metadata_urls(URL + "?x=1") == (f"{well_known}/team/mcp", well_known)
    assert resource_metadata_urls("https://mcp.example.com/") == (well_known,)
    assert origin_of("https://mcp.example.com:8443/a?b") == "https://mcp.example.com:8443"


@pytest.mark.parametrize(
    ("resource", "is_covered"),
    [
        (URL, True),
        ("HTTPS://MCP.EXAMPLE.COM:443/team/mcp", True),
        (URL + "/", True),
        ("https://mcp.example.com/team", True),
        ("https://mcp.example.com/", True),
        ("https://mcp.example.com", True),
        ("https://mcp.example.com/tea", False),
        ("https://mcp.example.com/team/mcp/deeper", False),
        ("https://mcp.example.com/TEAM/mcp", False),
        ("https://evil.example.com/team/mcp", False),
        ("https://mcp.example.com.evil.com/team/mcp", False),
        ("https://mcp.example.com@evil.com/team/mcp", False),
        ("https://user@mcp.example.com/team/mcp", False),
        ("http://mcp.example.com/team/mcp", False),
        ("https://mcp.example.com:8443/team/mcp", False),
        (URL + "?x=1", False),
        (URL + "#x", False),
        ("mcp.example.com/team/mcp", False),
        ("https://[::1/team", False),
        ("https://mcp.example.com:99999/team/mcp", False),
        ("", False),
    ],
)
def test_a_token_is_for_a_server_or_for_what_it_is_a_part_of(resource: str, is_covered: bool) -> None:
    assert covers(resource, URL) is is_covered


def test_resource_metadata_is_read_with_the_scopes_that_are_scopes() -> None:
    said = {"resource": URL, "authorization_servers": [ISSUER], "scopes_supported": ["a", "b c", "a", "é"], "x": 1}
    read = read_protected_resource_untrusted(json.dumps(said).encode(), URL)
    assert (read.resource, read.authorization_servers, read.scopes_supported) == (URL, (ISSUER,), ("a",))


@pytest.mark.parametrize(
    "said",
    [
        {"resource": "https://evil.example/mcp", "authorization_servers": [ISSUER]},
        {"resource": URL, "authorization_servers": []},
        {"resource": URL},
        {"authorization_servers": [ISSUER]},
        {"resource": URL, "authorization_servers": ISSUER},
        [],
        "x",
    ],
)
def test_resource_metadata_of_something_else_is_refused(said: Any) -> None:
    with pytest.raises(BadMetadata):
        read_protected_resource_untrusted(json.dumps(said).encode(), URL)


def test_an_authorization_server_is_read_and_absent_lists_stay_absent() -> None:
    read = read_authorization_server_untrusted(json.dumps(SERVER).encode(), ISSUER)
    assert read.code_challenge_methods_supported is None
    assert not read.authorization_response_iss_parameter_supported


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": ISSUER + "/"},
        {"issuer": ISSUER.upper()},
        {"token_endpoint": "http://login.example.com/token"},
        {"token_endpoint": "https://user:pw@login.example.com/token"},
        {"token_endpoint": "/token"},
        {"authorization_endpoint": "http://login.example.com/authorize"},
        {"authorization_endpoint": "https://login.example.com/#x"},
        {"registration_endpoint": "ftp://login.example.com"},
        {"scopes_supported": "a b"},
    ],
)
def test_metadata_that_names_another_or_an_unsafe_place_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMetadata):
        read_authorization_server_untrusted(json.dumps(SERVER | changes).encode(), ISSUER)


@pytest.mark.parametrize(
    ("issuer", "is_one"),
    [
        (ISSUER, True),
        ("http://127.0.0.1:9000", True),
        ("http://login.example.com", False),
        ("https://login.example.com?x", False),
        ("https://login.example.com#x", False),
        ("login.example.com", False),
        ("https://login.example.com\nx", False),
    ],
)
def test_which_issuers_are_asked_at_all(issuer: str, is_one: bool) -> None:
    assert is_issuer(issuer) is is_one
