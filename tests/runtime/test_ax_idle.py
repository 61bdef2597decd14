"""A node without subservers pays nothing for them."""

import subprocess
import sys


def test_what_speaks_websocket_is_not_loaded_before_somebody_asks() -> None:
    program = (
        "import sys; sys.path[:0] = " + repr(sys.path) + "; import interlock.runtime.node; "
        "heavy = ('websockets', 'uvicorn.protocols.websockets', 'cryptography'); "
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
