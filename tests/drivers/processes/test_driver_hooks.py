"""The hooks of a real driver.py as calls use them: what comes of a server's failure, and of their own."""

import asyncio
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.driver_stage import OBJECT, driver_stage
from tests.drivers.driver_texts import as_contract, as_driver, binding, contract, driver, text
from tests.servers.caging import needs_sandbox

from interlock.drivers.protocol.binding.match import Bound, match
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider.hooks import DriverHooks, HookFailed, HookProcess, load_hooks

pytestmark = [needs_sandbox, pytest.mark.asyncio(loop_scope="module")]

ENTRY = """
    from interlock import define_driver

    def parse(args):
        said = args.result["content"][0]["text"]
        if said == "declined":
            return {"ok": False, "error": {"code": "declined", "message": "no money", "retryable": True}}
        return {"ok": True, "value": {"said": said}}

    def tenfold(value):
        return value * 10

    def build(args):
        return {**args.mapped, "built": True} if args.input.get("n") != -1 else ["built"]

    define_driver(parse_tool_result=parse, build_arguments=build)
"""


class Hooked:
    def __init__(self, hooks: DriverHooks, bound: Bound) -> None:
        self.hooks, self.bound = hooks, bound

    async def value(self, *texts: str, is_error: bool = False) -> Any:
        content = [{"type": "text", "text": each} for each in texts]
        return await self.hooks.value(self.bound, {"content": content, "isError": is_error})


def declared(file: dict[str, Any]) -> Any:
    reading = as_driver(file)
    assert reading.value is not None, reading.problems
    return reading.value


FILE = driver(
    implements=[
        binding(
            tool="fs-read",
            mapping={"size": {"from": "n", "transform": "tenfold"}},
            metadata={"mcp": {"tool_name": "read"}},
        )
    ]
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hooked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hooked]:
    async with driver_stage(tmp_path_factory.mktemp("hooked")) as stage:
        folder = stage.folder / "driver"
        folder.mkdir()
        (folder / "driver.py").write_text(textwrap.dedent(ENTRY))
        (folder / "DRIVER.md").write_bytes(text(FILE))
        home, parts = stage.folder / "data" / "homes" / "f", stage.node.links.connector_parts
        process = HookProcess(name="f@1", folder=folder, home=home, digests={}, connector_parts=parts)
        made = declared(FILE)
        hooks = await load_hooks(made, {"fs-read"}, folder, process)
        inputs = {"type": "object", "properties": {"n": {"type": "integer"}}}
        promised = as_contract(contract(inputs=inputs, outputs=OBJECT)).value
        assert promised is not None
        taken = {"size": {"type": "integer"}, "built": {"type": "boolean"}}
        tool = {"name": "read", "inputSchema": {"type": "object", "properties": taken, "additionalProperties": False}}
        bound = match(made, made.implements[0], promised, tool, entry=hooks.entry)
        assert isinstance(bound, Bound), bound
        yield Hooked(hooks, bound)
        await hooks.process.stop()


@pytest.mark.req("AIP-map-4", "AIP-define-2")
async def test_transforms_come_before_build_arguments(hooked: Hooked) -> None:
    assert hooked.hooks.makes_arguments(hooked.bound)
    assert await hooked.hooks.arguments(hooked.bound, {"n": 4}, {}) == {"size": 40, "built": True}
    assert await hooked.hooks.arguments(hooked.bound, {}, {}) == {"built": True}


@pytest.mark.req("AIP-define-2")
async def test_arguments_of_a_hook_that_the_server_would_refuse_are_not_sent(hooked: Hooked) -> None:
    refused = await hooked.hooks.arguments(hooked.bound, {"n": "4"}, {})
    assert isinstance(refused, DriverRefusal) and refused.code == "contract_mismatch"
    listed = await hooked.hooks.arguments(hooked.bound, {"n": -1}, {})
    assert isinstance(listed, DriverRefusal) and (listed.code, "a dict" in listed.cause["reason"]) == ("internal", True)


@pytest.mark.req("AIP-define-2")
async def test_a_process_that_answers_something_else_is_not_believed(
    hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(hook: str, **members: Any) -> Any:
        return ["built"]

    monkeypatch.setattr(hooked.hooks.process, "ask", ask)
    refused = await hooked.hooks.arguments(hooked.bound, {}, {})
    assert isinstance(refused, DriverRefusal)
    assert (refused.code, refused.cause["reason"]) == ("internal", "it returns no dict")


@pytest.mark.req("AIP-tools-13", "AIP-define-3")
async def test_a_hook_may_name_a_servers_failure_and_not_make_a_success_of_it(hooked: Hooked) -> None:
    assert await hooked.value("fine") == {"said": "fine"}
    declined = await hooked.value("declined", is_error=True)
    assert (declined.code, declined.message, declined.retryable) == ("filesystem-mcp:declined", "no money", True)
    failed = await hooked.value("Access denied", is_error=True)
    assert (failed.code, failed.message) == ("upstream_error", "Access denied")


async def test_a_hook_that_fails_hides_no_failure_of_the_server(hooked: Hooked) -> None:
    assert (await hooked.value(is_error=True)).code == "upstream_error"
    mine = await hooked.value()
    assert (mine.code, mine.cause["hook"]) == ("internal", "parse_tool_result")
    assert "IndexError" in mine.cause["reason"] and "IndexError" not in mine.message


async def test_a_server_of_server_json_conflicts_with_nothing(hooked: Hooked, tmp_path: Path) -> None:
    (tmp_path / "DRIVER.md").write_bytes(text({key: value for key, value in FILE.items() if key != "server"}))
    again = await load_hooks(declared(FILE), {"fs-read"}, tmp_path, hooked.hooks.process)
    assert again.problems == ()
    with pytest.raises(HookFailed, match=r"DRIVER\.md cannot be read"):
        await load_hooks(declared(FILE), {"fs-read"}, tmp_path / "nowhere", hooked.hooks.process)


async def test_a_cancelled_waiter_does_not_affect_the_others(hooked: Hooked) -> None:
    asked = [asyncio.create_task(hooked.value(str(n))) for n in range(20)]
    await asyncio.sleep(0)
    for each in asked[::2]:
        each.cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[1::2] == [{"said": str(n)} for n in range(1, 20, 2)]
