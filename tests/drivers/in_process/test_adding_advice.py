"""Is the advice after a failed start that of the failure, and are a program's last words those that say something?"""

from typing import Any

import pytest

from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed, Locked
from interlock.drivers.trial import TrialResult, advice
from interlock.process.stderr import words_of

INSTALLED = Installed(command=("x",), version=None, lock=Locked(asked="", method="pip"))


def stood(reason: str = "", words: tuple[str, ...] = (), **more: Any) -> TrialResult:
    return TrialResult(state=DriverState.UNAVAILABLE, code=None, reason=reason, problems=(), last_words=words, **more)


@pytest.mark.parametrize(
    ("kind", "reason", "said"),
    [
        ("npm", "npm: the installer ended; npm error code E404; npm error 404 Not Found", "nothing of this name"),
        ("npm", "npm: the installer ended; npm error code ETARGET", "the npm registry has no such version"),
        ("npm", "npm: the installer ended; npm error code ENOTFOUND", "the npm registry is not reachable"),
        ("npm", "npm: installing x took longer than 300 s and was ended", "the npm registry is not reachable"),
        ("pypi", "pip: ERROR: Could not find a version (from versions: 1.0, 1.1)", "PyPI has no such version"),
        ("pypi", "pip: ERROR: Could not find a version (from versions: none)", "PyPI has nothing of this name"),
        ("pypi", "pip: NewConnectionError('…'); ERROR: No matching distribution", "PyPI is not reachable"),
        ("binary", "present: /x/y does not exist; install the server", "there is no such program here"),
        ("npm", "npm: x needs gcc", "the installer's words say"),
    ],
)
def test_a_failed_installation_is_reported_with_its_kind(kind: str, reason: str, said: str) -> None:
    hint = advice(stood(reason), {"kind": kind})
    assert said in hint
    assert hint.endswith("nothing was written")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ImportError: cannot import name 'McpError' from 'mcp.shared.exceptions' (/x.py)", "--with 'mcp<2'"),
        ("AttributeError: 'Server' object has no attribute 'list_resources'", "--with 'mcp<2'"),
        ("ModuleNotFoundError: No module named 'mcp.server.fastmcp'", "--with 'mcp<2'"),
        ("AttributeError: 'Thing' object has no attribute 'x'", "its own words say why"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'git'", "--program git"),
        ("Error: spawn git ENOENT", "--program git"),
        ("Error: EROFS: read-only file system, open '/x/memory.jsonl'", "--write FOLDER"),
        ("API_KEY is not set", "--env"),
    ],
)
def test_a_server_that_ended_is_reported_with_its_last_words(words: str, said: str) -> None:
    assert said in advice(stood("ended", (words,), installed=INSTALLED), {"kind": "pypi"})


def test_an_older_mcp_version_is_not_proposed_where_a_version_was_requested() -> None:
    failed = stood("ended", ("No module named 'mcp.server'",), installed=INSTALLED)
    assert "--with" not in advice(failed, {"kind": "pypi"}, ["mcp<2"])


def test_last_words_have_no_frames_and_no_marks() -> None:
    python = [
        "Traceback (most recent call last):",
        '  File "/x/bin/server", line 8, in <module>',
        "    sys.exit(main())",
        "             ^^^^^^",
        '  File "/x/server.py", line 3, in main',
        "    @server.list_resources()",
        "     ~~~~~~^^^^^^^^^^^^^^^",
        "AttributeError: 'Server' object has no attribute 'list_resources'",
    ]
    node = [
        "Error: Cannot find module '/x/server.js'",
        "    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)",
        "    at node:internal/main/run_main_module:28:49",
        "Node.js v20.1.0",
    ]
    assert words_of(python) == (python[-1],)
    assert words_of(node) == (node[0], node[-1])
    assert words_of(["  indented but no stack", "", "^"]) == ("indented but no stack",)
