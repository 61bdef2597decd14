"""Bindings for tests: one entry of implements[], a contract and a listed tool, brought together. The tools are those
that the reference servers list."""

from collections.abc import Mapping
from typing import Any

from tests.drivers.driver_texts import as_contract, as_driver, binding, contract, driver

from interlock.drivers.protocol.binding.match import Bound, check_binding, contract_misfits, match
from interlock.drivers.protocol.model import Contract, Driver, ToolBinding
from interlock.drivers.protocol.problems import FileProblem

DRAFT_07 = {"$schema": "http://json-schema.org/draft-07/schema#"}
DRAFT_2020_12 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
READS = {"readOnlyHint": True, "openWorldHint": False}
STRING = {"type": "string"}
CONTENT = {
    **DRAFT_07,
    "type": "object",
    "properties": {"content": STRING},
    "required": ["content"],
    "additionalProperties": False,
}


def input_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """An inputSchema, or the inputs of a contract."""
    return {"type": "object", "properties": properties, "required": list(required)}


READ_FILE = {
    "name": "read_file",
    "inputSchema": {**DRAFT_07, **input_schema("path", path=STRING, tail={"type": "number"}, head={"type": "number"})},
    "annotations": READS,
    "outputSchema": CONTENT,
}
WRITE_FILE = {
    "name": "write_file",
    "inputSchema": {**DRAFT_07, **input_schema("path", "content", path=STRING, content=STRING)},
    "annotations": {"readOnlyHint": False, "idempotentHint": True, "destructiveHint": True, "openWorldHint": False},
    "outputSchema": CONTENT,
}
LIST_DIRECTORY = {
    "name": "list_directory",
    "inputSchema": {**DRAFT_07, **input_schema("path", path=STRING)},
    "annotations": READS,
    "outputSchema": CONTENT,
}
_ENTITY = {
    **input_schema(
        *("name", "entityType", "observations"),
        name=STRING,
        entityType=STRING,
        observations={"type": "array", "items": STRING},
    ),
    "additionalProperties": False,
}
_RELATION = {
    **input_schema("from", "to", "relationType", **{"from": STRING, "to": STRING, "relationType": STRING}),
    "additionalProperties": False,
}
READ_GRAPH = {
    "name": "read_graph",
    "inputSchema": {**DRAFT_07, "type": "object", "properties": {}},
    "annotations": READS,
    "outputSchema": {
        **DRAFT_07,
        **input_schema(
            *("entities", "relations"),
            entities={"type": "array", "items": _ENTITY},
            relations={"type": "array", "items": _RELATION},
        ),
        "additionalProperties": False,
    },
}
ECHO = {"name": "echo", "inputSchema": {**DRAFT_07, **input_schema("message", message=STRING)}}
GIT_STATUS = {
    "name": "git_status",
    "inputSchema": input_schema("repo_path", repo_path={"title": "Repo Path", **STRING}),
}
READ_QUERY = {"name": "read_query", "inputSchema": input_schema("query", query=STRING)}


def entry(extract: str | None = None, mapping: Mapping[str, str] | None = None, **ours: Any) -> dict[str, Any]:
    """`ours`: metadata.interlock; keys of the entry itself begin with `own_`."""
    mcp: dict[str, Any] = {"tool_name": "tool"}
    if extract is not None:
        mcp["result_extract"] = extract
    if mapping is not None:
        mcp["argument_mapping"] = dict(mapping)
    extensions = {key: value for key, value in ours.items() if not key.startswith("own_")}
    own = {key.removeprefix("own_"): value for key, value in ours.items() if key.startswith("own_")}
    metadata = {"mcp": mcp, "interlock": extensions} if extensions else {"mcp": mcp}
    return binding(metadata=metadata, **own)


def files(
    one: dict[str, Any], promise: dict[str, Any] | None = None, **of_driver: Any
) -> tuple[Driver, ToolBinding, Contract]:
    reading = as_driver(driver(implements=[one], **of_driver))
    assert reading.value is not None, reading.problems
    promised = as_contract(promise or contract())
    assert promised.value is not None, promised.problems
    return reading.value, reading.value.implements[0], promised.value


def checked(one: dict[str, Any], promise: dict[str, Any] | None = None, **options: Any) -> list[tuple[str, str]]:
    """Code and message of what is wrong before any server is asked."""
    these = files(one, promise)
    problems = (*check_binding(*these, **options), *contract_misfits(*these))
    assert all(each.severity == "error" and each.hint and each.line for each in problems)
    return [(each.code, each.message) for each in problems]


def matched(
    one: dict[str, Any], promise: dict[str, Any], tool: Mapping[str, Any], **options: Any
) -> Bound | tuple[FileProblem, ...]:
    return match(*files(one, promise), tool, **options)


def bound(one: dict[str, Any], promise: dict[str, Any], tool: Mapping[str, Any], **options: Any) -> Bound:
    found = matched(one, promise, tool, **options)
    assert isinstance(found, Bound), [str(each) for each in found]
    return found


def refused(one: dict[str, Any], promise: dict[str, Any], tool: Mapping[str, Any], **options: Any) -> list[FileProblem]:
    found = matched(one, promise, tool, **options)
    assert not isinstance(found, Bound), "it was bound"
    errors = [each for each in found if each.severity == "error"]
    assert errors and all(each.code == "contract_mismatch" and each.hint and each.line for each in errors)
    return errors


def promising(outputs: Any, inputs: Any = None, **changed: Any) -> dict[str, Any]:
    """A contract with these outputs."""
    return contract(outputs=outputs, inputs=inputs if inputs is not None else input_schema(), **changed)


def giving(outputs: Any = None, inputs: Any = None, **changed: Any) -> dict[str, Any]:
    """A tool with this outputSchema."""
    made = {"name": "tool", "inputSchema": inputs if inputs is not None else input_schema(), **changed}
    return made if outputs is None else {**made, "outputSchema": outputs}


def text_result(*texts: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": each} for each in texts], **more}
