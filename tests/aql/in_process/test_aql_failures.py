"""What is told when something goes wrong: the details of each code, and nothing of the node's insides."""

import ast
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from tests.aql.aql_node import OPEN, TEXT, WRITES, AqlClient, aql_node, received_calls, run_until_idle, schema, tool
from tests.support.frozen_node import in_frozen_time

from interlock.aql.operation_index import OperationContext
from interlock.aql.protocol.errors import resource_not_found
from interlock.aql.protocol.model import RESERVED_BY_VERSION, SPEC_VERSION, AqlOperation, Category, check_operation
from interlock.aql.protocol.results import read_result
from interlock.aql.surface import AqlSurface

SOURCES = Path(__file__).parents[3] / "src" / "interlock"
LEAKS = [
    *(re.compile(word, re.IGNORECASE) for word in (r"typeerror", r"referenceerror", r"syntaxerror", r"at\s+\S+")),
    *(re.compile(word, re.IGNORECASE) for word in (r"/src/", r"/node_modules/", r"\.ts:\d+", r"\.js:\d+", r"\.py\b")),
]
MAKERS = {"failure", "invalid_value", "invalid_type", "internal_error", "unknown_fields", "unexpected", "Failure"}


def leaks(message: str) -> list[str]:
    return [leak.pattern for leak in LEAKS if leak.search(message)]


