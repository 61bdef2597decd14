"""Fails a test of a kind that starts no process if it starts one.

Tests in folders named `pure`, `in_process` and `fuzz` run in the process of the run alone. That makes them fast, and
`make quick` runs all of them. The interpreter reports every start of a process to an audit hook, whichever library
starts it, before the process exists; only the own starter of uvloop does not report.
"""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

KINDS = frozenset({"pure", "in_process", "fuzz"})
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system"})


def may_start_processes(test: Path) -> bool:
    return not KINDS & set(test.parts)


class ProcessGuard:
    """A plugin that refuses to start a process while such a test runs, and fails the test if the refusal was caught."""

    def __init__(self) -> None:
        self.is_active = False
        self.refused: list[str] = []
        sys.addaudithook(self.on_event)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_active and event in STARTS:
            self.refused.append(f"{event} {arguments!r:.200}")
            raise AssertionError("a test of this kind starts no process: move it to the folder `processes`")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.is_active = not may_start_processes(item.path)
        self.refused.clear()
        try:
            return (yield)
        finally:
            self.is_active = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        result = yield
        assert self.refused == [], "a test of this kind starts no process: move it to the folder `processes`"
        return result
