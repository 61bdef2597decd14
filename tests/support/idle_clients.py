"""Clients that begin a request, or do not read its answer, and then do nothing: opened early in a run, judged late.

The node gives them half a minute. So that nobody waits for it, other tests run meanwhile.
"""

import time

from tests.support.node_process import RunningNode
from tests.support.raw_client import RawConnection, call

PATIENCE_S = 30.0
SLACK_S = 6.0
HUGE = 8_000_000
ASKED = 4


class IdleClients:
    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self.began = time.monotonic()
        whole = call("good__echo", {"a": 1})
        late = {
            "half a request line": whole[:8],
            "half a header": whole[:120],
            "no body": whole[: whole.index(b"\r\n\r\n") + 4],
            "half a body": whole[:-20],
        }
        self.half_sent = {name: RawConnection(node, PATIENCE_S + SLACK_S).send(data) for name, data in late.items()}
        operator = whole[: whole.index(b"\r\n\r\n") + 4].replace(b"POST /mcp", b"POST /admin/tokens")
        self.at_operator = {
            name: RawConnection(node, PATIENCE_S + SLACK_S, node.operator_url).send(data)
            for name, data in {"half a head": operator[:120], "silent": b""}.items()
        }
        self.deaf = RawConnection(node, PATIENCE_S + SLACK_S)
        self.deaf.send(b"".join(call("huge__echo", request_id=number) for number in range(ASKED)))

    def close(self) -> None:
        for rude in (*self.half_sent.values(), *self.at_operator.values(), self.deaf):
            rude.socket.close()
