"""A whole capability in one file: section, tool, operation, command and metric. The test copies it into the package."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from interlock.cli.command import Invocation, verb, verb_app
from interlock.config.keys import Key
from interlock.config.schema import section_values
from interlock.links.link import LocalLink, LocalTool, ToolResult
from interlock.node.capability_parts import CapabilityParts, NodeParts
from interlock.operator.operation import Operation, handles


class ToyPlan(msgspec.Struct, frozen=True, kw_only=True):
    greeting: Annotated[str, Key("Good morning", "The first word of a greeting.")] = "Hello"


class Greetings(msgspec.Struct, frozen=True, kw_only=True):
    """The people that were greeted, in their order."""

    greeted: tuple[str, ...]


LIST_GREETINGS = Operation("GET /admin/toy", "Who was greeted.", name="list_greetings", noun="toy", output=Greetings)
OPERATIONS = (LIST_GREETINGS,)

SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class ToyParts(CapabilityParts):
    def __init__(self, node: NodeParts) -> None:
        self._greeting = section_values(node.plan, "toy", ToyPlan).greeting
        self._greeted: list[str] = []
        self._count = node.stores.metrics.counter("interlock_toy_greetings_total", "Greetings so far.")
        tool = LocalTool(name="greet", description="Greet somebody.", input_schema=SCHEMA, handler=self._greet)
        self._link = LocalLink(("toy",), node.calls.link_events, node.stores.clock, tools=(tool,))

    def links(self) -> tuple[LocalLink, ...]:
        return (self._link,)

    def services(self) -> tuple[object, ...]:
        return (self,)

    async def _greet(self, principal: str, arguments: bytes) -> ToolResult:
        name = msgspec.json.decode(arguments)["name"]
        self._greeted.append(name)
        self._count.add()
        return ToolResult(content={"text": f"{self._greeting}, {name}"})

    @handles(LIST_GREETINGS)
    def list_greetings(self) -> Greetings:
        return Greetings(greeted=tuple(self._greeted))


app = verb_app("See who was greeted.")


@verb(app, "toy", examples="interlock toy")
def list_greeted(invocation: Invocation) -> None:
    """See who was greeted."""
    answer = invocation.node.call(LIST_GREETINGS).as_(Greetings)
    invocation.out.line(", ".join(answer.greeted))
