"""Are the times that tests shorten where they look for them?"""

import importlib

import pytest
from tests.support import intervals

USUAL = {  # what a user's node keeps to
    "BACKOFF_MAX_S": 30.0,
    "CONFIGURATION_LOOK_S": 1.0,
    "CREDENTIALS_LOOK_MS": 5000,
    "DEVICE_REOPEN_S": 1.0,
    "DEVICE_SETTLE_S": 1.0,
    "DRIVERS_LOOK_S": 1.0,
    "EXECUTIONS_FLUSH_S": 1.0,
    "FETCH_S": 5.0,
    "FLOOD_REST_S": 30.0,
    "GREET_REGISTERED_S": 10.0,
    "HEARTBEAT_MS": 5000,
    "HOLDER_ANSWER_S": 1.0,
    "HOOK_S": 5.0,
    "INPUT_GRACE_S": 2.0,
    "LOG_REPEAT_S": 60.0,
    "PUBLIC_SWEEP_S": 1.0,
    "READY_S": 3.0,
    "REGISTER_WITHIN_S": 10.0,
    "RESPAWN_WAIT_S": 5.0,
    "SCRYPT_N": 2**17,
    "TERM_GRACE_S": 3.0,
}


@pytest.mark.parametrize("name", [name for name in vars(intervals) if name.isupper()])
def test_an_interval_that_tests_shorten_is_the_usual_interval_for_everybody_else(name: str) -> None:
    module, _, attribute = getattr(intervals, name).partition(":")
    assert getattr(importlib.import_module(module), attribute) == USUAL[name]
