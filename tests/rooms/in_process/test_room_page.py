"""What docs/rooms.md says of rooms is so: the codes that there are, and who sees what."""

import ast
import re
from pathlib import Path

import pytest

from interlock.cli.explain import codes_for
from interlock.fronts import exchange as request_head
from interlock.rooms import endpoint
from interlock.rooms.protocol.envelope import CODES

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src" / "interlock"


def documented() -> set[str]:
    """The first column of the table in docs/rooms.md."""
    section = (ROOT / "docs" / "rooms.md").read_text().partition("## What is refused")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`(\w+)`", row)}


def refused_with(path: Path, argument: int) -> set[str]:
    """The codes that a module writes into its refusals."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "HttpRefusal"]
    codes = [node.args[argument] for node in named if len(node.args) > argument]
    return {str(code.value) for code in codes if isinstance(code, ast.Constant) and isinstance(code.value, str)}


@pytest.mark.req("X-4-14")
def test_the_documented_codes_are_those_that_are_refused_with() -> None:
    of_envelopes = set(CODES.split())
    at_the_door = refused_with(Path(endpoint.__file__), 0) | {"bad_origin"}
    assert "bad_origin" in Path(request_head.__file__).read_text()
    assert documented() == of_envelopes | at_the_door
    used = "".join(
        path.read_text()
        for folder in ("rooms/protocol", "rooms")
        for path in (SOURCES / folder).glob("*.py")
        if path.name != "errors.py"
    )
    assert {code for code in of_envelopes if f'"{code}"' not in used} == set()


@pytest.mark.req("X-4-14")
@pytest.mark.parametrize("code", sorted(documented()))
def test_each_code_is_explained(code: str) -> None:
    assert codes_for(code)


@pytest.mark.req("X-7.2-1", "X-2.2-1")
def test_the_page_shows_who_sees_messages_and_proposals() -> None:
    page = " ".join((ROOT / "docs" / "rooms.md").read_text().split())
    assert "There are no private messages: for confidential work use another room." in page
    assert "Everyone in the room sees a pending proposal, arguments included" in page
