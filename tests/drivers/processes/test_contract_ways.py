"""What happens to a call of a contract on its way: time, cancellation, progress, retries, other drivers, loss."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.drivers.contract_node import ANY, ContractNode, LendingProvider, binding, contract, contract_node, driver
from tests.support.local_node import LegacyClient

from interlock.drivers.contracts.call import ContractCall
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.binding.match import HookEntry
from interlock.drivers.protocol.problems import DriverRefusal

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAY = {
    "type": "object",
    "properties": {"act": ANY, "acts": {"type": "array", "items": ANY}, "label": {"type": "string"}},
}
BOTH = pytest.mark.parametrize("segment", ["new", "old"])
BUSY = {"error": {"code": -32000, "message": "busy"}}
WRONG = {"error": {"code": -32602, "message": "wrong"}}
FAILED = {"result": {"content": [], "isError": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    async with contract_node(tmp_path_factory.mktemp("ways"), {"new": "modern", "old": "legacy"}) as here:
        yield here


def code_of(result: Any) -> str:
    assert result["isError"] is True
    code: str = result["_meta"]["dev.interlock/error"]["code"]
    return code


def play(**changed: Any) -> Any:
    return contract("test.play", **{"inputs": PLAY, **changed})


async def played(here: ContractNode, segment: str, label: str) -> int:
    return (await here.call(f"{segment}__played").result())["structuredContent"].get(label, 0)


async def two(here: ContractNode, made: Any, **first: Any) -> tuple[LendingProvider, LendingProvider]:
    """The first is preferred, for it costs less."""
    one = driver("one-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 1}, **first))
    other = driver("other-mcp", binding("test.play", "play", cost_override={"cost_units_per_call": 2}))
    lending = LendingProvider(here.node, "new", one, [made]), LendingProvider(here.node, "old", other, [made])
    await here.offer([made], *lending)
    return lending


@pytest.mark.req("AIP-30.implements-5", "AIP-30.errors-1")
@BOTH
async def test_a_call_ends_at_the_drivers_shorter_timeout_and_the_server_is_informed(
    here: ContractNode, segment: str
) -> None:
    lending = await here.serve(segment, play(timeout_ms=1000), "play", timeout_override_ms=500)
    before = asyncio.get_running_loop().time()
    error = await here.call("test__play", {"act": {"wait": True}}).error()
    assert 0.45 < asyncio.get_running_loop().time() - before < 0.9
    assert (error["code"], error["data"]["timeout_ms"]) == (32130, 500)
    assert lending.lent == 0
    assert await _cancelled(here, segment) >= 1


async def _cancelled(here: ContractNode, segment: str) -> int:
    return len((await here.call(f"{segment}__cancelled").result())["structuredContent"]["ids"])


@pytest.mark.req("AIP-30.errors-2")
@BOTH
async def test_a_cancelled_call_is_reported_to_the_server_and_the_others_go_on(
    here: ContractNode, segment: str
) -> None:
    lending = await here.serve(segment, play(), "play")
    before = await _cancelled(here, segment)
    client = LegacyClient(here.node)
    wanted = here.call("test__play", {"acts": [{"wait": True}, {}], "label": f"twice {segment}"})
    dropped = client.call("test__play", {"act": {"wait": True}})
    assert lending.lent == 2
    dropped.running.cancel("changed my mind")
    assert (dropped.running.done, lending.lent) == (True, 1)
    assert await _cancelled(here, segment) == before + 1
    assert not wanted.running.done
    wanted.running.cancel("as well")
    assert lending.lent == 0


@pytest.mark.req("AIP-30.errors-2")
async def test_a_call_that_is_cancelled_while_its_server_starts_takes_nothing(here: ContractNode) -> None:
    lending = await here.serve("new", play(), "play")
    lending.asleep = True
    asked = here.call("test__play", {"label": "nobody"})
    asked.running.cancel("gone")
    await here.until(lambda: lending.woken == 1 and lending.lent == 0)
    assert await played(here, "new", "nobody") == 0


@pytest.mark.req("AIP-transport-14")
@BOTH
async def test_progress_reaches_the_caller_with_its_own_token_and_nobody_else(here: ContractNode, segment: str) -> None:
    await here.serve(segment, play(), "play")
    act = {"act": {"progress": 3}}
    told = here.call("test__play", act, meta={"progressToken": "mine"})
    other = here.call("test__play", act)
    result = await told.result()
    assert result["structuredContent"] == (await other.result())["structuredContent"]
    assert [each["params"]["progressToken"] for each in told.emitted] == ["mine"] * 3
    assert other.emitted == []


async def test_progress_does_not_stretch_the_contracts_time(here: ContractNode) -> None:
    await here.serve("new", play(timeout_ms=400), "play")
    before = asyncio.get_running_loop().time()
    asked = here.call("test__play", {"act": {"progress": 50, "wait": True}}, meta={"progressToken": 1})
    assert (await asked.error())["code"] == 32130
    assert asyncio.get_running_loop().time() - before < 0.8
    assert len(asked.emitted) == 50


# Again


@pytest_asyncio.fixture(loop_scope="module")
async def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Until a call is tried again."""
    found: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def note(delay: float, callback: Any, *args: Any, **options: Any) -> Any:
        if getattr(callback, "__name__", "") == "try_again":
            found.append(delay)
        return later(delay, callback, *args, **options)

    monkeypatch.setattr(loop, "call_later", note)
    return found


