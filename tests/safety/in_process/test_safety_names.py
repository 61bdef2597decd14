"""The names by which a call of an agent is judged: those of a resource too, however its URI is spelled."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlock.safety.executions import CallableNames, CallNames, StepGrant, plain_uri
from interlock.safety.protocol.evaluation import AutonomyPolicy, CompiledPolicy, StepVerdict, evaluate_call


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "file:///%65tc/passwd",
        "file:///%2565tc/passwd",
        "file:///x/../etc/passwd",
        "file:///./x/%2e%2e/etc//passwd",
    ],
)
def test_no_spelling_of_a_uri_gets_a_denied_resource_through(uri: str) -> None:
    policy = CompiledPolicy(AutonomyPolicy(deny=("file:///etc/*",)))
    every = CallableNames(cast(Any, None), lambda route: None, lambda route: {})
    call = cast(Any, SimpleNamespace(route=None, method="resources/read", target=uri))
    assert evaluate_call(policy, every.of_call(call).all, 0).verdict is StepVerdict.STOP


@pytest.mark.parametrize("uri", ["note", "mcpax://plant", "mcpax://plant/raw://text", "a://b/c?d=e"])
def test_an_ordinary_uri_keeps_its_parts(uri: str) -> None:
    assert plain_uri(uri).replace("/", "") == uri.replace("/", "")


def asked(number: int) -> Any:
    return cast(Any, SimpleNamespace(client_id=b"%d" % number, started=0.0))


def test_each_operation_of_a_batch_has_to_be_granted_once() -> None:
    get, drop, tool = frozenset({"get_note", "one__get_note"}), frozenset({"drop_note"}), frozenset({"mcp_aql_read"})
    grant = StepGrant(frozenset({"one__get_note"}))
    assert not grant.may(asked(1), CallNames(tool, (get, drop)))
    assert not grant.may(asked(1), CallNames(tool, (get, get)))
    assert not grant.may(asked(1), CallNames(tool))
    assert grant.may(asked(1), CallNames(tool, (get,)))
    grant.use(asked(1), CallNames(tool, (get,)))
    assert grant.may(asked(1), CallNames(tool, (get,))) and not grant.may(asked(2), CallNames(tool, (get,)))
    both = StepGrant(frozenset({"get_note", "drop_note"}))
    assert both.may(asked(3), CallNames(tool, (get, drop)))
    assert StepGrant(tool).may(asked(4), CallNames(tool, (get, drop)))  # the tool itself was reported
