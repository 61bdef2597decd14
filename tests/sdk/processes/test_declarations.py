"""Declarations of an adapter: one signature is the source of everything, and what cannot be one is refused."""

import asyncio
import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from tests.sdk.aql_library import Document, Library

from interlock.aql.operation_index import NativeOperations
from interlock.aql.protocol.families import Profile, custom_profile
from interlock.sdk.aql import Adapter, Category, DeclarationInvalid
from interlock.sdk.aql.adapter import CANONICAL, SIMILAR, objection
from interlock.sdk.aql.operations import CONCURRENCIES, Concurrency, Schedule
from interlock.sdk.aql.service import Service


async def _nothing(context: object, params: dict[str, Any]) -> None:
    pass


def _declare(adapter: Adapter, name: str, category: Category = Category.READ, **options: Any) -> None:
    def handler(user_id: str = "") -> None:
        """Does it."""

    adapter.add(category, handler, name=name, **options)


@pytest.mark.req("AQL-C.sdk-1", "AQL-4.3-2", "AQL-9.2-1")
def test_one_signature_is_what_is_routed_validated_introspected_and_described() -> None:
    library = Library()
    listed = {definition["name"]: definition for definition in library.service.definitions()}
    assert "create_document" in listed["mcp_aql_create"]["description"]
    shown = library.details("create_document")
    assert [parameter["name"] for parameter in shown["parameters"]] == ["title", "resource_id", "tags"]
    values = {"string", "integer", "number", "boolean", "array", "object", "null", "any"}
    types = {type["name"] for type in library.ask("read", "introspect", params={"query": "types"})["data"]["types"]}
    for name in library.adapter.operations:
        details = library.details(name)
        words = [*(parameter["type"] for parameter in details["parameters"]), details["returns"]["name"]]
        assert {word for each in words for word in each.split(" | ")} <= values | types, name
        request = details["examples"][0]["request"]
        reply = library.ask(details["endpoint"], request["operation"], params=request.get("params", {}))
        code = reply.get("error", {}).get("code", "")
        assert not code.startswith("VALIDATION_"), (name, reply)


@pytest.mark.req("AQL-8.5.2-1", "AQL-8.5.4-1", "AQL-6.2-1")
@pytest.mark.parametrize(
    "name",
    [
        *("CreateUser", "create-user", "9create", "create.user"),
        *("introspect", "execute_agent", "record_execution_step", "complete_execution"),
        *("abort_execution", "confirm_operation", "verify_challenge"),
    ],
)
def test_invalid_and_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(DeclarationInvalid, match=r"8\.5"):
        _declare(Adapter("x"), name)


@pytest.mark.req("AQL-6.2-1")
def test_a_name_is_declared_once() -> None:
    adapter = Adapter("x")
    _declare(adapter, "get_user")
    first = adapter.operations["get_user"]
    with pytest.raises(DeclarationInvalid, match="already"):
        _declare(adapter, "get_user", Category.UPDATE)
    assert adapter.operations["get_user"] is first
    native = NativeOperations()
    native.add(first.declaration, _nothing)
    with pytest.raises(ValueError, match="already"):
        native.add(first.declaration, _nothing)
    assert [entry.declaration for entry in native] == [first.declaration]
    listed = Library().ask("read", "introspect", params={"query": "operations"})["data"]["operations"]
    assert {item["semantic_category"] for item in listed} == {entry.value for entry in Category}


@pytest.mark.req("AQL-4.3-1")
@pytest.mark.parametrize("name", ["userId", "_x", "A"])
def test_parameters_are_snake_case(name: str) -> None:
    members: dict[str, Any] = {}
    exec(f"def get_thing({name}: str) -> None:\n    'One.'", members)
    with pytest.raises(DeclarationInvalid, match=name):
        Adapter("x").read(members["get_thing"])