@pytest.mark.req("AIP-14.rules-2")
@pytest.mark.parametrize(("backoff", "waits"), [("exponential", [0.06, 0.12]), ("fixed", [0.06, 0.06])])
async def test_a_passing_failure_of_an_idempotent_contract_is_repeated_with_the_delays_it_states(
    here: ContractNode, delays: list[float], backoff: str, waits: list[float]
) -> None:
    retry = {"max_attempts": 3, "backoff": backoff, "initial_ms": 60}
    lending = await here.serve("new", play(idempotent=True, retry=retry), "play")
    label = f"thrice {backoff}"
    result = await here.call("test__play", {"acts": [BUSY, BUSY, {}], "label": label}).result()
    assert result["structuredContent"]["done"] == label
    assert delays == waits
    assert await played(here, "new", label) == 3
    assert lending.lent == 0
    assert (
        code_of(await here.call("test__play", {"act": BUSY, "label": f"always {backoff}"}).result()) == "upstream_error"
    )
    assert await played(here, "new", f"always {backoff}") == 3


@pytest.mark.req("AIP-14.rules-2")
async def test_a_drivers_retry_counts_instead_of_the_contracts(here: ContractNode) -> None:
    made = play(idempotent=True, retry={"max_attempts": 5, "backoff": "fixed", "initial_ms": 0})
    await here.serve("new", made, "play", retry_override={"max_attempts": 2, "backoff": "fixed"})
    assert code_of(await here.call("test__play", {"act": BUSY, "label": "own"}).result()) == "upstream_error"
    assert await played(here, "new", "own") == 2


@pytest.mark.req("AIP-14.rules-2")
@pytest.mark.parametrize(("initial_ms", "times"), [(5000, 1), (200, 1), (199, 2)])
async def test_a_repetition_that_would_come_after_the_contracts_time_is_not_made(
    here: ContractNode, delays: list[float], monkeypatch: pytest.MonkeyPatch, initial_ms: int, times: int
) -> None:
    retry = {"max_attempts": 2, "backoff": "fixed", "initial_ms": initial_ms}
    await here.serve("new", play(idempotent=True, timeout_ms=200, retry=retry), "play")
    at = here.clock.now()
    monkeypatch.setattr(here.clock, "now", lambda: at)  # to the very end of its time
    label = f"late {initial_ms}"
    assert code_of(await here.call("test__play", {"act": BUSY, "label": label}).result()) == "upstream_error"
    assert len(delays) == times - 1
    assert await played(here, "new", label) == times


