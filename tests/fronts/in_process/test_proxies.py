"""Whom does a trusted proxy speak for? Never for whom a stranger behind it says."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.fronts.connections import HOPS_MAX, TrustedProxies, address_of

PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48"])
STRANGER = "203.0.113.9"


def client(*headers: tuple[str, str]) -> str | None:
    found = PROXIES.client([(name.encode(), value.encode("latin-1")) for name, value in headers])
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("127.0.0.1", True),
        ("::ffff:127.0.0.1", True),  # a listener on :: sees IPv4 so
        ("10.200.3.4", True),
        ("2001:db8:1::7", True),
        ("127.0.0.2", False),
        ("::1", False),
        ("2001:db8:2::7", False),
        ("", False),
        (None, False),
    ],
)
def test_a_proxy_is_trusted_by_its_address(address: str | None, trusted: bool) -> None:
    assert PROXIES.trusts(address_of(address)) is trusted
    assert not TrustedProxies([]).trusts(address_of(address))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (STRANGER, STRANGER),
        (f" {STRANGER} ", STRANGER),
        (f"{STRANGER}:4711", STRANGER),
        ("2001:db8::9", "2001:db8::9"),
        ("[2001:db8::9]", "2001:db8::9"),
        ("[2001:db8::9]:4711", "2001:db8::9"),
        (f"::ffff:{STRANGER}", STRANGER),
        (f"127.0.0.1, {STRANGER}", STRANGER),  # what the stranger wrote stands left of what the proxy adds
        (f"{STRANGER}, 10.0.0.7, 127.0.0.1", STRANGER),
        ("10.0.0.7, 127.0.0.1", "10.0.0.7"),  # nobody but proxies
        (f"{STRANGER}, unknown", None),
        (f"{STRANGER}, _hidden", None),
        (f"{STRANGER},", None),
        ("", None),
        ("localhost", None),
        ("127.1", None),
        (f"{STRANGER}:99999999", None),
        (", ".join([STRANGER] + ["10.0.0.1"] * HOPS_MAX), None),
        (", ".join([STRANGER] + ["10.0.0.1"] * (HOPS_MAX - 1)), STRANGER),
    ],
)
def test_the_nearest_address_that_is_no_proxy_is_the_client(said: str, found: str | None) -> None:
    assert client(("x-forwarded-for", said)) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (f"for={STRANGER}", STRANGER),
        (f"For={STRANGER};proto=https;by=10.0.0.1", STRANGER),
        (f"proto=https ; for={STRANGER}", STRANGER),
        (f"for={STRANGER}:80", STRANGER),
        ('for="[2001:db8::9]:4711"', "2001:db8::9"),
        (f'for="{STRANGER}"', STRANGER),
        (f"for=127.0.0.1, for={STRANGER}", STRANGER),
        (f'for={STRANGER}, for="10.0.0.7";by=_x', STRANGER),
        (f'for="\\{STRANGER}"', STRANGER),
        ("for=unknown", None),
        ("for=_hidden", None),
        ("by=10.0.0.1", None),
        ("", None),
        (f"for={STRANGER},", None),
        (f"for={STRANGER};for=127.0.0.1", None),
        # A quotation mark the stranger left open, closed by the proxy's own: nobody, rather than the stranger's word.
        ('for=127.0.0.1;x=", for="[2001:db8::9]"', None),
        (f'for=127.0.0.1;x=", for={STRANGER}', None),
    ],
)
def test_the_standard_header_is_read_alike(said: str, found: str | None) -> None:
    assert client(("forwarded", said)) == found


def test_lines_of_one_header_are_one_list() -> None:
    assert client(("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", STRANGER)) == STRANGER
    assert client(("forwarded", "for=127.0.0.1"), ("host", "x"), ("forwarded", f"for={STRANGER}")) == STRANGER


def test_two_headers_must_agree_because_a_proxy_writes_only_one_of_them() -> None:
    assert client(("x-forwarded-for", STRANGER), ("forwarded", f"for={STRANGER}")) == STRANGER
    assert client(("x-forwarded-for", STRANGER), ("forwarded", "for=127.0.0.1")) is None
    assert client(("x-forwarded-for", "127.0.0.1"), ("forwarded", f"for={STRANGER}")) is None
    assert client(("x-forwarded-for", STRANGER), ("forwarded", "")) is None


def test_other_headers_say_nothing() -> None:
    assert client() is None
    assert client(("x-real-ip", STRANGER), ("via", "1.1 x"), ("x-client-ip", STRANGER)) is None


@given(st.text(st.characters(max_codepoint=255)))
def test_headers_of_a_stranger_do_not_change_the_caller(text: str) -> None:
    stranger = ipaddress.ip_address(STRANGER)
    for name, added in (
        (b"x-forwarded-for", STRANGER.encode()),
        (b"forwarded", f"for={STRANGER}".encode()),
        (b"forwarded", f'for="{STRANGER}:80";proto=http'.encode()),
    ):
        sent = text.encode("latin-1")
        for headers in ([(name, sent), (name, added)], [(name, sent + b", " + added)]):
            assert PROXIES.client(headers) in (stranger, None)
