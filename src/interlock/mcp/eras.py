"""The two eras of MCP and the revisions in each.

Legacy: an `initialize` handshake opens a session (2024-11-05 to 2025-11-25). Modern: every request stands alone and
carries its own version and capabilities (2026-07-28). The era of a client and the era of a server are found separately.
"""

from enum import Enum
from typing import Final


class Era(Enum):
    LEGACY = "legacy"
    MODERN = "modern"


# A member of an enum is looked up by the enum's metaclass, ten times slower than a name: these are for the call path.
LEGACY: Final = Era.LEGACY
MODERN: Final = Era.MODERN

LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)
LATEST_LEGACY: Final = LEGACY_VERSIONS[-1]
LATEST_MODERN: Final = MODERN_VERSIONS[-1]

BATCH_VERSION: Final = "2025-03-26"  # the only revision with batches: those before do not name them, those after forbid


def negotiate_legacy(requested: str) -> str:
    """The version an `initialize` is answered with: the one asked for if we know it, else our newest."""
    return requested if requested in LEGACY_VERSIONS else LATEST_LEGACY


def era_of_header(version: str | None) -> Era:
    """The era of one HTTP request. Anything that is not a known legacy version climbs the modern ladder."""
    return Era.LEGACY if version is None or version in LEGACY_VERSIONS else Era.MODERN
