"""Does the official suite pass? In every pair of eras, over every way, in front of a node."""

import asyncio
from typing import Any

import pytest
from tests.conformance import agreeing, suite, verdict
from tests.conformance.trials import ALONE, CELLS, TRIALS, Cell
from tests.conformance.upstream import MODES, SCENARIOS
from tests.support.peers import HttpPeer

from mcp import Client, MCPError, types


@pytest.mark.req("AX-2-1")  # on /mcp/only/SEGMENT, which puts no prefix before the names
@pytest.mark.timeout(600)
# The SDK warns of everything the next revision will remove; what a legacy server asks for is among it.
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("cell", [*ALONE, *CELLS], ids=lambda cell: cell.name)
def test_the_suite_finds_nothing_in_front_of_a_node_that_is_not_expected(cell: Cell) -> None:
    with cell.target() as url:
        asyncio.run(assert_that_tools_answer(url, MODES[cell.client]))
        if (cell.client, cell.server) == ("modern", "legacy"):
            asyncio.run(begin_with(url, {"elicitation": {}}))
        results = suite.run_server(url, suite.REQUIREMENTS[cell.client])
    verdict.keep(cell, results)
    assert verdict.judge(cell, results) == []


async def assert_that_tools_answer(url: str, mode: str) -> None:
    """What the suite leaves open in every pair of eras.

    It takes any text for an answer, and the refusal of an unknown tool for the error of a known one. And it sees to it
    that a client is asked, but only the modern one in more than one round, and never that the answer was used.
    """
    async with Client(
        url, mode=mode, elicitation_callback=elicit, sampling_callback=sample, list_roots_callback=roots
    ) as client:
        assert await said(client, "test_simple_text") == "This is a simple text response for testing."
        failed = await client.call_tool("test_error_handling")
        assert failed.content[0].text == "This tool intentionally returns an error for testing"
        assert failed.is_error
        with pytest.raises(MCPError):
            await client.call_tool("test_no_such_tool")
        for name, text in ANSWERED.items():
            assert await said(client, name) == text
        prompt = await client.get_prompt("test_input_required_result_prompt")
        assert prompt.messages[0].content.text == "The context is spring."


async def begin_with(url: str, capabilities: Any) -> None:
    """A server's process that is told of just these starts with the first call of a client that has them. The suite
    gives one of its calls 0.6 s, in which not every machine starts a process."""
    async with await HttpPeer.modern_(url, capabilities) as peer:
        assert "result" in (await peer.call("test_simple_text")).message


ANSWERED = {
    "test_input_required_result_elicitation": "Hello, Ada!",
    "test_input_required_result_sampling": "Paris, of course.",
    "test_input_required_result_list_roots": "Roots: file:///shop",
    "test_input_required_result_request_state": "state-ok",
    "test_input_required_result_multiple_inputs": "All three arrived.",
    "test_input_required_result_multi_round": "Both steps are done.",
    "test_missing_capability": "The client can sample.",
}
FIELDS = {"name": "Ada", "color": "green", "ok": True, "context": "spring"}


async def said(client: Client, name: str) -> str:
    result = await client.call_tool(name)
    assert not result.is_error, result
    return str(result.content[0].text)


async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(
        action="accept", content={name: FIELDS[name] for name in params.requested_schema["properties"]}
    )


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="Paris, of course.")
    return types.CreateMessageResult(role="assistant", content=text, model="none")


async def roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///shop")])


def test_every_client_scenario_is_run_or_listed_as_not_run() -> None:
    required = {one for revision in suite.REQUIREMENTS.values() for one in suite.client_scenarios(revision)}
    run = {one for one in required if suite.is_run(one)}
    assert {one for one in run if not one.startswith(agreeing.PREFIX)} == SCENARIOS.keys()
    assert agreeing.REFUSED.keys() | {agreeing.STEPPING_UP} <= run
    for beginning in suite.NOT_RUN:
        assert any(one.startswith(beginning) for one in required), f"no scenario begins with {beginning} any more"


def test_a_failure_without_an_entry_a_warning_and_a_stale_entry_are_complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {
        "ping": suite.Scenario(scored=True, passed=1, failing={"ping": "no answer"}),
        "caching": suite.Scenario(scored=True, passed=1, warnings=["ttl"]),
        "sep-2640-skills": suite.Scenario(scored=False, failing={"not-offered": "no"}),
    }
    stale = {"tools-list": {"tools-order": "because"}}
    monkeypatch.setattr(verdict, "expected", lambda _: stale)
    assert [said.split(":")[0] for said in verdict.judge(CELLS[0], results)] == ["ping", "caching", "tools-list"]
    monkeypatch.setattr(verdict, "expected", lambda _: {"ping": {"ping": "because"}, "caching": {"ttl": "because"}})
    assert verdict.judge(CELLS[0], results) == []


def test_tasks_are_judged_where_client_and_server_are_of_one_era() -> None:
    results = {"tasks-lifecycle": suite.Scenario(scored=False, failing={"made": "no task"})}
    judged = {
        cell.known_as for cell in CELLS if verdict.judge(cell, results)[:1] == ["tasks-lifecycle: made fails: no task"]
    }
    assert judged == {"legacy-legacy", "modern-modern"}


def test_no_expectation_is_left_without_a_trial() -> None:
    assert {path.stem for path in verdict.EXPECTED.glob("*.yml")} <= {trial.known_as for trial in TRIALS}