@pytest.mark.req("AIP-14.rules-2")
@pytest.mark.parametrize(
    ("changed", "act"),
    [
        ({"mutates": ["file:x"], "approval": "policy:gate"}, BUSY),
        ({"idempotent": False}, BUSY),
        ({"idempotent": True}, WRONG),
        ({"idempotent": True}, FAILED),
    ],
)
async def test_calls_that_could_take_effect_twice_or_would_fail_again_are_sent_once(
    here: ContractNode, changed: Any, act: Any
) -> None:
    retry = {"max_attempts": 3, "backoff": "fixed", "initial_ms": 0}
    await here.serve("new", play(retry=retry, **changed), "play")
    label = json.dumps([changed, act])
    assert code_of(await here.call("test__play", {"act": act, "label": label}).result()) == "upstream_error"
    assert await played(here, "new", label) == 1


# Other drivers


@pytest.mark.req("AIP-30.resolve-7")
async def test_a_first_choice_that_cannot_be_started_is_skipped_within_the_call(here: ContractNode) -> None:
    first, second = await two(here, play())
    assert (await here.call("test__play", {"label": "first"}).result())["structuredContent"]["done"] == "first"
    assert await played(here, "new", "first") == 1
    first.refusal = DriverRefusal(code="tool_unavailable", message="it does not start", retryable=True)
    assert (await here.call("test__play", {"label": "second"}).result())["structuredContent"]["done"] == "second"
    assert await played(here, "old", "second") == 1
    assert (first.lent, second.lent) == (0, 0)


@pytest.mark.req("AIP-30.resolve-7")
async def test_after_it_was_sent_only_an_idempotent_call_goes_on_to_the_next_driver(here: ContractNode) -> None:
    await two(here, play(idempotent=True))
    assert (await here.call("test__play", {"acts": [BUSY], "label": "on"}).result())["isError"]
    assert (await played(here, "new", "on"), await played(here, "old", "on")) == (1, 1)
    await two(here, play(idempotent=False))
    assert code_of(await here.call("test__play", {"act": BUSY, "label": "off"}).result()) == "upstream_error"
    assert (await played(here, "new", "off"), await played(here, "old", "off")) == (1, 0)
    await two(here, play(idempotent=True))
    assert code_of(await here.call("test__play", {"act": WRONG, "label": "wrong"}).result()) == "upstream_error"
    assert (await played(here, "new", "wrong"), await played(here, "old", "wrong")) == (1, 0)