@pytest.mark.req("AQL-8.5.1-1", "AQL-8.5.1-2", "AQL-8.5.2-2", "AQL-8.5.3-1", "AQL-8.5.3-2")
@pytest.mark.parametrize(
    ("name", "category", "verb"),
    [
        ("add_user", Category.CREATE, "create"),
        ("fetch_document", Category.READ, "get"),
        ("edit_profile", Category.UPDATE, "update"),
        ("remove_account", Category.DELETE, "delete"),
        ("run_workflow", Category.EXECUTE, "execute"),
        ("frobnicate_thing", Category.READ, "get"),
        ("upload_file", Category.CREATE, "create"),
        ("import_data", Category.CREATE, "create"),
        ("export_data", Category.READ, "get"),
        ("stop_job", Category.EXECUTE, "cancel"),
    ],
)
def test_other_verbs_are_warned_of_or_refused_unless_a_reason_is_given(
    name: str, category: Category, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(user_id: str, input: dict[str, Any]) -> None:
        """Does it."""

    def other(user_id: str) -> None:
        """Does it."""

    function = handler if category is Category.UPDATE else other
    if category is Category.UPDATE:
        return _check_naming_alone(name, category, verb)
    with caplog.at_level(logging.WARNING, "interlock.aql"):
        Adapter("x").add(category, function, name=name)
    assert verb in caplog.text
    with pytest.raises(DeclarationInvalid, match=verb):
        Adapter("x", strict_names=True).add(category, function, name=name)
    adapter = Adapter("x", strict_names=True)
    adapter.add(Category.READ, other, name="search")  # a name without a resource that needs none
    adapter.add(category, function, name=name, reason="users say so")
    assert adapter.operations[name].declaration.description.startswith(f"Does it. Users say so. Similar to {verb}.")
    return None


@pytest.mark.req("AQL-8.2-1", "AQL-8.5.2-2", "AQL-8.5.3-1", "AQL-8.3-2")
def test_a_name_of_the_table_belongs_to_its_category(caplog: pytest.LogCaptureFixture) -> None:
    table = {
        Category.CREATE: ("create_user", "upload_file"),
        Category.READ: ("list_users", "get_status", "search"),
        Category.UPDATE: ("update_profile", "rename_file"),
        Category.DELETE: ("delete_user", "purge_cache"),
        Category.EXECUTE: ("execute_job", "cancel_task"),
    }
    for category, names in table.items():
        for name in names:
            assert SIMILAR.get(verb := name.partition("_")[0], verb) in CANONICAL[category]
            others = [objection(name, other, None) for other in Category if other is not category]
            assert name == "search" or None not in others
    with caplog.at_level(logging.WARNING, "interlock.aql"):
        _declare(adapter := Adapter("x", strict_names=True), "search")
        _declare(adapter, "create_thing", Category.CREATE, upsert=True)
    assert (list(adapter.operations), caplog.text) == (["search", "create_thing"], "")
    assert adapter.operations["create_thing"].declaration.upsert is True
    with pytest.raises(DeclarationInvalid, match="'delete_thing': upsert goes with CREATE"):
        _declare(adapter, "delete_thing", Category.DELETE, upsert=True)


def _silent() -> None: ...


def _unnamed(*user_ids: str) -> None:
    """Takes a list that has no names."""


@pytest.mark.req("AQL-1.4-1")
@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (_silent, {"name": "", "description": "x"}, r"operation '': the name"),
        (_silent, {"name": "get_user"}, r"'get_user': the description is missing"),
        (_unnamed, {"name": "get_user"}, r"'get_user' takes \*user_ids: .* parameters have names"),
        (_silent, {"name": "get_user", "description": "x", "category": None}, r"'get_user': the category must be one"),
    ],
)
def test_a_missing_part_of_a_declaration_is_named_and_nothing_is_declared(
    function: Any, options: dict[str, Any], said: str
) -> None:
    adapter = Adapter("x")
    with pytest.raises(DeclarationInvalid, match=said):
        adapter.add(options.pop("category", Category.READ), function, **options)
    assert adapter.operations == {}


def _check_naming_alone(name: str, category: Category, verb: str) -> None:
    assert verb in (objection(name, category, None) or "")
    assert objection(name, category, "users say so") is None


@pytest.mark.req("AQL-7.2-1")
def test_an_adapter_without_operations_answers_introspect() -> None:
    empty = Service(Adapter("x"))
    result = asyncio.run(
        empty.answer("mcp_aql_read", b'{"operation":"introspect","params":{"query":"operations"}}', None)
    )  # type: ignore[arg-type]
    assert b'"name":"introspect"' in result[0]


