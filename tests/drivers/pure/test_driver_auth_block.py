"""Is the auth block of a driver closed, and is an expired login known by what it says?"""

from typing import Any

import pytest
from tests.drivers.driver_texts import as_driver, driver, remote, told

from interlock.drivers.protocol.files.inventory import Detected, find_detector

PROBE = {"method": "GET", "url": "https://a.example/ok", "expect_status": 200}


@pytest.mark.req("AIP-30.auth-1")
@pytest.mark.parametrize(
    "auth",
    [
        {},
        {"ref": "./SECRETS.md"},
        {"state": {"paths": ["~/.config/acme"], "env": ["TOKEN"]}},
        {"login": {"cmd": "acme login", "interactive": True}},
        {"login": {"url": "https://a.example/login", "requires_callback_url": True}},
        {"login": {"cmd": "acme login", "completes_when": {"cmd": "acme whoami", "exit_code": 0}}},
        {"login": {"cmd": "acme login", "completes_when": {"http": PROBE}}},
        {"refresh": {"cmd": "acme refresh", "every": "PT30M"}},
        {"refresh": {"url": "https://a.example/refresh", "every": "PT1H"}},
        {"expiry": {"detect": "http_status:401"}},
    ],
)
def test_a_block_of_known_keys_is_taken(auth: dict[str, Any]) -> None:
    reading = as_driver(driver(auth=auth))
    assert reading.errors == ()
    assert reading.value is not None
    assert reading.value.auth is not None


@pytest.mark.req("AIP-30.auth-1")
@pytest.mark.parametrize(
    ("auth", "pointer"),
    [
        ({"token": "x"}, "/auth/token"),
        ({"state": {"files": []}}, "/auth/state/files"),
        ({"state": {"paths": "a"}}, "/auth/state/paths"),
        ({"login": {"command": "x"}}, "/auth/login/command"),
        ({"login": {"interactive": "yes"}}, "/auth/login/interactive"),
        ({"login": {"completes_when": {"status": 1}}}, "/auth/login/completes_when/status"),
        ({"refresh": {"after": "PT1H"}}, "/auth/refresh/after"),
        ({"expiry": {"detect": 401}}, "/auth/expiry/detect"),
        ([], "/auth"),
    ],
)
def test_anything_else_is_refused_with_its_place(auth: Any, pointer: str) -> None:
    assert told(as_driver(driver(auth=auth)).errors) == [("schema_invalid", pointer)]


@pytest.mark.req("AIP-30.auth-2")
@pytest.mark.parametrize(
    ("detect", "seen", "is_expired"),
    [
        ("http_status:401", Detected(status=401), True),
        ("http_status:401", Detected(status=403), False),
        ("exit_code:42", Detected(exit_code=42), True),
        ("exit_code:42", Detected(), False),
        ("exit_code:-9", Detected(exit_code=-9), True),
        ("exception:auth_failed", Detected(exception="auth_failed"), True),
        ("exception:auth_failed", Detected(exception="upstream_error"), False),
        ("header:X-Login:expired", Detected(headers=[(b"x-login", b"expired")]), True),
        ("header:X-Login:a:b", Detected(headers=[(b"X-LOGIN", b"a:b")]), True),
        ("header:X-Login:expired", Detected(headers=[(b"x-login", b"fine")]), False),
    ],
)
def test_an_expired_login_is_known_by_what_is_written(detect: str, seen: Detected, is_expired: bool) -> None:
    value = as_driver(driver(auth={"expiry": {"detect": detect}})).value
    assert value is not None
    detector = find_detector(value)
    assert detector is not None
    assert detector.is_expired(seen) is is_expired


@pytest.mark.req("AIP-30.auth-2")
@pytest.mark.parametrize(
    "detect", ["moon:full", "http_status:", "http_status:4x1", "exit_code:", "header:X", "header::", ""]
)
def test_an_unknown_entry_detects_nothing(detect: str) -> None:
    value = as_driver(driver(auth={"expiry": {"detect": detect}})).value
    assert value is None or find_detector(value) is None


@pytest.mark.req("AIP-30.auth-1")
def test_an_unused_secret_of_the_login_is_reported() -> None:
    auth = {"state": {"env": ["TOKEN", "OTHER"]}}
    places = ["/auth/state/env/0", "/auth/state/env/1"]
    local = {"kind": "binary", "path": "x", "env": {"T": "${secrets.TOKEN}"}}
    cases: list[tuple[dict[str, Any], str, list[str]]] = [
        ({**remote(), "auth": auth}, "warning", places),
        ({**remote(headers={"X-Token": "${secrets.TOKEN}"}), "auth": auth}, "warning", places[1:]),
        ({**remote(auth={"type": "bearer", "secret": "OTHER"}), "auth": auth}, "warning", places[:1]),
        (driver(auth=auth), "note", places),
        (driver(server=local, auth=auth), "note", places[1:]),
    ]
    for data, severity, wanted in cases:
        found = [each for each in as_driver(data).problems if each.code == "state_env_unused"]
        assert [(each.field, each.severity) for each in found] == [(place, severity) for place in wanted]
        assert all("${secrets." in each.hint for each in found)
