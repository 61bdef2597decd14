"""Collections of an adapter: pages by cursor, field selection, sorting."""

from typing import Any, Literal

import msgspec
import pytest
from tests.sdk.aql_library import Document, Library

from interlock.sdk.aql import Listing, Page, Sort
from interlock.sdk.aql.service import Service


@pytest.fixture
def library() -> Library:
    filled_library = Library()
    for number in range(130):
        key = f"d{number:03}"
        filled_library.documents[key] = Document(key, f"t{129 - number:03}")
    return filled_library


@pytest.mark.req("AQL-C.page-1")
@pytest.mark.parametrize(
    "params",
    [
        {"first": 1, "last": 1},
        {"after": "x"},
        {"before": "x"},
        {"first": 1, "before": "x"},
        {"last": 1, "after": "x"},
        {"first": 1, "after": "dGFtcGVyZWQ"},
        {"first": 1, "after": "!!"},
    ],
)
def test_combinations_that_make_no_sense_and_changed_cursors_are_refused(
    library: Library, params: dict[str, Any]
) -> None:
    assert library.ask("read", "list_documents", params=params)["error"]["code"] == "VALIDATION_INVALID_TYPE"


@pytest.mark.req("AQL-C.page-1")
def test_walking_pages_while_things_come_and_go_repeats_and_loses_nothing(library: Library) -> None:
    seen: list[str] = []
    params: dict[str, Any] = {"first": 20}
    while True:
        data = library.ask("read", "list_documents", params=params)["data"]
        seen += [item["resource_id"] for item in data["items"]]
        library.documents.pop(f"d{len(seen):03}x", None)
        library.documents[f"d{len(seen):03}a"] = Document(f"d{len(seen):03}a", "new")
        library.documents[f"d{len(seen) // 2:03}b"] = Document(f"d{len(seen) // 2:03}b", "new")
        if not data["pageInfo"]["hasNextPage"]:
            break
        params["after"] = data["pageInfo"]["endCursor"]
    old = [entry for entry in seen if len(entry) == 4]
    assert old == [f"d{number:03}" for number in range(130)]
    assert len(set(seen)) == len(seen)


@pytest.mark.req("AQL-C.page-1")
def test_pages_have_a_default_and_a_maximum_and_go_backwards(library: Library) -> None:
    data = library.ask("read", "list_documents")["data"]
    assert len(data["items"]) == 20
    assert data["pageInfo"]["totalCount"] == 130
    assert (data["pageInfo"]["hasNextPage"], data["pageInfo"]["hasPreviousPage"]) == (True, False)
    large = library.ask("read", "list_documents", params={"first": 500})
    assert len(large["data"]["items"]) == 100
    assert large["warnings"][0]["code"] == "VALIDATION_TRUNCATED_WARNING"
    assert large["warnings"][0]["details"] == {
        "field": "first",
        "original_count": 500,
        "truncated_count": 100,
        "limit": 100,
    }
    last = library.ask("read", "list_documents", params={"last": 2})["data"]
    assert [item["resource_id"] for item in last["items"]] == ["d128", "d129"]
    before = library.ask("read", "list_documents", params={"last": 2, "before": last["pageInfo"]["startCursor"]})[
        "data"
    ]
    assert [item["resource_id"] for item in before["items"]] == ["d126", "d127"]
    assert before["pageInfo"]["hasNextPage"]
    assert library.ask("read", "list_documents", params={"first": 0})["data"]["items"] == []


