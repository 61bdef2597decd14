"""READ operations change nothing, and the descriptions of endpoint tools tell requests that work."""

import json
import re
import runpy
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.aql_library import Library

from interlock.aql.protocol.families import PROFILES, AqlEndpoints, Profile, custom_profile, endpoint_tools
from interlock.aql.protocol.requests import OperationRequest, PayloadLimits, read_request
from interlock.aql.protocol.validation import Arguments
from interlock.sdk.aql import Adapter
from interlock.sdk.aql.service import Service
from interlock.sdk.aql.values import Context

PROGRAM = Path(__file__).parents[3] / "examples" / "documents" / "documents.py"


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Adapter, Path]]:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), str(tmp_path / "documents.db")])
    names = runpy.run_path(str(PROGRAM), run_name="example")
    names["create_document"]("One", "a b a", "ada")
    names["create_document"]("Two", "c")
    yield names["documents"], tmp_path / "documents.db"
    names["store"].close()


def context(operation: str) -> Context:
    return Context(operation, "local", lambda: False, lambda *_: None)


@pytest.mark.req("AQL-8.1-2")
async def test_every_read_of_the_example_is_repeated_and_leaves_the_store_as_it_was(
    documents: tuple[Adapter, Path],
) -> None:
    adapter, file = documents
    service = Service(adapter)

    def stored() -> list[Any]:
        with sqlite3.connect(file) as look:
            return look.execute("select * from documents order by id").fetchall()

    async def read(name: str, **params: Any) -> dict[str, Any]:
        text = json.dumps({"operation": name, "params": params}).encode()
        return dict(json.loads((await service.answer("mcp_aql_read", text, context))[0]))

    before = stored()
    some = (await read("list_documents"))["data"]["items"][0]["id"]
    arguments = {
        "get_document": {"document_id": some},
        "search": {"query": "one"},
        "get_execution": {"execution_id": "x"},
    }
    reads = (await read("introspect", query="operations", first=100))["data"]["operations"]
    names = [read["name"] for read in reads if read["semantic_category"] == "READ" and read["name"] != "introspect"]
    assert {"get_document", "list_documents", "search"} <= set(names)
    for name in names:
        one, two = [await read(name, **arguments.get(name, {})) for _ in range(2)]
        assert one == two and stored() == before, name


@pytest.mark.req("AQL-C.page-2", "AQL-C.fields-3")
async def test_collections_are_filtered_sorted_searched_and_shown_as_their_parameters_say(
    documents: tuple[Adapter, Path],
) -> None:
    service = Service(documents[0])

    async def read(operation: str, **params: Any) -> Any:
        text = json.dumps({"operation": operation, "params": params}).encode()
        body = json.loads((await service.answer("mcp_aql_read", text, context))[0])
        return body.get("data", body.get("error"))

    for name, default in (("get_document", "full"), ("list_documents", "standard"), ("search", "minimal")):
        shown = (await read("introspect", query="operations", name=name))["operation"]["parameters"]
        assert [item["default"] for item in shown if item["name"] == "fields"] == [default]
    by_title: dict[str, Any] = {"sort": {"field": "title", "order": "desc"}, "fields": ["title"], "first": 1}
    page = await read("list_documents", **by_title)
    assert [item["title"] for item in page["items"]] == ["Two"] and page["pageInfo"]["hasNextPage"]
    page = await read("list_documents", filter={"author": "ada"}, **by_title)
    assert [item["title"] for item in page["items"]] == ["One"] and not page["pageInfo"]["hasNextPage"]
    assert {"id", "title"} <= set((await read("search", query="one"))["items"][0]) <= {"id", "title", "_etag"}
    content = await read("search", query="a c", first=1, fields=["title"])
    assert len(content["items"]) == 1 and content["pageInfo"]["hasNextPage"]
    refused = await read("list_documents", filter={"colour": "red"})
    assert (refused["code"], refused["details"]["unknown_fields"]) == ("VALIDATION_UNKNOWN_FIELD", ["filter.colour"])


def requests_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in re.findall(r'\{"operation".*\}', text)]


@pytest.mark.req("AQL-C.tool-2")
@pytest.mark.parametrize("profile", [*PROFILES, "own"])
def test_examples_in_descriptions_belong_to_their_tool_and_are_taken(
    documents: tuple[Adapter, Path], profile: str
) -> None:
    own = custom_profile("own", {"look": ["READ"], "touch": ["CREATE", "UPDATE", "DELETE"], "run": ["EXECUTE"]})
    assert isinstance(own, Profile)
    chosen = PROFILES.get(profile, own)
    for adapter in (documents[0], Library(profile=chosen).adapter):
        adapter.endpoints = AqlEndpoints(profile=chosen)
        service = Service(adapter)
        examples = 0
        for tool in service.definitions():
            text = tool["description"]
            family = tool["name"].removeprefix("mcp_aql_")
            example, discovery = (requests_in(line) for line in text.splitlines()[-2:])
            assert discovery[0]["operation"] == "introspect"
            operations = [
                value for value in adapter.operations.values() if chosen.family_of(value.declaration) == family
            ]
            for request in example:
                value = adapter.operations.get(request["operation"])
                read = read_request(json.dumps(request).encode(), PayloadLimits())
                assert isinstance(read, OperationRequest)
                if value is not None:
                    assert chosen.family_of(value.declaration) == family
                    assert isinstance(value.validator.validate(read), Arguments), request
                    examples += 1
            deletes = any(operation.declaration.category.value == "DELETE" for operation in operations)
            assert ("Use caution" in text) is deletes and "Supported operations:" in text
            categories = ", ".join(category.value for category in chosen.categories(family))
            is_said = f"Primary semantic categories: {categories}." in text
            assert is_said is (profile != "crude" and bool(categories))
        assert examples >= 2
    for tool in json.loads(endpoint_tools(AqlEndpoints(profile=chosen))):
        text, family = tool["description"], tool["name"].removeprefix("mcp_aql_")
        categories = [category.value for category in chosen.categories(family)]
        assert {entry["operation"] for entry in requests_in(text)} == {"introspect"}
        assert ("Use caution" in text) is ("DELETE" in categories)
        line = f"Primary semantic categories: {', '.join(categories)}."
        assert (line in text) is (profile != "crude" and bool(categories))
