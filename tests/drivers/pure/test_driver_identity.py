"""Which changes of a driver need a new major version?"""

from typing import Any

import pytest
from tests.drivers.driver_texts import as_driver, binding, driver, remote, told

from interlock.drivers.protocol.identity import changes_of_identity
from interlock.drivers.protocol.problems import FileProblem


def changed(before: dict[str, Any], now: dict[str, Any]) -> tuple[FileProblem, ...]:
    old, new = as_driver(before | {"version": "1.0.0"}).value, as_driver({"version": "1.1.0", **now}).value
    assert old is not None
    assert new is not None
    return tuple(changes_of_identity(old, new))


def npm(package: str, **more: Any) -> dict[str, Any]:
    return driver(server={"kind": "npm", "package": package, **more}, version="1.1.0")


def docker(image: str) -> dict[str, Any]:
    return driver(server={"kind": "docker", "image": image}, version="1.1.0")


@pytest.mark.req("AIP-identity-1")
def test_another_protocol_version_is_a_major_change() -> None:
    before, now = driver(protocol_version="2025-03"), driver(protocol_version="2025-11-25", version="1.1.0")
    (problem,) = changed(before, now)
    assert (problem.code, problem.field) == ("major_bump_required", "/protocol_version")
    assert problem.message == "protocol_version changed since 1.0.0"
    assert "2.0.0" in problem.hint
    assert changed(before, now | {"version": "2.0.0"}) == ()
    assert changed(before, driver(protocol_version="2025-03-26", version="1.1.0")) == ()


@pytest.mark.parametrize(
    ("before", "now", "field"),
    [
        (npm("@x/y@1.9.0"), npm("@x/y@2.0.0"), "/server/package"),
        (npm("@x/y"), npm("@x/z"), "/server/package"),
        (npm("x"), driver(server={"kind": "pypi", "package": "x"}, version="1.1.0"), "/server/kind"),
        (docker("a/b:1"), docker("a/c:1"), "/server/image"),
        (docker("r.example:5000/b:1"), docker("r.example:5001/b:1"), "/server/image"),
        (remote("https://a.example/x"), remote("https://b.example/x") | {"version": "1.1.0"}, "/server/url"),
    ],
)
@pytest.mark.req("AIP-identity-2")
def test_another_source_of_the_server_is_a_major_change(before: Any, now: Any, field: str) -> None:
    assert told(changed(before, now)) == [("major_bump_required", field)]
    assert f"{field[1:].replace('/', '.')} changed since" in changed(before, now)[0].message


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (npm("@x/y@1.9.0"), npm("@x/y@1.10.0")),
        (npm("@x/y"), npm("@x/y@2.0.0")),
        (npm("@x/y", args=["a"]), npm("@x/y", args=["b"], env={"A": "b"})),
        (docker("a/b:1"), docker("a/b:2")),
        (remote("https://a.example/x"), remote("https://a.example/y") | {"version": "1.1.0"}),
    ],
)
@pytest.mark.req("AIP-identity-2")
def test_another_argument_or_minor_version_is_none(before: Any, now: Any) -> None:
    assert changed(before, now) == ()


@pytest.mark.req("AIP-identity-2")
def test_a_new_year_of_a_calendar_version_is_only_a_warning() -> None:
    (problem,) = changed(npm("x@2025.12.1"), npm("x@2026.1.1"))
    assert (problem.code, problem.severity) == ("major_bump_required", "warning")
    for first, severity in ((1969, "error"), (1970, "warning")):
        (problem,) = changed(npm(f"x@{first}.1.1"), npm("x@2026.1.1"))
        assert problem.severity == severity


@pytest.mark.req("AIP-identity-3")
def test_another_transport_is_a_major_change() -> None:
    now = remote() | {"transport": "sse", "version": "1.1.0"}
    assert told(changed(remote(), now)) == [("major_bump_required", "/transport")]
    assert changed(remote(), now)[0].message == "transport changed since 1.0.0"


@pytest.mark.req("AIP-30.implements-4")
def test_another_narrowing_is_a_major_change() -> None:
    now = driver(implements=[binding(schema_narrowing={"drop_inputs": ["a"]})], version="1.1.0")
    assert told(changed(driver(), now)) == [("major_bump_required", "/implements/0/schema_narrowing")]
    assert changed(driver(), now)[0].message == "schema_narrowing changed since 1.0.0"
    another = binding(tool="tools/another/TOOL.md", schema_narrowing={"drop_inputs": ["a"]})
    assert told(changed(driver(), driver(implements=[binding(), another], version="1.1.0"))) == []


def test_drivers_of_two_names_are_not_compared() -> None:
    assert changed(driver(), npm("other") | {"id": "other-mcp"}) == ()
