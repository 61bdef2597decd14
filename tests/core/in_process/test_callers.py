"""What is a 2026-07-28 server told of a legacy client?"""

import json

from msgspec import Raw

from interlock.core.calls.caller import Caller, Principal, ViewKey
from interlock.mcp.methods import META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, Era


def test_the_stamp_of_a_legacy_client_is_written_once_and_follows_its_log_level() -> None:
    caller = Caller(Principal("local"), Era.LEGACY, "http", ViewKey())
    caller.client = Raw(b'{"name":"c","version":"1"}')
    caller.modern_capabilities = Raw(b'{"roots":{}}')
    first = caller.stamped()
    told = {META_VERSION: "2026-07-28", META_CAPABILITIES: {"roots": {}}, META_CLIENT: {"name": "c", "version": "1"}}
    assert json.loads(bytes(first)) == told
    assert caller.stamped() is first
    caller.log_level = "error"
    assert json.loads(bytes(caller.stamped())) == {**told, META_LOG_LEVEL: "error"}
    caller.log_level = "debug"
    assert json.loads(bytes(caller.stamped())) == {**told, META_LOG_LEVEL: "debug"}
    caller.log_level = None
    assert json.loads(bytes(caller.stamped())) == told
