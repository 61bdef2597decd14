"""The libraries that read driver files are imported when a file is read, not before."""

import subprocess
import sys


def test_the_parsers_are_loaded_only_when_a_file_is_read() -> None:
    modules = "driver contract inventory server_block versions"
    names = ", ".join(f"interlock.drivers.protocol.files.{each}" for each in modules.split())
    code = f"import sys, {names}; print(sorted({{'ruamel', 'jsonschema_rs', 'yaml'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
