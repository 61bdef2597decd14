"""Does a sandboxed server reach the hosts it names and no other, whichever way it tries?"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.caging import GREETING, OutsideHost, attempt, hostile, needs_sandbox, outside_host
from tests.support.node_process import RunningNode, running_node, wait_for

pytestmark = needs_sandbox


@pytest.fixture(scope="module")
def there() -> Iterator[OutsideHost]:
    with outside_host() as made:
        yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    servers = {
        "caged": {"command": hostile(), "egress": ["localhost"]},
        "wide": {"command": hostile(), "egress": ["*"]},
    }
    with running_node(tmp_path_factory.mktemp("egress"), servers) as started:
        yield started


def refusals(node: RunningNode, segment: str) -> list[dict[str, Any]]:
    entries = node.admin("/admin/audit?limit=1000")["records"]
    return [each for each in entries if json.dumps(each).count(f"server:{segment}")]


@pytest.mark.req("AIP-security-3")
def test_a_named_host_is_reached_through_the_proxy_and_only_so(node: RunningNode, there: OutsideHost) -> None:
    assert attempt(node, "caged", "fetch", f"http://localhost:{there.port}/x") == {"done": GREETING}
    assert attempt(node, "caged", "tunnel", "localhost", there.port) == {"done": GREETING}
    there.heard.clear()
    assert "failed" in attempt(node, "caged", "tcp", "127.0.0.1", there.port)
    assert "failed" in attempt(node, "caged", "tcp", "localhost", there.port)
    assert attempt(node, "caged", "udp", "192.0.2.1", 53)["errno"] == 101
    assert there.heard == []


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "api.bar.com", "sub.localhost", "169.254.169.254", "2130706433"]
)
def test_any_other_host_is_refused_and_on_record(node: RunningNode, there: OutsideHost, host: str) -> None:
    there.heard.clear()
    tunnel = attempt(node, "caged", "tunnel", host, there.port)
    assert "403 Forbidden" in tunnel["failed"]
    assert "egress_denied" in tunnel["failed"]
    assert "403" in attempt(node, "caged", "fetch", f"http://{host}:{there.port}/")["failed"]
    assert there.heard == []
    plain = host.strip("[]")
    written = wait_for(
        lambda: [one for one in refusals(node, "caged") if f"egress_denied: {plain}:{there.port}" in json.dumps(one)]
    )
    assert len(written) == 1  # the second attempt is the same matter


@pytest.mark.req("AIP-security-3")
def test_a_wildcard_does_not_lead_to_this_machine(node: RunningNode, there: OutsideHost) -> None:
    there.heard.clear()
    for host in ("localhost", "127.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]", "0.0.0.0"):
        assert "private address" in attempt(node, "wide", "tunnel", host, there.port)["failed"]
    assert there.heard == []


@pytest.mark.req("AIP-security-14")
def test_the_proxy_is_in_the_environment_where_egress_is_used(node: RunningNode) -> None:
    inside = attempt(node, "caged", "environment")["done"]
    proxies = {"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy", "NODE_USE_ENV_PROXY"}
    assert set(inside) - {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "PWD"} == proxies


def test_a_refusal_is_in_what_the_server_printed(node: RunningNode) -> None:
    attempt(node, "caged", "tunnel", "logged.example.com", 443)
    assert "egress_denied: logged.example.com:443" in node.cli("links", "logs", "caged").stdout


def test_a_server_that_asks_for_a_thousand_hosts_does_not_fill_the_record(node: RunningNode) -> None:
    before = len(refusals(node, "wide"))
    for number in range(80):
        attempt(node, "wide", "tunnel", f"127.0.1.{number}", 1)
    wait_for(lambda: "further hosts are not written down" in json.dumps(refusals(node, "wide")))
    assert len(refusals(node, "wide")) - before <= 66
