"""What the audit log holds of confirmation tokens and dangerous operations; and that no mode of the surface is a way
around what is refused in another."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.aql.aql_node import OPEN, WRITES, AqlNode, aql_node, received_calls, schema, tool
from tests.support.frozen_node import in_frozen_time

DELETE = {"operation": "docs__delete_document", "params": {"document_id": "d"}}


def with_token(token: str) -> dict[str, Any]:
    return {**DELETE, "params": {"document_id": "d", "confirmation_token": token}}


async def records(here: AqlNode, method: str) -> list[dict[str, Any]]:
    await here.node.stores.recorder.flush()
    kept = [json.loads(record.data) for record in await here.node.stores.audit.read(0, 100_000)]
    return [record for record in kept if record["method"] == method]


@pytest.mark.req("AQL-C.token-8", "AQL-C.danger-5")
@in_frozen_time
async def test_every_step_of_a_token_and_every_attempt_is_recorded_without_the_token(tmp_path: Path) -> None:
    rules = '[[tool]]\nmatch = "docs.run_job"\naql = { danger = "forbidden" }\n'
    async with aql_node(tmp_path, OPEN + rules) as here:
        await here.leaf()
        client = await here.legacy("aql-single")
        session = (await client.introspect("mcp_aql", query="operations"))["_protocol"]["session_id"]
        tokens = []
        for _ in range(2):
            asked = await client.send("mcp_aql", DELETE)
            tokens.append(asked["error"]["details"]["confirmation_token"])
        assert (await client.send("mcp_aql", with_token(tokens[0])))["success"]
        for wrong in (tokens[0], "made-up"):
            assert not (await client.send("mcp_aql", with_token(wrong)))["success"]
        await client.send("mcp_aql", {"operation": "docs__run_job", "params": {"job": "j"}})
        (opened,) = here.node.fronts.sessions.by_id.values()
        here.node.fronts.sessions.close(opened, "closed by the client")
        told = await records(here, "aql/token")
        events = [record["reason"].split(" ")[0] for record in told]
        assert events == [
            *("TOKEN_ISSUED", "TOKEN_ISSUED", "TOKEN_VALIDATED", "TOKEN_REJECTED", "TOKEN_REJECTED", "TOKEN_REVOKED")
        ]
        assert [record["reason"].partition(": ")[2] for record in told] == [
            *("", "", "", "TOKEN_ALREADY_USED", "TOKEN_INVALID", "session_end")
        ]
        assert len({record["reason"].split(" ")[1] for record in told}) == 3  # hashes of three tokens
        for record in told:
            assert session in record["reason"] and record["at"]
            assert (record["who"], record["tool"]) == ("local", "docs__delete_document")
        attempts = [
            (one["who"], one["tool"], one["verdict"], one["reason"]) for one in await records(here, "aql/danger")
        ]
        said = "danger destructive, trust community_reviewed: "
        assert attempts == [
            ("local", "docs__delete_document", "refused", f"{said}denied, CONFIRMATION_REQUIRED"),
            ("local", "docs__delete_document", "refused", f"{said}denied, CONFIRMATION_REQUIRED"),
            ("local", "docs__delete_document", "admitted", f"{said}confirmed"),
            ("local", "docs__delete_document", "refused", f"{said}denied, TOKEN_ALREADY_USED"),
            ("local", "docs__delete_document", "refused", f"{said}denied, TOKEN_INVALID"),
            ("local", "docs__run_job", "refused", "danger forbidden, trust community_reviewed: denied"),
        ]
        everything = b"".join([record.data for record in await here.node.stores.audit.read(0, 100_000)])
        assert not any(token.encode() in everything for token in tokens)
    async with aql_node(tmp_path / "open", f"{OPEN}[aql]\ndanger = {{ enforce = false }}\n") as here:
        await here.leaf()
        assert (await here.modern().do("docs__delete_document", {"document_id": "d"}, "delete"))["success"]
        (allowed,) = await records(here, "aql/danger")
        assert allowed["reason"].endswith(": allowed") and "password" not in json.dumps(allowed)


@pytest.mark.req("AQL-C.mode-5")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_gated_and_a_denied_operation_are_refused_alike_in_every_mode(tmp_path: Path, era: str) -> None:
    tools = [
        tool("delete_document", annotations=WRITES, inputSchema=schema(("id",), id={"type": "string"})),
        tool("delete_all", annotations=WRITES, inputSchema=schema()),
        tool("get_it", inputSchema=schema()),
    ]
    rules = (
        '[gate]\nmode = "gated"\nalso = ["docs.delete_document"]\n'
        '[[tool]]\nmatch = "docs.delete_all"\naql = { danger = "forbidden" }\n'
    )
    gated = {"operation": "docs__delete_document", "params": {"id": "1"}}
    denied = {"operation": "docs__delete_all"}

    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path, rules) as here:
            leaf = await here.leaf(tools=tools)
            single, semantic = await here.client(era, "aql-single"), await here.client(era)

            async def failure(client: Any, name: str, asked: dict[str, Any]) -> dict[str, Any]:
                """What one operation was refused with, alone or as the only item of a batch."""
                waits = client.client.begin("tools/call", {"name": name, "arguments": asked})
                await here.house.until(waits.done)
                said = waits.result()["result"]["structuredContent"]
                if "operations" in asked:
                    said = said["halted_at"]["result"] if "halted_at" in said else said["results"][0]["result"]
                assert said["success"] is False
                error: dict[str, Any] = said["error"]
                error["details"].pop("expires_at", None)
                return error

            for asked, expected in ((gated, "CONFIRMATION_REQUIRED"), (denied, "PERMISSION_DANGER_LEVEL_DENIED")):
                said = [
                    await failure(client, name, form)
                    for client, name in ((single, "mcp_aql"), (semantic, "mcp_aql_delete"))
                    for form in (asked, {"operations": [asked]})
                ]
                assert said[0]["code"] == expected
                assert all(each == said[0] for each in said), said
            assert received_calls(leaf) == []

    run()