@pytest.mark.req("AQL-C.page-2")
def test_sorting_combines_with_fields_and_pages(library: Library) -> None:
    params = {"sort": {"field": "title"}, "first": 1, "fields": ["title"]}
    (item,) = library.ask("read", "list_documents", params=params)["data"]["items"]
    assert item["title"] == "t000"
    falling: dict[str, Any] = {"sort": {"field": "title", "order": "desc"}, "fields": ["title"]}
    seen: list[str] = []
    forwards: dict[str, Any] = {"first": 100}
    for _ in range(2):
        data = library.ask("read", "list_documents", params={**falling, **forwards})["data"]
        seen += [item["title"] for item in data["items"]]
        forwards["after"] = data["pageInfo"]["endCursor"]
    assert seen == [f"t{number:03}" for number in reversed(range(130))] and not data["pageInfo"]["hasNextPage"]
    back = {"last": 2, "before": data["pageInfo"]["startCursor"]}
    data = library.ask("read", "list_documents", params={**falling, **back})["data"]
    assert [item["title"] for item in data["items"]] == ["t031", "t030"]
    wrong = library.ask("read", "list_documents", params={"sort": {"field": "colour"}})["error"]
    assert wrong["details"]["param_name"] == "sort.field"
    odd = library.ask("read", "list_documents", params={"sort": {"field": "title", "colour": 1}})["error"]
    assert odd["details"]["unknown_fields"] == ["sort.colour"]


@pytest.mark.req("AQL-C.fields-1", "AQL-C.fields-2", "AQL-C.fields-3", "AQL-C.fields-4")
def test_fields_are_presets_or_paths(library: Library) -> None:
    def item(**params: Any) -> dict[str, Any]:
        data = library.ask("read", "list_documents", params={"first": 1, **params})["data"]
        assert data["pageInfo"]["hasNextPage"]
        shown = dict(data["items"][0])
        shown.pop("_etag")
        return shown

    assert item() == {"resource_id": "d000", "title": "t129"}
    assert item(fields="minimal") == {"resource_id": "d000"}
    assert item(fields="full") == {"resource_id": "d000", "title": "t129", "metadata": METADATA}
    assert item(fields=["metadata.tags", "title"]) == {"title": "t129", "metadata": {"tags": []}}
    whole = library.ask("read", "get_document", params={"resource_id": "d000"})["data"]
    assert whole["metadata"] == METADATA
    for wrong in ("tiny", ["Title"], ["a..b"], 7):
        error = library.ask("read", "get_document", params={"resource_id": "d000", "fields": wrong})["error"]
        assert error["code"] == "VALIDATION_INVALID_VALUE"
    unknown = library.ask("read", "get_document", params={"resource_id": "d000", "fields": ["colour"]})["error"]
    assert unknown["code"] == "VALIDATION_UNKNOWN_FIELD"
    refused = library.ask("create", "create_document", params={"title": "x", "fields": "full"})
    assert refused["error"]["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert library.parameters("list_documents")["fields"]["default"] == "standard"
    type = library.ask("read", "introspect", params={"query": "types", "name": "FieldSelection"})["data"]["type"]
    assert [field["name"] for field in type["fields"]] == ["presets", "fields", "computed_fields"]


METADATA = {"priority": None, "tags": [], "author": None}


class Wanted(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which titles."""

    begins: str = ""


@pytest.mark.req("AQL-C.page-2")
def test_a_filter_and_a_query_combine_with_sorting_fields_and_pages(library: Library) -> None:
    @library.adapter.read(name="search_documents", reason="people search")
    async def search_documents(
        page: Page, query: str, filter: Wanted | None = None, sort: Sort[Literal["title", "resource_id"]] | None = None
    ) -> Listing[Document]:
        """Documents with this in their title."""
        begins = "" if filter is None else filter.begins
        values = [
            value for value in library.documents.values() if query in value.title and value.title.startswith(begins)
        ]
        return page.of(values, key=lambda entry: getattr(entry, "resource_id" if sort is None else sort.field))

    library.service = Service(library.adapter)
    params = {"query": "1", "filter": {"begins": "t12"}, "sort": {"field": "title"}, "first": 2, "fields": ["title"]}
    data = library.ask("read", "search_documents", params=params)["data"]
    assert [item["title"] for item in data["items"]] == ["t120", "t121"]
    assert data["pageInfo"]["totalCount"] == 10
    wrong = library.ask("read", "search_documents", params={"query": "1", "filter": {"colour": 1}})["error"]
    assert wrong["details"]["unknown_fields"] == ["filter.colour"]
