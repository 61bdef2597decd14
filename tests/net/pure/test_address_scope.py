"""Addresses: how near each is, and that nothing else in the program judges it."""

import ipaddress
import re
from pathlib import Path

import pytest

import interlock
from interlock.net.protocol.address_scope import Scope, find_scope, is_loopback, scope_of


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        ("93.184.215.14", Scope.PUBLIC),
        ("2606:2800:21f:cb07::1", Scope.PUBLIC),
        ("10.1.2.3", Scope.PRIVATE),
        ("172.16.0.1", Scope.PRIVATE),
        ("192.168.1.1", Scope.PRIVATE),
        ("100.64.0.1", Scope.PRIVATE),
        ("fd00::1", Scope.PRIVATE),
        ("224.0.0.1", Scope.PRIVATE),
        ("255.255.255.255", Scope.PRIVATE),
        ("127.0.0.1", Scope.MACHINE),
        ("127.8.8.8", Scope.MACHINE),
        ("::1", Scope.MACHINE),
        ("0.0.0.0", Scope.MACHINE),
        ("::", Scope.MACHINE),
        ("169.254.169.254", Scope.MACHINE),
        ("fe80::1%eth0", Scope.MACHINE),
        ("::ffff:127.0.0.1", Scope.MACHINE),
        ("::ffff:10.0.0.1", Scope.PRIVATE),
        ("64:ff9b::7f00:1", Scope.MACHINE),
        ("64:ff9b::a00:1", Scope.PRIVATE),
        ("2002:7f00:1::", Scope.MACHINE),
        ("0.1.2.3", Scope.MACHINE),
        ("203.0.113.9", Scope.PRIVATE),
        ("2001:db8::1", Scope.PRIVATE),
        ("2001::1", Scope.PRIVATE),
        ("4000::1", Scope.PRIVATE),
        ("ff0e::1", Scope.PRIVATE),
        ("2001:4860:4860::8888", Scope.PUBLIC),
        ("8.8.8.8", Scope.PUBLIC),
        ("64:ff9b::808:808", Scope.PUBLIC),  # NAT64: as near as the address it leads to
        ("64:ff9b::a9fe:a9fe", Scope.MACHINE),
        ("64:ff9b:1::808:808", Scope.PRIVATE),  # NAT64 within a network
        ("64:ff9b:1::7f00:1", Scope.MACHINE),
        ("::127.0.0.1", Scope.MACHINE),  # IPv4-compatible
        ("::10.0.0.1", Scope.PRIVATE),
        ("::8.8.8.8", Scope.PRIVATE),
        ("fec0::1", Scope.PRIVATE),  # site-local
        ("feff::1", Scope.PRIVATE),
        ("2606:2800::5efe:127.0.0.1", Scope.MACHINE),  # ISATAP
        ("2606:2800::5efe:10.0.0.1", Scope.PRIVATE),
        ("2606:2800::200:5efe:192.168.1.1", Scope.PRIVATE),
        ("2606:2800::200:5efe:8.8.8.8", Scope.PUBLIC),
        ("fe80::5efe:8.8.8.8", Scope.MACHINE),
        ("2002:a00:1::", Scope.PRIVATE),  # 6to4
        ("2001:0:7f00:1::1", Scope.PRIVATE),  # Teredo
        ("192.88.99.1", Scope.PRIVATE),
        ("5f00::1", Scope.PRIVATE),
        ("100::1", Scope.PRIVATE),
    ],
)
def test_how_near_an_address_is(address: str, scope: Scope) -> None:
    assert scope_of(address) is scope


def test_a_name_says_nothing_before_it_is_looked_up() -> None:
    assert find_scope("mcp.example.com") is None
    assert find_scope("2130706433") is None
    assert (find_scope("localhost"), find_scope("a.localhost"), find_scope("::1")) == (Scope.MACHINE,) * 3


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine_are_loopback(host: str) -> None:
    assert is_loopback(host)
    if host != "localhost":
        assert is_loopback(ipaddress.ip_address(host))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a.localhost",
        "localhost.example.com",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "127.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_no_other_address_is_loopback(host: str) -> None:
    """Above all no address that another machine could send from, or a name that a resolver decides."""
    assert not is_loopback(host)


def test_no_other_module_judges_addresses() -> None:
    root = Path(interlock.__file__).parent
    judging = re.compile(
        r"(?<!self)(?<!protocol)\.is_(?:loopback|private|global|link_local|reserved|multicast|unspecified)\b"
        r"|def _?is_(?:loopback|global|link_local)\b"
    )
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if judging.search(path.read_text()) is not None and path.name != "address_scope.py"
    }
    assert found == set()
