"""What the suite starts as its client: `python -S errand.py SOCKET ERA URL`.

It asks the process that started the suite (`hosting` in upstream.py), which has the SDK loaded, to run the scenario,
and ends as the scenario does: hundredths of a second instead of one for each of many scenarios.
"""

import json
import os
import socket
import sys


def main(path: str, era: str, url: str) -> int:
    told = {name: value for name, value in os.environ.items() if name.startswith("MCP_CONFORMANCE_")}
    with socket.socket(socket.AF_UNIX) as host:
        host.connect(path)
        host.sendall(json.dumps({"era": era, "url": url, "told": told}).encode())
        host.shutdown(socket.SHUT_WR)
        fault = b""
        while data := host.recv(65536):
            fault += data
    # The last byte says that the scenario went well; without any, the host is gone.
    sys.stderr.buffer.write(fault.removesuffix(b"\0"))
    return 0 if fault == b"\0" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
