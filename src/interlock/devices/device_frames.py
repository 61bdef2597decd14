"""The messages of a device, as an operator sees them."""

from typing import Final

from interlock.core.clock import rfc3339
from interlock.devices.device_link import DeviceLink
from interlock.devices.protocol.message_text import MessageTexts
from interlock.links.api import Frame, Frames
from interlock.links.link import Link

EARLIER: Final = 32  # messages among which the request of an answer is looked for


def maybe_frames(link: Link, after: int) -> Frames | None:
    """None: it is no device."""
    if not isinstance(link, DeviceLink):
        return None
    session = link.device
    texts = MessageTexts(session.description, {one.tool.id: one.tool for one in session.tools.values()})
    told = [(seen, texts.text(seen.data)) for seen in session.traffic.since(after - EARLIER, session.now)]
    frames = tuple(
        Frame(
            number=seen.number,
            at=rfc3339(seen.wall),
            is_sent=seen.is_sent,
            hex=seen.data.hex(" "),
            text=text,
            discarded=seen.verdict,
        )
        for seen, text in told
        if seen.number > after
    )
    return Frames(segment=link.segment, last=session.traffic.last, frames=frames)
