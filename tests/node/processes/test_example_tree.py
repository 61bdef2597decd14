"""Does the example that `make run` starts keep to MCP, and is what the README prints of a configuration true?"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
GREENHOUSE = ROOT / "examples" / "tree" / "greenhouse.py"


class Greenhouse:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def say(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ask(self, method: str, params: Any) -> Any:
        return self.say(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))

    def call(self, name: str, arguments: Any) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": arguments})


@pytest.fixture
def greenhouse() -> Iterator[Greenhouse]:
    with subprocess.Popen(
        [sys.executable, str(GREENHOUSE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Greenhouse(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("set_window", {"percent": "abc"}, "percent must be a whole number"),
        ("set_window", {"percent": True}, "percent must be a whole number"),
        ("set_window", {"percent": 1.5}, "percent must be a whole number"),
        ("set_window", {"percent": None}, "percent must be a whole number"),
        ("set_window", {"percent": float("nan")}, "percent must be a whole number"),
        ("set_window", {"percent": 101}, "percent must be from 0 to 100"),
        ("set_window", {"percent": -(10**400)}, "percent must be from 0 to 100"),
        ("set_window", {}, "percent is missing"),
        ("set_window", {"percent": 1, "speed": 2}, "there is no argument speed"),
        ("water_beds", {"litres": 0}, "litres must be more than 0"),
        ("water_beds", {"litres": [1]}, "litres must be a number"),
        ("water_beds", {"litres": 41}, "The tank holds only 40.0 l"),
    ],
)
def test_bad_arguments_are_an_error_of_the_tool_and_change_nothing(
    greenhouse: Greenhouse, tool: str, arguments: dict[str, Any], said: str
) -> None:
    result = greenhouse.call(tool, arguments)["result"]
    assert result["isError"] is True
    assert said in result["content"][0]["text"]
    climate = greenhouse.call("read_climate", {})["result"]
    assert climate["structuredContent"] == {"celsius": 21.5, "window_percent": 0, "tank_litres": 40.0}


def test_good_arguments_do_what_they_say(greenhouse: Greenhouse) -> None:
    assert greenhouse.call("set_window", {"percent": 30})["result"]["structuredContent"]["window_percent"] == 30
    assert greenhouse.call("set_window", {"percent": 40.0})["result"]["structuredContent"]["window_percent"] == 40
    assert greenhouse.call("water_beds", {"litres": 1.5})["result"]["structuredContent"]["tank_litres"] == 38.5


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "nonesuch", "arguments": {}}, -32602),
        ("tools/call", {}, -32602),
        ("tools/call", {"name": "set_window", "arguments": [1]}, -32602),
        ("tools/call", [], -32602),
        ("tools/unknown", {}, -32601),
    ],
)
def test_a_request_that_is_none_is_a_protocol_error(
    greenhouse: Greenhouse, method: str, params: Any, code: int
) -> None:
    assert greenhouse.ask(method, params)["error"]["code"] == code
    assert greenhouse.ask("ping", {})["result"] == {}


@pytest.mark.parametrize(("line", "code"), [("{", -32700), ("[]", -32600), ("7", -32600), ('{"id": 1}', -32600)])
def test_a_line_that_is_no_message_is_answered_and_so_is_the_next_line(
    greenhouse: Greenhouse, line: str, code: int
) -> None:
    assert greenhouse.say(line)["error"]["code"] == code
    assert greenhouse.ask("ping", {})["result"] == {}


def test_a_progress_token_of_no_form_hinders_no_call(greenhouse: Greenhouse) -> None:
    params = {"name": "read_climate", "_meta": 7}
    assert "result" in greenhouse.ask("tools/call", params)


def checked(config: Path, data: Path, **env: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "check", str(config), "--data", str(data), "--json"],
        env={name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")} | env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return json.loads(done.stdout)


def test_the_example_tree_is_in_order(tmp_path: Path) -> None:
    found = checked(ROOT / "examples" / "tree" / "interlock.toml", tmp_path)
    assert found["problems"] == []
    assert [one for one in found["warnings"] if "PATH" not in one["message"]] == []  # Node.js need not be here


def test_the_configuration_of_the_readme_needs_nothing_but_its_script(tmp_path: Path) -> None:
    (sample,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "project").mkdir()
    config = tmp_path / "project" / "interlock.toml"
    config.write_text(sample)
    (tmp_path / "project" / "notes.py").touch()
    found = checked(config, tmp_path / "data")
    assert (found["problems"], found["warnings"]) == ([], [])
    config.write_text(sample.replace("# headers", "headers"))
    assert checked(config, tmp_path / "data")["problems"] == []  # the node's own store is asked when it runs