@pytest.mark.req("AIP-30.resolve-7")
async def test_a_pinned_call_never_falls_back(here: ContractNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(here.node.stores.current.plan.drivers.pins, "test.play", "one-mcp")
    first, second = await two(here, play(idempotent=True))
    first.refusal = DriverRefusal(code="tool_unavailable", message="it does not start", retryable=True)
    assert (await here.call("test__play", {"label": "pin"}).error())["data"]["reason"] == "subserver_unreachable"
    first.state = DriverState.UNAVAILABLE
    assert code_of(await here.call("test__play", {"label": "pin"}).result()) == "pinned_provider_unavailable"
    assert (await played(here, "new", "pin"), await played(here, "old", "pin"), second.woken) == (0, 0, 0)


async def test_the_choice_follows_the_states_of_the_drivers(here: ContractNode) -> None:
    first, second = await two(here, play())
    for label, state, chosen in [("a", DriverState.READY, "new"), ("b", DriverState.UNAVAILABLE, "old")]:
        first.state = state
        await here.call("test__play", {"label": f"standing {label}"}).result()
        assert await played(here, chosen, f"standing {label}") == 1
    second.state = DriverState.UNAUTHED
    first.state = DriverState.UNAUTHED
    assert code_of(await here.call("test__play").result()) == "auth_required"


@pytest.mark.req("AIP-30.resolve-2")
async def test_a_driver_whose_failed_check_is_old_is_looked_at_before_it_is_used(here: ContractNode) -> None:
    first, _ = await two(here, play())
    now = here.clock.now()
    first.health.failed_at, first.health.illness = now - 10, "still ill"
    first.state, first.code = DriverState.UNAVAILABLE, "health_check_failed"
    await here.call("test__play", {"label": "counts"}).result()
    assert (first.health.looked, await played(here, "old", "counts")) == (0, 1)
    first.health.failed_at = now - 601  # twice the usual time between checks
    await here.call("test__play", {"label": "ill"}).result()
    assert (first.health.looked, await played(here, "old", "ill")) == (1, 1)
    first.health.illness = None
    await here.call("test__play", {"label": "well"}).result()
    assert (first.health.looked, await played(here, "new", "well")) == (2, 1)


# What goes wrong inside


class Failing(LendingProvider):
    async def acquire(self, caller: Any, timeout_s: float = 30.0) -> Any:
        raise RuntimeError("a defect")


@pytest.mark.req("AIP-30.errors-1")
async def test_a_defect_of_ours_ends_the_call_as_internal_and_shows_nothing_of_itself(
    here: ContractNode, caplog: pytest.LogCaptureFixture
) -> None:
    made = play()
    lending = Failing(here.node, "new", driver("bad-mcp", binding("test.play", "play")), [made])
    lending.asleep = True
    await here.offer([made], lending)
    result = await here.call("test__play").result()
    assert code_of(result) == "internal"
    assert "defect" not in json.dumps(result)
    assert "a defect" in caplog.text
    lending.asleep, lending.hooks = False, Hooking(arguments=RuntimeError("another"))
    assert code_of(await here.call("test__play").result()) == "internal"
    assert lending.lent == 0


class Hooking:
    """What a driver.py would do."""

    def __init__(self, arguments: Any = None, value: Any = None) -> None:
        self._arguments, self._value = arguments, value
        self.entry = HookEntry(parses=value is not None)
        self.saw: list[Any] = []

    def makes_arguments(self, bound: Any) -> bool:
        return self._arguments is not None

    async def arguments(self, bound: Any, given: Any, context: Any) -> Any:
        self.saw.append((given, context))
        if isinstance(self._arguments, Exception):
            raise self._arguments
        return self._arguments

    async def value(self, bound: Any, result: Any) -> Any:
        self.saw.append(result)
        return self._value


async def test_a_drivers_own_functions_make_arguments_and_read_results(here: ContractNode) -> None:
    lending = await here.serve("new", play(), "play")
    hooks = lending.hooks = Hooking(arguments={"label": "made"}, value={"read": True})
    result = await here.call("test__play", {"label": "given"}).result()
    assert result["structuredContent"] == {"read": True}
    assert hooks.saw[0][0] == {"label": "given"}
    assert hooks.saw[1]["structuredContent"]["done"] == "made"
    lending.hooks = Hooking(value=DriverRefusal(code="shop:sold_out", message="none left"))
    assert code_of(await here.call("test__play").result()) == "shop:sold_out"
    assert lending.lent == 0


async def test_a_result_that_cannot_be_read_is_output_parse_failed(here: ContractNode) -> None:
    await here.serve("new", play(), "play")
    half = '{"content":[{"type":"text","text":"\\ud800"}],"structuredContent":{}}'
    assert code_of(await here.call("test__play", {"act": {"raw": half}}).result()) == "output_parse_failed"


async def test_calls_that_ended_leave_no_circle_for_the_collector(here: ContractNode) -> None:
    await here.serve("new", play(), "play")
    for act in ({}, BUSY, FAILED, {"progress": 1}):
        await here.call("test__play", {"act": act}).result()
    gc.collect()
    gc.disable()
    try:
        for act in ({}, BUSY, FAILED, {"progress": 1}) * 10:
            asked = here.call("test__play", {"act": act})
            await asked.result()
            asked.running = None  # which is the test's own circle
        await here.node.stores.recorder.flush()
        await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [each for each in gc.garbage if isinstance(each, ContractCall)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert len(left) < 5
