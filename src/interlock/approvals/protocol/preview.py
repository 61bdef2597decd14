"""What a person is shown of an approval's params before deciding: the arguments of a call, or a definition."""

from typing import Final

import msgspec

from interlock.approvals.protocol.approval import Kind
from interlock.wire.jsontext.folded_preview import Shown, fold, fold_differences


def shown_params(params: bytes, kind: str, *, lines_max: int, chars_max: int) -> Shown:
    """The arguments of a call, whatever they look like; of a changed definition, what changed."""
    change = maybe_change(params) if kind == Kind.DEFINITION.value else None
    if change is not None:
        return fold_differences(*change, lines_max=lines_max, chars_max=chars_max)
    return fold(params, lines_max=lines_max, chars_max=chars_max)


def maybe_change(params: bytes) -> tuple[bytes, bytes] | None:
    """What a definition was and is, where it changed."""
    try:
        members = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (bytes(members["before"]), bytes(members["after"])) if members.keys() == {"before", "after"} else None


# What a yes does to the node itself, by the kind of approval.
NODE_EFFECTS: Final = {
    "enrolment": "the holder of this key may approve from now on; approve it only if you made it yourself",
    "configuration": "you say that you changed this; it is in effect, and is no longer shown as unsigned",
    "request": "the registry of names takes this up as it is shown; nothing is called",
}
# What a yes does in a room.
PROPOSAL_EFFECT: Final = "exactly this is sent to its target in the room, once, in your name"
# What a yes does to an agent, by the kind of approval.
AGENT_EFFECTS: Final = {
    "start": "the agent starts; each step that it reports is still judged",
    "step": "the agent goes on with the step that it reported, once",
    "verify": "the agent is unblocked, or goes on with the step that it reported",
}
