"""What a driver.py says, held against the DRIVER.md beside it, and what its hooks return, as values of a call.

The file wins wherever both speak (AIP-define-4). Nothing a hook returns is taken as it is: its form is checked here,
its content by the binding.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.driver import ENTRY
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.wire.jsontext.canonical import quoted

MESSAGE_CHARS_MAX: Final = 4096
# fmt: off
STANDARD: Final = frozenset((  # AIP-30.errors-1
    "auth_required", "auth_failed", "version_mismatch", "install_failed", "tool_unavailable",
    "execute_binding_mismatch", "input_unsupported", "policy_violation", "region_mismatch",
    "pinned_provider_unavailable", "output_parse_failed", "cancelled", "timeout", "internal",
))
# fmt: on
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


class HookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A driver.py as it was loaded."""

    manifest: dict[str, Any] = {}
    builds: bool = False  # it has build_arguments
    parses: bool = False  # it has parse_tool_result
    execute: tuple[str, ...] | None = None
    transforms: frozenset[str] = frozenset()


class HookInvalid(Exception):
    """Error for a hook that returned a value of the wrong form. The message completes "parse_tool_result ..."."""


def check_entry(
    driver: Driver, entry: HookEntry, written: Mapping[str, Any], contracts: Collection[str]
) -> tuple[FileProblem, ...]:
    """Check driver.py against the driver file.

    `written` is the frontmatter as written in the file, and `contracts` are the ids of the contracts that it binds.
    """
    problems = [
        driver.places.problem(
            f"/{field}",
            "entry_conflict",  # AIP-define-4
            f"{ENTRY} gives another {field} than this file, whose own is used"
            if field in written
            else f"{ENTRY} gives {field}, which this file does not have, and it is not used",
            f"remove {field} from define_driver, or write the same in both",
            severity="warning",
        )
        for field, value in entry.manifest.items()
        if written.get(field) != value  # AIP-define-4
    ]
    bound = set(contracts)
    named = {each.tool for each in driver.implements}
    if entry.execute is not None and set(entry.execute) not in (bound, named):  # AIP-define-1
        problems.append(
            driver.places.problem(
                "/implements",
                "execute_binding_mismatch",
                f"execute of {ENTRY} names {_join_names(entry.execute)}, and this file binds {_join_names(bound)}",
                "name the same contracts in both",
            )
        )
    return tuple(problems)


def read_driver_result(driver: Driver, returned: Mapping[str, Any]) -> Any:
    """Return the value of {ok: true, value}, or the DriverRefusal of {ok: false, error} (AIP-define-3).

    Raise HookInvalid for anything else.
    """
    if returned.get("ok") is True:  # AIP-define-3
        if "value" not in returned:
            raise HookInvalid("returns ok without a value")
        return returned["value"]
    error = returned.get("error")
    if returned.get("ok") is not False or not isinstance(error, Mapping):  # AIP-define-3
        raise HookInvalid('returns neither {"ok": true, "value"} nor {"ok": false, "error"}')
    code, message, retryable = error.get("code"), error.get("message"), error.get("retryable", False)
    if not isinstance(code, str) or _CODE.fullmatch(code) is None:
        raise HookInvalid("returns an error without a code of letters, digits and _.:-")
    if not isinstance(message, str) or not isinstance(retryable, bool):
        raise HookInvalid("returns an error whose message is no text or whose retryable is neither true nor false")
    if ":" not in code and code not in STANDARD:  # AIP-define-3
        code = f"{driver.id}:{code}"
    return DriverRefusal(code=code, message=message[:MESSAGE_CHARS_MAX], retryable=retryable)


def _join_names(names: Collection[str]) -> str:
    return ", ".join(quoted(name) for name in sorted(names)[:10]) or "nothing"