def templates(path: Path) -> list[str]:
    """The texts that a module makes failures with."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("errors.") in MAKERS:
            given = [*node.args, *(word.value for word in node.keywords)]
            found += [
                one.value
                for argument in given
                for one in ast.walk(argument)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
    return found


@pytest.mark.req("AQL-C.intro-12")
def test_no_template_of_a_message_looks_like_a_leak() -> None:
    folders = ("aql", "safety", "sdk/aql")
    modules = [path for folder in folders for path in (SOURCES / folder).rglob("*.py")]
    texts = [(path.name, text) for path in modules for text in templates(path)]
    assert len(texts) > 100
    assert [one for one in texts if leaks(one[1])] == []


@pytest.mark.req("AQL-C.intro-12", "AQL-5.1-1")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_fault_is_an_envelope_with_a_reference_that_the_log_repeats(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    def break_(*_: Any, **__: Any) -> Any:
        raise KeyError("/src/secret.py at line 3")

    async def handler(context: OperationContext, params: dict[str, Any]) -> Any:
        break_()

    @in_frozen_time
    async def run() -> None:
        async with aql_node(tmp_path) as here:
            leaf = await here.leaf()
            declared = AqlOperation(name="get_broken", category=Category.READ, description="Breaks.")
            here.node.calls.native_operations.add(declared, handler)
            client = await here.client(era)

            async def fails(arguments: Any) -> dict[str, Any]:
                result = await client.result("mcp_aql_read", arguments)
                said: dict[str, Any] = json.loads(result["content"][0]["text"])
                assert said["success"] is False and "data" not in said and result["isError"] is True
                assert said["error"]["code"] == "INTERNAL_ERROR" and not leaks(said["error"]["message"])
                return said

            refs = [(await fails({"operation": "get_broken"}))["error"]["details"]["ref"]]
            with monkeypatch.context() as patched:
                patched.setattr(AqlSurface, "_introspect", break_)
                said = await fails({"operation": "introspect", "params": {"query": "operations"}})
                assert set(said["error"]) == {"code", "message"}  # its shape has no place for the reference
            with monkeypatch.context() as patched:
                patched.setattr("interlock.aql.answers.read_result", break_)
                refs.append((await fails({"operation": "docs__list_users"}))["error"]["details"]["ref"])
            for broken in ({"result": {"content": 5}}, {"result": []}):
                leaf.mute = {"tools/call"}
                waits = client.client.begin(
                    "tools/call", {"name": "mcp_aql_read", "arguments": {"operation": "docs__list_users"}}
                )
                await run_until_idle()
                leaf.say({"jsonrpc": "2.0", "id": leaf.heard[-1]["id"], **broken})
                await run_until_idle()
                said = json.loads(waits.result()["result"]["content"][0]["text"])
                assert said["error"]["code"] == "INTERNAL_ERROR" and not leaks(said["error"]["message"])
            waits = client.client.begin(
                "tools/call", {"name": "mcp_aql_read", "arguments": {"operation": "docs__list_users"}}
            )
            await run_until_idle()
            leaf.cut()  # it dies in the middle
            await run_until_idle()
            said = json.loads(waits.result()["result"]["content"][0]["text"])
            assert said["success"] is False and said["error"]["code"] == "INTERNAL_ERROR"
            assert all(len(ref) == 12 and ref in caplog.text for ref in refs)

    run()


@pytest.mark.req("AQL-C.err-6", "AQL-C.err-2")
def test_every_status_of_a_server_has_its_code_and_is_in_the_details() -> None:
    own = {401: "PERMISSION_DENIED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND_RESOURCE"}
    own |= {409: "CONFLICT_ALREADY_EXISTS", 429: "RATE_LIMIT_EXCEEDED"}
    for status in range(400, 600):
        for told in ({"status": status}, {"error": {"statusCode": status}}, {"http_status": status}):
            result = {"isError": True, "content": [{"type": "text", "text": json.dumps({**told, "message": "no"})}]}
            failed = read_result(json.dumps(result).encode(), tool="a.b", operation="a__b").failure
            assert failed is not None and failed.details is not None
            default = "INTERNAL_ERROR" if status >= 500 else "VALIDATION_INVALID_TYPE"
            assert (failed.code, failed.details["http_status"]) == (own.get(status, default), status)
            assert isinstance(failed.details["upstream_error"], str)


async def details_of(client: AqlClient, operation: str, params: dict[str, Any], family: str = "read") -> dict[str, Any]:
    return dict((await client.do(operation, params, family))["error"]["details"])


@pytest.mark.req("AQL-C.err-2")
@in_frozen_time
async def test_the_details_of_each_code_are_as_the_table_has_them(tmp_path: Path) -> None:
    given = schema(("job",), job=TEXT, size={"type": "integer"}, password={"type": "string", "maxLength": 3})
    tools = [tool("run_job", annotations=WRITES, inputSchema=given), tool("list_x", inputSchema=schema())]
    rule = '[[access]]\nwho = ["client:small"]\ntools = ["docs.list_x"]\nscope = "read"\n'
    async with aql_node(tmp_path, OPEN + rule) as here:
        leaf = await here.leaf(tools=tools)
        client = here.modern()
        typed = await details_of(client, "docs__run_job", {"job": 5}, "execute")
        assert typed == {"param_name": "job", "expected_type": "string", "actual_type": "integer", "value": 5}
        long = await details_of(client, "docs__run_job", {"job": "j", "size": "x" * 201}, "execute")
        assert set(long) == {"param_name", "expected_type", "actual_type"}
        short = await details_of(client, "docs__run_job", {"job": "j", "size": "x" * 200}, "execute")
        assert short["value"] == "x" * 200
        for secret in (5, "too long"):
            said = (await client.do("docs__run_job", {"job": "j", "password": secret}, "execute"))["error"]
            assert "value" not in said["details"] and str(secret) not in json.dumps(said)
        missing = resource_not_found("execution", "exec_1").details
        assert missing == {"resource_type": "execution", "resource_id": "exec_1"}
        leaf.mute = {"tools/call"}

        async def answered(error: dict[str, Any]) -> dict[str, Any]:
            waits = client.client.begin(
                "tools/call", {"name": "mcp_aql_read", "arguments": {"operation": "docs__list_x"}}
            )
            await run_until_idle()
            leaf.say({"jsonrpc": "2.0", "id": leaf.heard[-1]["id"], "error": error})
            await run_until_idle()
            return dict(json.loads(waits.result()["result"]["content"][0]["text"])["error"])

        denied = await answered({"code": 32117, "message": "scope_denied", "data": {"reason": "scope_denied"}})
        assert (denied["code"], denied["details"]["reason"]) == ("PERMISSION_DENIED", "scope_denied")
        internal = await answered({"code": -32603, "message": "out of paper"})
        assert internal["details"] == {"upstream_error": "out of paper", "source_tool": "docs.list_x"}
        assert received_calls(leaf)[-1]["name"] == "list_x"


@pytest.mark.req("AQL-8.5.4-3")
@in_frozen_time
async def test_a_name_that_a_later_version_reserves_is_refused_and_suffixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OPEN + '[[tool]]\nmatch = "docs.list_x"\naql = { name = "pause_agent" }\n'
    declared = AqlOperation(name="pause_agent", category=Category.EXECUTE, description="Pauses.")
    assert check_operation(declared) is None
    names = (*RESERVED_BY_VERSION[SPEC_VERSION], "pause_agent")
    async with aql_node(tmp_path, config) as here:
        await here.leaf(tools=[tool("list_x", inputSchema=schema())])
        assert (await here.modern().do("pause_agent"))["success"]
    monkeypatch.setitem(RESERVED_BY_VERSION, SPEC_VERSION, names)
    assert "reserved" in (check_operation(declared) or "")
    async with aql_node(tmp_path, config) as here:
        await here.leaf(tools=[tool("list_x", inputSchema=schema())])
        said = await here.modern().do("pause_agent")
        (suffixed,) = said["error"]["details"]["available"][:1]
        assert suffixed.startswith("pause_agent_x") and (await here.modern().do(suffixed))["success"]


@pytest.mark.req("AQL-C.map-12")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ENOENT: no such file or directory, open 'a.txt'", "NOT_FOUND_RESOURCE"),
        ("Error executing tool read: [Errno 2] No such file or directory: 'a.txt'", "NOT_FOUND_RESOURCE"),
        ("Error: EEXIST: file already exists, mkdir 'a'", "CONFLICT_ALREADY_EXISTS"),
        ("[Errno 13] Permission denied: 'a.txt'", "PERMISSION_DENIED"),
        ("EPERM: operation not permitted, unlink 'a'", "PERMISSION_DENIED"),
        ("EIO: i/o error, read", "INTERNAL_ERROR"),
        ("[Errno 28] No space left on device", "INTERNAL_ERROR"),
        ("no such file", "INTERNAL_ERROR"),  # prose is not guessed from
        ("could not run\nENOENT: no such file or directory", "INTERNAL_ERROR"),
    ],
)
def test_an_error_name_of_the_operating_system_selects_the_code(text: str, code: str) -> None:
    result = {"content": [{"type": "text", "text": text}], "isError": True}
    failed = read_result(json.dumps(result).encode(), tool="files.read", operation="files__read").failure
    assert failed is not None and failed.details is not None
    assert (failed.code, failed.details["upstream_error"]) == (code, text)
    assert ("errno" in failed.details) is (code != "INTERNAL_ERROR")
