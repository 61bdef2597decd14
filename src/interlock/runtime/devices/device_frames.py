"""The messages of a device, as an operator sees them."""

from interlock.operator_api.links import Frame, Frames
from interlock.protocol.devices.message_text import message_text
from interlock.runtime.base.clock import rfc3339
from interlock.runtime.devices.device_link import DeviceLink
from interlock.runtime.links.connected_link import ConnectedLink


def maybe_frames(link: ConnectedLink, after: int) -> Frames | None:
    """None: it is no device."""
    if not isinstance(link, DeviceLink):
        return None
    session = link.device
    tools = {one.tool.id: one.tool for one in session.tools.values()}
    return Frames(
        segment=link.segment,
        last=session.traffic.last,
        frames=tuple(
            Frame(
                number=seen.number,
                at=rfc3339(seen.wall),
                is_sent=seen.is_sent,
                hex=seen.data.hex(" "),
                text=message_text(session.description, tools, seen.data),
                discarded=seen.verdict,
            )
            for seen in session.traffic.since(after, session.now)
        ),
    )