@pytest.mark.req("AQL-3.3-2", "AQL-C.tool-4")
def test_another_profile_has_other_endpoints() -> None:
    library = Library(profile="discover_query_manage_operate")
    listed = {definition["name"]: definition["annotations"] for definition in library.service.definitions()}
    assert list(listed) == ["mcp_aql_discover", "mcp_aql_query", "mcp_aql_manage", "mcp_aql_operate"]
    assert listed["mcp_aql_query"] == {"readOnlyHint": True, "destructiveHint": False}
    assert listed["mcp_aql_manage"] == {"readOnlyHint": False, "destructiveHint": True}
    own = custom_profile("own", {"query": ["READ", "UPDATE"], "operate": ["CREATE", "DELETE", "EXECUTE"]})
    assert isinstance(own, Profile)
    mixed = {definition["name"]: definition["annotations"] for definition in Library(profile=own).service.definitions()}
    assert mixed["mcp_aql_query"] == {"readOnlyHint": False, "destructiveHint": True}
    reading = Adapter("reading", mode="single")
    _declare(reading, "get_thing")
    (single,) = Service(reading).definitions()
    assert (single["name"], single["annotations"]["readOnlyHint"]) == ("mcp_aql", False)
    assert single["annotations"]["destructiveHint"] is True
    assert library.ask("query", "list_users")["success"]
    assert library.ask("manage", "create_document", params={"title": "x"})["success"]
    assert library.ask("operate", "execute_wait")["success"]
    assert library.ask("discover", "introspect", params={"query": "types"})["success"]
    for family, operation in (("discover", "list_users"), ("query", "introspect"), ("operate", "create_document")):
        assert library.ask(family, operation)["error"]["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    removed = library.ask("manage", "delete_document", params={"resource_id": "a"})
    assert removed["error"]["code"] == "CONFIRMATION_REQUIRED"
    mixed = custom_profile("own", {"query": ["READ", "UPDATE"], "other": ["CREATE", "DELETE", "EXECUTE"]})
    assert isinstance(mixed, Profile)
    for entry in (Library(profile=mixed), Library(mode="single")):
        hints = entry.service.definitions()[0]["annotations"]  # those of the riskiest operation
        assert hints == {"readOnlyHint": False, "destructiveHint": True}


@pytest.mark.req("AQL-C.mode-4", "AQL-3.3-5")
@pytest.mark.parametrize(
    "options",
    [
        {"prefix": "GitHub_"},
        {"prefix": "git-hub_"},
        {"prefix": "github"},
        {"prefix": "a" * 19 + "_"},
        {"mode": "many"},
        {"profile": "nothing"},
        {"concurrency": "none"},
    ],
)
def test_settings_that_are_none_are_refused_with_the_choices(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationInvalid) as refused:
        Adapter("x", **options)
    if "mode" in options:
        assert "semantic, single, all, not 'many'" in str(refused.value)
    prefixed = Library(prefix="github_")
    assert prefixed.service.definitions()[1]["name"] == "github_mcp_aql_read"


TWO = """
from interlock.sdk.aql import Adapter
books, code = Adapter("books"), Adapter("github", prefix={prefix!r})
@books.read
def get_book(title: str) -> str:
    "One book."
    return title
@code.read
def get_issue(number: int) -> int:
    "One issue."
    return number
books.run(code)
"""


@pytest.mark.req("AQL-C.mode-4")
def test_two_adapters_of_one_session_need_a_prefix_and_show_what_is_their_own() -> None:
    refused = subprocess.run(
        [sys.executable, "-c", TWO.format(prefix="")], capture_output=True, text=True, timeout=30, check=False
    )
    assert refused.returncode != 0
    assert "two adapters of this session have the tool 'mcp_aql_create'; give 'github' a prefix" in refused.stderr
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    listing = {"operation": "introspect", "params": {"query": "operations"}}
    detail = {"operation": "introspect", "params": {"query": "operations", "name": "get_issue"}}
    entries = [("mcp_aql_read", listing), ("github_mcp_aql_read", listing), ("github_mcp_aql_read", detail)]
    entries += [("mcp_aql_read", detail), ("mcp_aql_read", {"operation": "get_issue", "params": {"number": 7}})]
    entries += [("github_mcp_aql_read", {"operation": "get_issue", "params": {"number": 7}})]
    calls = [
        {"id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(entries)
    ]
    greeting = [{"id": "i", "method": "initialize", "params": hello}, {"method": "notifications/initialized"}]
    messages = [*greeting, {"id": "l", "method": "tools/list"}, *calls]
    command = [sys.executable, "-c", TWO.format(prefix="github_")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
        process.stdin.flush()
        heard = [json.loads(process.stdout.readline()) for _ in range(len(messages) - 1)]
        process.stdin.close()
    answers = {envelope["id"]: envelope["result"] for envelope in heard}
    families = [f"mcp_aql_{entry}" for entry in ("create", "read", "update", "delete", "execute")]
    assert {tool["name"] for tool in answers["l"]["tools"]} == {*families, *(f"github_{family}" for family in families)}
    current_entries = [answers[number]["structuredContent"] for number in range(len(calls))]
    names = [{operation["name"] for operation in current_entries[number]["data"]["operations"]} for number in (0, 1)]
    assert "get_book" in names[0] and "get_issue" not in names[0]
    assert "get_issue" in names[1] and "get_book" not in names[1]
    assert current_entries[2]["data"]["operation"]["mcpTool"] == "github_mcp_aql_read"
    assert current_entries[3]["data"]["operation"] is None
    assert current_entries[4]["error"]["code"] == "NOT_FOUND_OPERATION"
    assert current_entries[5]["data"] == 7


@pytest.mark.req("AQL-C.mode-1")
def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_AQL_ENDPOINT_MODE", "single")
    monkeypatch.setenv("MCP_AQL_TOOL_PREFIX", "my_")
    assert [tool.name for tool in Adapter("x", mode="semantic").endpoints.tools] == ["my_mcp_aql"]


@pytest.mark.req("AQL-9.3.1-1", "AQL-9.3.3-1")
@pytest.mark.parametrize("kind", CONCURRENCIES)
async def test_calls_run_beside_each_other_exactly_where_that_is_declared(kind: Concurrency) -> None:
    schedule = Schedule(kind, None)

    async def overlap(first: tuple[bool, str], second: tuple[bool, str]) -> bool:
        inside = asyncio.Event()
        leave = asyncio.Event()

        async def hold(is_read: bool, resource: str, entered: asyncio.Event) -> None:
            async with schedule.turn(is_read=is_read, resource=resource):
                entered.set()
                await leave.wait()

        other = asyncio.Event()
        tasks = [asyncio.create_task(hold(*first, inside))]
        await inside.wait()
        tasks.append(asyncio.create_task(hold(*second, other)))
        for _ in range(5):
            await asyncio.sleep(0)
        is_beside = other.is_set()
        leave.set()
        await asyncio.gather(*tasks)
        return is_beside

    read, write, elsewhere = (True, "a"), (False, "a"), (False, "b")
    pairs = ((read, read), (read, write), (write, read), (write, write), (write, elsewhere))
    current_pairs = [await overlap(*pair) for pair in pairs]
    assert (
        current_pairs
        == {
            "serialized": [False, False, False, False, False],
            "read-concurrent": [True, False, False, False, False],
            "resource-locked": [True, True, True, False, True],
            "fully-concurrent": [True, True, True, True, True],
        }[kind]
    )
    shown = await Library(concurrency=kind).call("read", "introspect", params={"query": "operations"})
    assert shown["data"]["_protocol"]["concurrency"] == kind
    assert Adapter("x").concurrency == "read-concurrent"
    with pytest.raises(DeclarationInvalid, match=kind):
        Adapter("x", concurrency="none")  # type: ignore[arg-type]


@pytest.mark.req("AQL-9.3.3-1")
async def test_a_call_beyond_the_shown_number_waits() -> None:
    schedule = Schedule("fully-concurrent", 1)
    async with schedule.turn(is_read=True, resource=""):
        waiting = asyncio.create_task(schedule.turn(is_read=True, resource="").__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    protocol = (await Library(max_concurrent_requests=3).call("read", "introspect", params={"query": "operations"}))[
        "data"
    ]
    assert protocol["_protocol"]["max_concurrent_requests"] == 3
    assert protocol["_protocol"]["supports_etag"] is True


@pytest.mark.req("AQL-8.5.1-3")
@pytest.mark.parametrize(
    ("method", "name", "category"),
    [
        ("POST", "create_item", "CREATE"),
        ("POST", "add_item", "CREATE"),
        ("GET", "get_item", "READ"),
        ("get", "list_items", "READ"),
        ("DELETE", "delete_item", "DELETE"),
        ("POST", "execute_report", "EXECUTE"),
        ("POST", "cancel_report", "EXECUTE"),
        ("POST", "frobnicate", "EXECUTE"),
    ],
)
def test_a_request_of_a_rest_api_has_the_category_of_its_method(method: str, name: str, category: str) -> None:
    adapter = Adapter("rest")

    @adapter.request(method, name=name, description="Does it.", reason="the API calls it so")
    def handler(item_id: str) -> dict[str, str]:
        return {"id": item_id}

    assert adapter.operations[name].declaration.category.value == category
    for changing in ("PUT", "PATCH"):

        @adapter.request(changing, name=f"update_{changing.lower()}", description="Changes it.")
        def change(item_id: str, input: Document) -> Document:
            return input

        assert adapter.operations[f"update_{changing.lower()}"].declaration.category.value == "UPDATE"
    with pytest.raises(DeclarationInvalid, match="TRACE"):
        adapter.request("TRACE", name="trace_item")(handler)
