"""The log of a node: has every line its time and level, and is what repeats counted instead of written again?"""

import io
import json
import logging
import re
import sys
from pathlib import Path

from tests.cli.program import Interlock

from interlock.cli.terminal.output import KNOWN_MAX, REPEAT_S, LogFormat, LogHandler


class Written:
    def __init__(self, form: LogFormat) -> None:
        self.stream = io.StringIO()
        self._handler = LogHandler(form, self.stream)

    def say(self, message: str, at: float, level: int = logging.WARNING) -> None:
        record = logging.LogRecord("interlock.links", level, __file__, 1, message, None, None)
        record.created, record.msecs = at, 0.0
        self._handler.handle(record)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def test_a_line_has_time_level_and_source() -> None:
    log = Written("text")
    log.say("link x: lost", 0.0)
    assert log.lines == ["1970-01-01T00:00:00.000Z WARNING interlock.links: link x: lost"]


def test_repeated_messages_are_counted_even_when_their_pause_differs() -> None:
    log = Written("json")
    for at in range(10):
        log.say(f"link x: lost; next attempt in {at + 0.5} s", at)
        log.say("link y: lost", at)
    log.say("link x: lost; next attempt in 30.0 s", REPEAT_S + 1)
    found = [json.loads(line) for line in log.lines]
    assert [one["message"][:6] for one in found] == ["link x", "link y", "link x"]
    assert found[-1]["repeated"] == 9
    assert found[-1]["level"] == "warning"


def test_a_level_or_a_name_makes_another_line() -> None:
    log = Written("text")
    log.say("the same", 0.0)
    log.say("the same", 0.1, logging.ERROR)
    assert len(log.lines) == 2


def test_many_different_lines_are_all_written_and_not_all_remembered() -> None:
    log = Written("text")
    for number in range(KNOWN_MAX + 10):
        log.say(f"line {number}", 0.0)
    assert len(log.lines) == KNOWN_MAX + 10


def test_a_node_logs_in_json_where_asked(interlock: Interlock, tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text(
        '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
        f"[servers.gone]\ncommand = ['{sys.executable}', '-c', 'raise SystemExit(3)']\n"
    )
    with interlock.start("serve", "--json", "--log-format", "json") as node:
        node.next_line()
        done = node.interrupt()
    found = [json.loads(line) for line in done.err.splitlines()]
    assert any("gone" in one["message"] and one["level"] == "warning" for one in found), done.err
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["at"]) for one in found)
