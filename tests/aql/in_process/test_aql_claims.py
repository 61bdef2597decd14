"""Does what the AQL surface says of itself stand in the specification or on the page of its extensions?"""

import ast
import re
from pathlib import Path

import pytest
from tests.aql.aql_node import aql_node, tool
from tests.support.frozen_node import in_frozen_time

from interlock.aql.protocol.errors import CATEGORIES, CODES
from interlock.aql.protocol.introspection import DECLARATION

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "aql.md").read_text("utf-8")
# The published registry, the members of ProtocolMetadata, the parameters of introspect (7.2).
REGISTRY = {
    *("VALIDATION_MISSING_PARAM", "VALIDATION_INVALID_TYPE", "VALIDATION_UNKNOWN_PARAM", "VALIDATION_UNKNOWN_FIELD"),
    *("VALIDATION_INVALID_ENCODING", "VALIDATION_PAYLOAD_TOO_LARGE", "NOT_FOUND_OPERATION", "NOT_FOUND_RESOURCE"),
    *("PERMISSION_DENIED", "INTERNAL_ERROR", "PERMISSION_TRUST_LEVEL_INSUFFICIENT", "PERMISSION_DANGER_LEVEL_DENIED"),
    *("CONFIRMATION_REQUIRED", "RATE_LIMIT_EXCEEDED", "RATE_LIMIT_QUOTA_EXHAUSTED", "TOKEN_INVALID", "TOKEN_EXPIRED"),
    *("TOKEN_ALREADY_USED", "TOKEN_SCOPE_MISMATCH"),
}
PROTOCOL = {"version", "conformance", "mode", "capabilities"}
PARAMETERS = {"query", "name"}
# Of warnings, and of the audit's records of tokens.
NO_ERRORS = {
    *("RATE_LIMIT_QUOTA_WARNING", "VALIDATION_TRUNCATED_WARNING"),
    *("TOKEN_ISSUED", "TOKEN_REJECTED", "TOKEN_VALIDATED", "TOKEN_REVOKED"),
}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.req("AQL-10.2-1")
@in_frozen_time
async def test_every_extension_is_on_the_page(tmp_path: Path) -> None:
    named = set(re.findall(r"`([^`]+)`", section("Extensions of ours")))
    assert named >= CODES - REGISTRY
    assert set(DECLARATION.by_name) - PARAMETERS <= named
    config = '[gate]\nmode = "open"\n[safety]\nmode = "monitoring"\n'
    async with aql_node(tmp_path, config) as here:
        await here.leaf(tools=[tool(f"delete_{number}") for number in range(110)])
        client = await here.legacy()
        protocol = (await client.introspect(query="operations"))["_protocol"]
        assert {"safety", "page_info", "danger_levels", "session_id"} <= set(protocol)
        assert set(protocol) - PROTOCOL <= named


@pytest.mark.req("AQL-C.err-1")
def test_the_codes_are_those_of_the_page_and_no_others_are_written() -> None:
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", section("Codes"), re.MULTILINE)) == CODES
    form = re.compile(rf"(?:{'|'.join(CATEGORIES)})[A-Z0-9_]+")
    sources = ROOT / "src" / "interlock"
    written = {
        node.value
        for path in sources.rglob("*.py")
        if form.search(text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and form.fullmatch(node.value)
    }
    assert written - CODES == NO_ERRORS
