"""Do list items reach a client renamed and annotated, and otherwise as the server sent them?"""

import json
from typing import Any

import pytest
from msgspec import Raw
from tests.mcp.mcp_schema import LEGACY, MODERN, complaints

from interlock.mcp.items import Item, find_value, prompt_item, resource_item, tool_item
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import decode_object

REVISIONS = {Era.LEGACY: LEGACY, Era.MODERN: MODERN}
SCHEMA = b'{ "type":"object","properties":{"b":{},"a":{"maximum":1208925819614629174706175}},"$defs":{"x":true}}'


def item(text: bytes) -> Item:
    members = decode_object(text)
    assert members is not None
    return members


def shown(text: bytes, server: Era, client: Era, **rest: Any) -> bytes:
    written = tool_item(item(text), **{"name": "s__t", "meta": {}, "hints": {}} | rest, server=server, client=client)
    assert complaints(REVISIONS[client], "Tool", written) == []
    return written


@pytest.mark.parametrize("server", Era)
@pytest.mark.parametrize("client", Era)
def test_a_tool_keeps_its_place_and_bytes_for_everything_but_its_name(server: Era, client: Era) -> None:
    text = rb'{"x-new":[1.0, 2],"name":"t","title":"\u00e9","inputSchema":%b,"icons":[]}' % SCHEMA
    expected = rb'{"x-new":[1.0, 2],"name":"s__t","title":"\u00e9","inputSchema":%b,"icons":[]}' % SCHEMA
    assert shown(text, server, client) == expected


def test_our_meta_joins_the_servers_and_wins() -> None:
    text = b'{"name":"t","inputSchema":{"type":"object"},"_meta":{"com.acme/k":{ },"x-mcpax-hops":9}}'
    written = shown(text, Era.LEGACY, Era.LEGACY, meta={"x-mcpax-hops": 1, "x-mcpax-name": "s.t"})
    assert written.endswith(b'"_meta":{"com.acme/k":{ },"x-mcpax-hops":1,"x-mcpax-name":"s.t"}}')


def test_our_hints_join_the_servers_annotations() -> None:
    text = b'{"name":"t","inputSchema":{"type":"object"},"annotations":{"title":"T","x":1.0}}'
    assert b'"annotations":{"title":"T","x":1.0}' in shown(text, Era.LEGACY, Era.MODERN)
    hinted = shown(text, Era.LEGACY, Era.MODERN, hints={"readOnlyHint": True})
    assert b'"annotations":{"title":"T","x":1.0,"readOnlyHint":true}' in hinted


@pytest.mark.parametrize("odd", [b"null", b"[]", b'"x"'])
def test_meta_and_annotations_that_are_no_objects_give_way_to_ours(odd: bytes) -> None:
    text = b'{"name":"t","inputSchema":{"type":"object"},"_meta":%b,"annotations":%b}' % (odd, odd)
    written = shown(text, Era.LEGACY, Era.LEGACY, meta={"a": 1}, hints={"readOnlyHint": True})
    assert json.loads(written)["_meta"] == {"a": 1}
    assert json.loads(written)["annotations"] == {"readOnlyHint": True}


def test_execution_is_left_out_for_modern_clients_of_legacy_servers() -> None:
    text = b'{"name":"t","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}'
    assert b"execution" not in shown(text, Era.LEGACY, Era.MODERN)
    assert b"execution" in shown(text, Era.LEGACY, Era.LEGACY)


@pytest.mark.parametrize("said", ["optional", "required", 1, None, [], "Forbidden"])
def test_a_server_without_tasks_has_no_tools_that_make_them(said: Any) -> None:
    execution = {"taskSupport": said, "x": 1}
    text = json.dumps({"name": "t", "inputSchema": {"type": "object"}, "execution": execution}).encode()
    assert json.loads(shown(text, Era.LEGACY, Era.LEGACY, tasks=False))["execution"] == {"x": 1}


@pytest.mark.parametrize("execution", [b'{"taskSupport":"forbidden","x":1.0}', b'{"x":1.0}', b"{ }"])
def test_a_tool_that_makes_no_tasks_is_listed_as_its_server_defines_it(execution: bytes) -> None:
    text = b'{"name":"t","inputSchema":{"type":"object"},"execution":%b}' % execution
    assert b'"execution":%b' % execution in shown(text, Era.LEGACY, Era.LEGACY, tasks=False)


