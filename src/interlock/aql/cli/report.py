"""The conformance report: what was checked, by category, and the level that follows from it."""

from typing import Any, Final, Literal

import msgspec

from interlock import __version__
from interlock.aql.protocol.model import SPEC_VERSION

Verdict = Literal["passed", "failed", "skipped"]
IMPLEMENTATION: Final = "interlock"


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    result: Verdict
    message: str = ""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A category of the report. It is required where the claimed level includes its own."""

    name: str
    level: int
    tests: tuple[Item, ...]

    @property
    def result(self) -> Verdict:
        results = {one.result for one in self.tests}
        return "failed" if "failed" in results or not results else "passed" if "passed" in results else "skipped"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    claimed: int  # the level that the surface says it has
    sections: tuple[Section, ...]

    @property
    def level(self) -> int:
        """The highest level of which, and of those below, every category passed; 0: none."""
        reached = 0
        for level in range(1, self.claimed + 1):
            of_level = [one for one in self.sections if one.level == level]
            if not of_level or any(one.result != "passed" for one in of_level):
                break
            reached = level
        return reached

    @property
    def is_held(self) -> bool:
        return self.claimed > 0 and self.level == self.claimed

    def counts(self) -> dict[str, int]:
        results = [test.result for section in self.sections for test in section.tests]
        counted = {word: results.count(word) for word in ("passed", "failed", "skipped")}
        return {
            "total": len(results),
            "passed": counted["passed"],
            "warned": 0,
            "failed": counted["failed"],
            "skipped": counted["skipped"],
        }

    def claim(self) -> str:
        stands = "holds" if self.is_held else "does not hold"
        return f"{IMPLEMENTATION} {__version__}: the claim of MCP-AQL {SPEC_VERSION}, level {self.claimed}, {stands}"

    def shown(self) -> dict[str, Any]:
        return {
            "implementation": IMPLEMENTATION,
            "version": __version__,
            "specVersion": SPEC_VERSION,
            "requestedLevel": self.claimed,
            "conformanceLevel": self.level,
            "summary": self.counts(),
            "categories": [
                {
                    "name": section.name,
                    "required": section.level <= self.claimed,
                    "result": section.result,
                    "tests": msgspec.to_builtins(section.tests),
                }
                for section in self.sections
            ],
        }
