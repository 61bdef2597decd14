"""Is every revision in its era, as the official SDK has it?"""

import pytest
from mcp_types import version as sdk

from interlock.mcp.methods import (
    LATEST_LEGACY,
    LATEST_MODERN,
    LEGACY_VERSIONS,
    MODERN_VERSIONS,
    Era,
    era_of_header,
    negotiate_legacy,
)


def test_the_revisions_are_those_of_the_sdk() -> None:
    assert tuple(sdk.HANDSHAKE_PROTOCOL_VERSIONS) == LEGACY_VERSIONS
    assert tuple(sdk.MODERN_PROTOCOL_VERSIONS) == MODERN_VERSIONS
    assert (LATEST_LEGACY, LATEST_MODERN) == (sdk.LATEST_HANDSHAKE_VERSION, sdk.LATEST_MODERN_VERSION)


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
def test_a_known_legacy_version_is_granted(version: str) -> None:
    assert negotiate_legacy(version) == version
    assert era_of_header(version) is Era.LEGACY


@pytest.mark.parametrize("version", ["", "2025-11-25 ", "2024-10-07", "2026-07-28", "9999-01-01", "é"])
def test_any_other_version_is_answered_with_our_newest_legacy_version(version: str) -> None:
    assert negotiate_legacy(version) == LATEST_LEGACY


def test_a_request_without_a_version_header_is_legacy() -> None:
    assert era_of_header(None) is Era.LEGACY


@pytest.mark.parametrize("version", ["2026-07-28", "", "2025-11-25 ", "2099-01-01", "latest"])
def test_a_version_header_that_is_not_legacy_leads_to_modern_validation(version: str) -> None:
    assert era_of_header(version) is Era.MODERN