OUTPUTS_OF_2026 = [b'{"type":"array"}', b"{}", b'{"type":["object"]}', b'{"anyOf":[]}', b'{"type":"string"}']


@pytest.mark.parametrize("schema", OUTPUTS_OF_2026)
def test_an_output_schema_of_no_object_is_left_out_for_legacy_clients(schema: bytes) -> None:
    text = b'{"name":"t","inputSchema":{"type":"object"},"outputSchema":%b}' % schema
    assert b"outputSchema" not in shown(text, Era.MODERN, Era.LEGACY)
    assert b'"outputSchema":%b' % schema in shown(text, Era.MODERN, Era.MODERN)


@pytest.mark.parametrize("era", Era)
def test_within_an_era_nothing_is_left_out(era: Era) -> None:
    members = item(b'{"name":"t","inputSchema":{"properties":{"a":true}},"execution":{ },"outputSchema":{ }}')
    written = tool_item(members, name="t", meta={}, hints={}, server=era, client=era)
    assert json.loads(written) == {key: json.loads(bytes(value)) for key, value in members.items()}


def test_an_output_schema_of_an_object_passes() -> None:
    text = b'{"name":"t","inputSchema":%b,"outputSchema":%b}' % (SCHEMA, SCHEMA)
    assert shown(text, Era.MODERN, Era.LEGACY).count(SCHEMA) == 2


def test_boolean_schemas_are_shown_as_objects_to_legacy_clients() -> None:
    schema = b'{"type":"object","properties":{"b":true,"a":false,"c":{ }},"z":true}'
    text = b'{"name":"t","inputSchema":%b,"outputSchema":%b}' % (schema, schema)
    said = b'{"type":"object","properties":{"b":{},"a":{"not":{}},"c":{ }},"z":true}'
    assert shown(text, Era.MODERN, Era.LEGACY).count(said) == 2
    assert shown(text, Era.MODERN, Era.MODERN).count(schema) == 2


@pytest.mark.parametrize("client", Era)
def test_a_prompt_is_renamed_and_gains_meta_only_if_there_is_some(client: Era) -> None:
    prompt = item(rb'{"arguments":[{ "name":"\u0061"}],"name":"p","x":1.0}')
    plain = prompt_item(prompt, name="s__p", meta={})
    assert plain == rb'{"arguments":[{ "name":"\u0061"}],"name":"s__p","x":1.0}'
    assert prompt_item(prompt, name="s__p", meta={"k": 1}) == plain[:-1] + b',"_meta":{"k":1}}'
    assert complaints(REVISIONS[client], "Prompt", plain) == []


@pytest.mark.parametrize(("member", "definition"), [("uri", "Resource"), ("uriTemplate", "ResourceTemplate")])
def test_a_resource_gets_its_address_in_the_tree(member: str, definition: str) -> None:
    text = b'{"name":"n","%b":"a:b","size":1,"_meta":{ }}' % member.encode()
    written = resource_item(item(text), member=member, uri='mcpax://s/"é"')
    assert written == f'{{"name":"n","{member}":"mcpax://s/\\"é\\"","size":1,"_meta":{{ }}}}'.encode()
    assert complaints(LEGACY, definition, written) == []


def test_rewriting_leaves_the_servers_item_alone() -> None:
    given = item(b'{"name":"t","inputSchema":{"type":"object"},"execution":{},"_meta":{"a":1},"annotations":{}}')
    before = {key: bytes(value) for key, value in given.items()}
    tool_item(given, name="x", meta={"b": 1}, hints={"readOnlyHint": True}, server=Era.LEGACY, client=Era.MODERN)
    prompt_item(given, name="x", meta={"b": 1})
    resource_item(given, member="uri", uri="x")
    assert {key: bytes(value) for key, value in given.items()} == before


def test_a_member_that_cannot_be_read_is_none() -> None:
    members = {"a": Raw(b"1e400"), "b": Raw(b'{"x":[1]}')}
    assert (find_value(members, "a"), find_value(members, "b"), find_value(members, "c")) == (None, {"x": [1]}, None)
