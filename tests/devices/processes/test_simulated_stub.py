"""Does what `interlock device simulate` plays pass `interlock device test`, and does its port go with it?"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DESCRIPTION = """
profile = "{profile}"
[link]
transport = "uart_cbor"
port = "{port}"
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
response = [{{ name = "celsius", type = "i16", scale = 0.1 }}, {{ name = "key", type = "bytes", size = 4 }}]
[[tool]]
id = 2
name = "set"
mutable = true
reversible = true
request = [{{ name = "celsius", type = "u16", scale = 0.05 }}]
[[event]]
id = 9
name = "hot"
response = [{{ name = "celsius", type = "i16", scale = 0.1 }}]
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "interlock", "device", *words]


@contextmanager
def simulated(file: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command("simulate", str(file), *words), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize("profile", ["a", "b"])
def test_the_simulated_device_passes_the_checks_of_its_profile_and_takes_its_port_with_it(
    profile: str, tmp_path: Path
) -> None:
    file, port = tmp_path / "played.toml", tmp_path / "played.pty"
    file.write_text(DESCRIPTION.format(profile=profile, port=port))
    with simulated(file) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ended = subprocess.run(
            command("test", str(file), "--json", "--within", "0.5", "--gap", "0.05"),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        checks = json.loads(ended.stdout)["checks"]
        assert [check for check in checks if check["result"] == "failed"] == []
        assert {check["name"]: check["result"] for check in checks}["read answers as described"] == "passed"
        if profile == "b":  # the same line of another process
            second = subprocess.run(command("simulate", str(file)), capture_output=True, text=True, check=False)
            assert second.returncode == 1
            assert "another simulated device answers there" in second.stderr
            assert port.is_symlink()
        process.terminate()
        assert process.wait(5) == 0
    assert not port.is_symlink()
