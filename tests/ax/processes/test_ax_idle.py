"""A node without subservers or drivers pays nothing for them."""

import subprocess
import sys


def test_websocket_modules_are_not_loaded_before_they_are_needed() -> None:
    program = (
        "import sys; sys.path[:0] = " + repr(sys.path) + "; import interlock.node.node; "
        "heavy = ('websockets', 'uvicorn.protocols.websockets', 'cryptography'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reader_of_driver_files_is_not_loaded_before_there_is_a_driver() -> None:
    program = (
        "import sys; sys.path[:0] = " + repr(sys.path) + "; import interlock.node.node; "
        "ours = 'interlock.drivers.'; "
        "heavy = ('ruamel', 'jsonschema_rs', *(ours + name for name in ('registry.registry', 'registry.operations', "
        "'contracts.service', 'provider', 'install'))); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
