"""UPDATE and DELETE of an adapter: the deep merge, what `input` may hold, and versions."""

import asyncio
import json
import re
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.aql_library import Document, Library, Metadata

from interlock.aql.protocol.model import AqlOperation, AqlParameter, Category, TypeDeclaration
from interlock.aql.protocol.validation import merged
from interlock.sdk.aql import Adapter, DeclarationInvalid
from interlock.sdk.aql.service import Service
from interlock.sdk.subserver import tools

leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
objects = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), max_leaves=8),
    max_size=4,
)


def _reference(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2, as printed."""
    if not isinstance(patch, dict):
        return patch
    instance = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            instance.pop(name, None)
        else:
            instance[name] = _reference(instance.get(name), value)
    return instance


@pytest.mark.req("AQL-4.5.1-1", "AQL-4.5.1-2", "AQL-4.5.1-3", "AQL-4.5.1-4")
@given(objects, objects)
def test_the_merge_is_that_of_rfc_7396(stored: dict[str, Any], changes: dict[str, Any]) -> None:
    before = json.dumps(stored)
    expected = _reference(stored, changes)
    assert merged(stored, changes) == expected
    assert list(merged(stored, changes)) == list(expected)
    assert json.dumps(stored) == before


@pytest.mark.req("AQL-4.5.1-3", "AQL-4.5.1-4", "AQL-4.5.1-5", "AQL-4.5.2-1")
def test_the_worked_example() -> None:
    before = {
        "title": "Old Title",
        "metadata": {"priority": "low", "tags": ["draft"], "author": "alice"},
    }
    changes = {"title": "New Title", "metadata": {"priority": "high", "tags": ["published", "reviewed"]}}
    after = {
        "title": "New Title",
        "metadata": {"priority": "high", "tags": ["published", "reviewed"], "author": "alice"},
    }
    assert merged(before, changes) == after
    removed = {"metadata": {"deprecated_field": None}}
    assert merged({"metadata": {"deprecated_field": 1, "author": "alice"}}, removed) == {
        "metadata": {"author": "alice"}
    }
    assert merged({"metadata": {"author": 1}}, {"metadata": {"author": None}}) == {"metadata": {}}
    assert merged({"a": 1}, {"b": None, "a": ""}) == {"a": ""}
    assert merged({"tags": [1]}, {"tags": []}) == {"tags": []}
    assert merged({"tags": [{"a": 1, "b": 2}]}, {"tags": [{"a": 3}]}) == {"tags": [{"a": 3}]}
    assert merged({"metadata": {"author": 1}}, {"metadata": {}}) == {"metadata": {"author": 1}}
    assert merged({"a": 1}, {"a": {"x": 1, "y": None}}) == {"a": {"x": 1}}


class Details(msgspec.Struct):
    size: int = 3
    note: str | None = None
    deprecated_field: str | msgspec.UnsetType = msgspec.UNSET


class Item(msgspec.Struct, rename="camel"):
    item_id: str
    owner: str | None
    body: str = ""
    rest: Annotated[str | msgspec.UnsetType, "What else there is."] = msgspec.UNSET
    rank: int | None = 7
    shelf: Details | None = None
    details: Details = msgspec.field(default_factory=Details)


class Stock:
    """An adapter with one item. `is_typed`: the type of the item is in the signature of `load`."""

    def __init__(self, *, is_typed: bool = True) -> None:
        self.item = Item("a", "ada", "text", "more", 1, Details(), Details(1, "x", "old"))
        adapter = Adapter("stock")

        def load_item(item_id: str) -> Item:
            return self.item

        def load_untyped(item_id: str):  # type: ignore[no-untyped-def]
            return self.item

        @adapter.update(load=load_item if is_typed else load_untyped)
        def update_item(item_id: str, input: Item) -> Item:
            """Changes it."""
            self.item = input
            return input

        self.service = Service(adapter)

    def ask(self, operation: str, **params: Any) -> dict[str, Any]:
        tool = "mcp_aql_update" if operation == "update_item" else "mcp_aql_read"
        text = json.dumps({"operation": operation, "params": params})
        call = tools.Context(lambda *_: None, {})
        envelope: dict[str, Any] = json.loads(asyncio.run(self.service.answer(tool, text.encode(), call))[0])
        return envelope


@pytest.mark.req("AQL-4.5.2-2", "AQL-4.7.6-1")
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_removed_field_is_absent_or_exists_without_a_value_or_is_refused(is_typed: bool) -> None:
    stock = Stock(is_typed=is_typed)
    changes = {"rest": None, "details": {"deprecated_field": None, "note": None}, "rank": None, "shelf": None}
    data = stock.ask("update_item", item_id="a", input={**changes, "owner": None})["data"]
    assert "rest" not in data  # it can be absent
    assert data["details"] == {"size": 1, "note": None}
    assert (data["owner"], data["rank"], data["shelf"]) == (None, None, None)  # they exist without a value
    assert data["body"] == "text"
    before = stock.item
    for input, place in (
        ({"body": None, "rank": 3}, "input.body"),
        ({"details": None}, "input.details"),
        ({"details": {"size": None}}, "input.details.size"),
    ):
        error = stock.ask("update_item", item_id="a", input=input)["error"]
        assert (error["code"], error["details"]["param_name"]) == ("VALIDATION_INVALID_TYPE", place)
        assert error["details"]["actual_type"] == "null"
        assert stock.item is before
    again = stock.ask("update_item", item_id="a", input={"rest": "", "body": ""})["data"]
    assert (again["rest"], again["body"]) == ("", "")  # an empty string removes nothing


@pytest.mark.req("AQL-4.5.2-2", "AQL-4.7.6-2")
def test_introspection_says_which_fields_null_removes() -> None:
    stock = Stock()
    shown = {}
    for name in ("ItemInput", "DetailsInput"):
        declared = stock.ask("introspect", query="types", name=name)["data"]["type"]
        shown |= {field["name"]: (field["type"], field.get("description", "")) for field in declared["fields"]}
    assert shown["rest"] == ("string | null", "What else there is. null removes it.")
    assert shown["deprecated_field"] == ("string | null", "null removes it.")
    assert shown["rank"] == ("integer | null", "null: it then has no value.")
    assert shown["shelf"] == ("DetailsInput | null", "null: it then has no value.")
    for name, word in (("body", "string"), ("size", "integer"), ("details", "DetailsInput")):
        assert shown[name] == (word, "It always has a value: null is refused.")


@pytest.fixture
def library() -> Library:
    filled_library = Library()
    filled_library.documents["a"] = Document("a", "First", Metadata(priority="low", tags=["draft"], author="alice"))
    return filled_library


@pytest.mark.req("AQL-4.5-1", "AQL-4.5-2")
def test_updated_fields_are_in_input(library: Library) -> None:
    reply = library.ask("update", "update_document", params={"resource_id": "a", "input": {"title": "New"}})
    assert reply["data"]["title"] == "New"
    assert library.documents["a"].metadata.author == "alice"
    flat = library.ask("update", "update_document", params={"resource_id": "a", "title": "Flat"})
    assert flat["error"]["code"] == "VALIDATION_MISSING_PARAM"
    assert library.documents["a"].title == "New"
    field = AqlParameter(name="input", type="Changes")
    changes = TypeDeclaration(name="Changes", kind="object")
    for category, parameters, reply in (
        (Category.UPDATE, (field,), changes),
        (Category.UPDATE, (), None),
        (Category.CREATE, (field,), None),
    ):
        aql_operation = AqlOperation(
            name="x", category=category, description="x", parameters=parameters, types=(changes,)
        )
        assert aql_operation.input_type is reply
    with pytest.raises(DeclarationInvalid, match="in a parameter 'input'"):

        @Adapter("x").update
        def update_nothing(thing_id: str) -> None:
            """Changes it."""

    with pytest.raises(DeclarationInvalid, match="'title' can be left out, so it belongs into 'input'"):

        @Adapter("x").update
        def update_thing(thing_id: str, input: Document, title: str = "") -> None:
            """Changes it."""


@pytest.mark.req("AQL-4.5-2", "AQL-9.3.2-2")
def test_identifiers_are_beside_input(library: Library) -> None:
    shown = library.parameters("update_document")
    assert (shown["resource_id"]["required"], shown["input"]["type"]) == (True, "DocumentInput")
    assert shown["if_match"]["type"] == "string"
    fields = library.ask("read", "introspect", params={"query": "types", "name": "DocumentInput"})["data"]["type"][
        "fields"
    ]
    assert [field["name"] for field in fields] == ["title", "metadata"]
    assert "if_match" in library.parameters("delete_document")
    assert "if_match" not in library.parameters("get_document")
    assert "if_match" not in library.parameters("create_document")


@pytest.mark.req("AQL-4.5.3-1", "AQL-4.5.3-2")
def test_input_is_needed_and_is_an_object(library: Library) -> None:
    missing = library.ask("update", "update_document", params={"resource_id": "a", "title": "x"})["error"]
    assert missing["code"] == "VALIDATION_MISSING_PARAM"
    assert missing["details"]["param_name"] == "input"
    assert missing["details"]["unknown_params"] == ["title"] and "Did you mean" not in missing["message"]
    near = library.ask("update", "update_document", params={"resource_id": "a", "imput": {}})["error"]
    assert "Did you mean 'input'?" in near["message"]
    for wrong, word in ((None, "null"), ([], "array"), ("{}", "string"), (1, "number")):
        error = library.ask("update", "update_document", params={"resource_id": "a", "input": wrong})["error"]
        assert error["code"] == "VALIDATION_INVALID_TYPE"
        entries = [error["details"][key] for key in ("param_name", "expected_type", "actual_type")]
        assert entries == ["input", "object", word]
    unchanged = library.ask("update", "update_document", params={"resource_id": "a", "input": {}})
    assert unchanged["data"]["title"] == "First"


@pytest.mark.req("AQL-4.5.3-3", "AQL-4.5.3-4", "AQL-4.5.3-5", "AQL-4.5.2-1")
@pytest.mark.parametrize(
    ("changes", "code", "place"),
    [
        ({"metadata": {"priority": 7}, "title": "x"}, "VALIDATION_INVALID_TYPE", "input.metadata.priority"),
        ({"title": None}, "VALIDATION_INVALID_TYPE", "input.title"),
        ({"title": "x" * 101, "metadata": {"author": "bob"}}, "VALIDATION_INVALID_VALUE", "input.title"),
        ({"titel": 1}, "VALIDATION_UNKNOWN_FIELD", "titel"),
        ({"metadata": {"colour": 1}}, "VALIDATION_UNKNOWN_FIELD", "input.metadata.colour"),
        ({"resource_id": "a"}, "VALIDATION_UNKNOWN_FIELD", "resource_id"),
    ],
)
def test_the_fields_of_input_are_those_of_the_resource(
    library: Library, changes: dict[str, Any], code: str, place: str
) -> None:
    error = library.ask("update", "update_document", params={"resource_id": "a", "input": changes})["error"]
    assert error["code"] == code
    details = error["details"]
    assert details.get("param_name") == place or place in details["unknown_fields"]
    if place == "titel":
        assert details["did_you_mean"] == {"titel": "title"}
    if place == "resource_id":
        assert "beside input" in error["message"]
    assert library.documents["a"] == Document("a", "First", Metadata(priority="low", tags=["draft"], author="alice"))


@pytest.mark.req("AQL-8.1-3")
def test_an_update_needs_what_it_updates(library: Library) -> None:
    error = library.ask("update", "update_document", params={"resource_id": "b", "input": {"title": "x"}})["error"]
    assert error["code"] == "NOT_FOUND_RESOURCE"
    assert list(library.documents) == ["a"]


@pytest.mark.req("AQL-9.3.2-1", "AQL-9.3.2-2", "AQL-9.3.2-3", "AQL-C.err-3")
async def test_a_version_is_shown_asked_for_and_refused_when_stale(library: Library) -> None:
    tag = (await library.call("read", "get_document", resource_id="a"))["data"]["_etag"]
    assert re.fullmatch(r'W/"[0-9a-f]{8,}"', tag)
    listed = (await library.call("read", "list_documents", fields=["title"]))["data"]["items"]
    assert listed == [{"title": "First", "_etag": tag}]

    async def update(title: str, expected: str) -> dict[str, Any]:
        params = {"resource_id": "a", "input": {"title": title}, "if_match": expected}
        return await library.call("update", "update_document", params=params)

    both = await asyncio.gather(update("One", tag), update("Two", tag))
    assert sorted(entry["success"] for entry in both) == [False, True]
    (error,) = (entry["error"] for entry in both if not entry["success"])
    (done,) = (entry["data"] for entry in both if entry["success"])
    assert error["code"] == "CONFLICT_VERSION_MISMATCH"
    assert error["message"] == "The resource was changed by somebody else; read it again"
    assert error["details"] == {"expected": tag, "current": done["_etag"]}
    assert done["_etag"] != tag
    assert library.documents["a"].title == done["title"]


@pytest.mark.req("AQL-C.page-3")
def test_a_dry_run_changes_nothing_and_only_some_operations_have_a_dry_run(library: Library) -> None:
    params = {"resource_id": "a", "input": {"title": "Shown"}, "dry_run": True}
    assert library.ask("update", "update_document", params=params)["data"]["title"] == "Shown"
    assert library.documents["a"].title == "First"
    assert "dry_run" in library.parameters("update_document")
    refused = library.ask("create", "create_document", params={"title": "x", "dry_run": True})
    assert refused["error"]["code"] == "VALIDATION_UNKNOWN_PARAM"


def test_a_resource_of_one_struct_type_is_validated_as_a_whole_after_the_merge(library: Library) -> None:
    changes = {"metadata": {"author": None, "priority": None, "tags": []}}
    reply = library.ask("update", "update_document", params={"resource_id": "a", "input": changes})
    assert reply["success"]
    assert msgspec.to_builtins(library.documents["a"]) == {"resource_id": "a", "title": "First", "metadata": {}}
