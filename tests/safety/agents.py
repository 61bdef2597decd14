"""A node in this process with the safety loop, in front of a real server; agents of named clients, and an operator."""

import base64
import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.gate.held_calls import ADA, ActuatorLog, actuator_table, anchor
from tests.support.node_process import _toml
from tests.support.node_with_clock import SECONDS, AheadClock, ClockedNode, ModernRequest

from interlock.approvals.protocol.approval import Approval
from interlock.aql.protocol.errors import AqlFailure, OperationFailed
from interlock.config.load import load
from interlock.core.calls.caller import Caller, Principal
from interlock.node.node import Node
from interlock.safety import codes

ENFORCING = '[safety]\nmode = "enforcing"\npreapproved = true\n'
LOOK = "calling plant.look to see what is there"


class Agent:
    """An agent of a client that has a token."""

    def __init__(self, here: "AgentNode", client: str, name: str) -> None:
        self.here, self.client, self.name = here, client, name

    @property
    def caller(self) -> Caller:
        return self.here.caller(self.client)

    async def _hear(self, work: Awaitable[Any]) -> Any:
        """What it is answered is kept, to be searched for codes."""
        try:
            answer = await work
        except OperationFailed as error:
            self.here.heard.append(str(error.failure))
            raise
        self.here.heard.append(str(answer))
        return answer

    async def start(self, **params: Any) -> Any:
        return await self._hear(self.here.loop.execute(self.caller, {"element_name": self.name, **params}))

    async def report(self, hint: str, **params: Any) -> Any:
        said = {"element_name": self.name, "nextActionHint": hint, **params}
        return await self._hear(self.here.loop.report(self.caller, said))

    async def directive(self, hint: str, **params: Any) -> Any:
        return (await self.report(hint, **params))["autonomy"]

    async def complete(self, **params: Any) -> Any:
        return await self._hear(self.here.loop.complete(self.caller, {"element_name": self.name, **params}))

    async def abort(self, **params: Any) -> Any:
        return await self._hear(self.here.loop.abort(self.caller, {"element_name": self.name, **params}))

    async def verify(self, id: str, code: str) -> Any:
        return await self._hear(self.here.verification.verify(self.caller, {"challenge_id": id, "code": code}))

    async def confirm(self, token: str, **params: Any) -> Any:
        return await self._hear(self.here.verification.confirm(self.caller, {"confirmation_token": token, **params}))

    def call(self, tool: str = "plant.look", **arguments: Any) -> Any:
        return self.here.call(tool, arguments, who=self.client)

    async def refusal(self, tool: str = "plant.look", **arguments: Any) -> str:
        error = await self.call(tool, **arguments).error()
        assert (error["code"], error["message"]) == (32150, "execution_refused")
        return str(error["data"]["reason"])

    async def passes(self, tool: str = "plant.look", **arguments: Any) -> None:
        await self.call(tool, **arguments).result()


class AgentNode(ClockedNode):
    def __init__(self, node: Node, clock: AheadClock, folder: Path) -> None:
        super().__init__(node, clock)
        self.folder = folder
        self.heard: list[str] = []  # by agents, on every way
        self._asked: list[ModernRequest] = []
        self.loop, self.verification = node.calls.safety.loop, node.calls.safety.verification
        self.inbox, self.codes = node.approvals.inbox, node.approvals.codes

    def ask(self, *words: Any, **options: Any) -> ModernRequest:
        asked = super().ask(*words, **options)
        self._asked.append(asked)
        return asked

    def search(self, issued: list[str]) -> None:
        """No agent was told any code or token that was made (8.8.4)."""
        heard = "\n".join([*self.heard, *(str(one.emitted) + str(one._answer) for one in self._asked)])
        for secret in issued:
            for form in forms(secret):
                assert form not in heard

    def caller(self, client: str) -> Caller:
        principal = self.principals.setdefault(client, Principal(client))
        return self.node.fronts.modern.caller(principal, "http", None, "auto")

    def agent(self, client: str, name: str = "coder") -> Agent:
        self.principals.setdefault(client, Principal(client))
        return Agent(self, client, name)

    def shown(self, id: str) -> str:
        """The code or the token, as operators see it."""
        shown = self.codes.find_code(id)
        assert shown is not None
        return shown

    def waiting(self, client: str) -> list[Approval]:
        return [one for one in self.inbox.waiting() if one.requested_by == client]

    async def audited(self, method: str) -> list[Any]:
        await self.node.stores.recorder.flush()
        records = [json.loads(record.data) for record in await self.node.stores.audit.read(0, 100_000)]
        return [record for record in records if record["method"] == method]


def forms(secret: str) -> set[str]:
    """How a code or a token could be written."""
    plain = secret.replace("-", "") if not secret.startswith("conf_") else secret
    encoded = {plain.encode().hex(), base64.b64encode(plain.encode()).decode()}
    return {secret, plain, plain.lower(), codes.grouped(plain)} | encoded


async def failed(work: Any) -> AqlFailure:
    try:
        answer = await work
    except OperationFailed as error:
        return error.failure
    raise AssertionError(f"not refused: {answer}")


@contextlib.asynccontextmanager
async def agent_node(
    folder: Path, extra: str = ENFORCING, clock: AheadClock | None = None, *, anchored: str = anchor("ada", ADA, "*")
) -> AsyncIterator[AgentNode]:
    config = folder / "interlock.toml"
    config.write_text(
        f"{anchored}{extra}\n[servers.plant]\n{_toml(actuator_table(ActuatorLog(folder / 'diary.jsonl')))}"
    )
    clock = clock or AheadClock()
    plan = load(config, os.environ, {"data": str(folder / "data")}).plan
    node = Node(plan, lambda operations, authenticate: None, clock, listen=False)
    issued: list[str] = []
    made = codes.new_code, codes.new_token

    def noted(make: Callable[[], str]) -> Callable[[], str]:
        @functools.wraps(make)
        def note() -> str:
            issued.append(make())
            return issued[-1]

        return note

    codes.new_code, codes.new_token = noted(made[0]), noted(made[1])
    await node.open()
    here = AgentNode(node, clock, folder)
    try:
        await node.readiness.settle(SECONDS)
        yield here
    finally:
        codes.new_code, codes.new_token = made
        await node.close()
    here.search(issued)
