"""The names by which a call of an agent is judged: those of a resource too, however its URI is spelled."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from interlock.protocol.aql.safety.evaluation import Verdict, evaluate_call
from interlock.protocol.aql.safety.policy import CompiledPolicy, Policy
from interlock.runtime.safety.grants import CallableNames, plain_uri


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
    policy = CompiledPolicy(Policy(deny=("file:///etc/*",)))
    every = CallableNames(cast(Any, None), lambda route: None, lambda route: {})
    call = cast(Any, SimpleNamespace(route=None, method="resources/read", target=uri))
    assert evaluate_call(policy, every.of_call(call), 0).verdict is Verdict.STOP


@pytest.mark.parametrize("uri", ["note", "mcpax://plant", "mcpax://plant/raw://text", "a://b/c?d=e"])
def test_an_ordinary_uri_keeps_its_parts(uri: str) -> None:
    assert plain_uri(uri).replace("/", "") == uri.replace("/", "")
