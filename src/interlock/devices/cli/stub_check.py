"""The checks of a stub: each check is one sentence of MCP-AX or its CDDL, tried on the line.

The port is opened without a node, with blocking reads. A check passes, fails (`NotKept`) or is skipped (`NotTried`). A
check never moves anything: only tools that the description declares as not mutable are called. An id that is not
described might do something, so it is called only with --unknown-ids, and for Profile A never without a description.
"""

import base64
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
import typer

from interlock.cli.command import Invocation
from interlock.cli.terminal.errors import EXIT_REFUSED
from interlock.devices.protocol import frame_codec, messages
from interlock.devices.protocol.cbor_codec import encoded
from interlock.devices.protocol.description import PARITIES, TOOL_ID_MAX, DeviceDescription, Event, ToolDescription
from interlock.devices.protocol.device_tools import Announcement, announced_tool
from interlock.devices.protocol.framing import CobsFraming, framing_of
from interlock.devices.protocol.layouts import is_number, layout_size, limits
from interlock.devices.protocol.messages import DeviceAnswer, DeviceFault
from interlock.wire.refusal import Refused

READ_BYTES: Final = 4096
DRAIN_S: Final = 2.0  # beyond the silence that is waited for: some devices never end
_SOCKET: Final = "socket://"


class Line:
    """The serial port or socket of a device, opened without a node. Reading has a time limit."""

    def __init__(self, description: DeviceDescription) -> None:
        """Open the port of the device. Raise OSError if that fails, or ValueError if the port's name is invalid."""
        link = description.link
        self.framing = framing_of(link, description.profile)
        self._messages: list[bytes] = []
        port = link.port or ""
        self._opened: Any
        if port.startswith(_SOCKET):
            place = urlsplit(port)
            if place.hostname is None or place.port is None:
                raise ValueError(f"{port} is not socket://HOST:PORT")
            self._opened = socket.create_connection((place.hostname, place.port), timeout=5.0)
            self._opened.settimeout(None)
            self._opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            import serialx

            parity = serialx.Parity(PARITIES[link.parity])
            self._opened = serialx.serial_for_url(port, baudrate=link.baud, parity=parity)
            self._opened.open()
        self._descriptor: int = self._opened.fileno()

    def send(self, message: bytes) -> None:
        self.send_bytes(self.framing.encode(message))

    def send_bytes(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def find_message(self, within_s: float) -> bytes | None:
        """Return the next complete message, or None if none arrives within `within_s` seconds. Raise ConnectionError if
        the port is lost.
        """
        ends = time.monotonic() + within_s
        while not self._messages:
            left = ends - time.monotonic()
            if left <= 0:
                return None
            readable, _, _ = select.select([self._descriptor], [], [], left)
            data = os.read(self._descriptor, READ_BYTES) if readable else b""
            if readable and not data:
                raise ConnectionError("the line is gone")
            self._messages += self.framing.feed_untrusted(data, time.monotonic())
        return self._messages.pop(0)

    def drain(self, silence_s: float) -> None:
        """Discard incoming messages until the line has been silent for `silence_s` seconds, or until DRAIN_S more
        seconds have passed.
        """
        ends = time.monotonic() + silence_s + DRAIN_S
        while time.monotonic() < ends and self.find_message(silence_s) is not None:
            pass

    def close(self) -> None:
        self._opened.close()


SILENCE_S: Final = 0.15  # after what is not to be answered
TRIES: Final = 3  # of what any line may lose

Verdict = Literal["passed", "failed", "skipped"]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one check, in the form in which it is printed."""

    name: str
    clause: str
    result: Verdict
    message: str = ""


class NotKept(Exception):
    """Error for a rule that the stub broke. The message says what the stub did instead."""


class NotTried(Exception):
    """Exception that skips a check. The message says why."""


@dataclass(eq=False)
class StubCheck:
    """The checks of a stub, which is the part of a device's firmware that speaks MCP-AX. `run` performs them in order
    and yields the results.
    """

    _line: Line
    _description: DeviceDescription
    within_s: float
    gap_s: float
    may_call_unknown: bool

    def __post_init__(self) -> None:
        self._codec = messages.codec_of(self._description)
        self._is_cobs = isinstance(self._line.framing, CobsFraming)
        self._announced: tuple[messages.Announced, ...] = ()

    def run(self) -> Iterator[CheckResult]:
        checks = self._of_profile_a() if self._description.profile == "a" else self._of_profile_b()
        self._line.drain(SILENCE_S)
        for name, clause, check in checks:
            result: Verdict = "passed"
            message = ""
            try:
                message = check() or ""
            except NotKept as fault:
                result, message = "failed", str(fault)
            except NotTried as reason:
                result, message = "skipped", str(reason)
            yield CheckResult(name=name, clause=clause, result=result, message=message)

    def _of_profile_a(self) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
        yield "a heartbeat is echoed with its SEQ", "B.1", partial(self._beats, 1, 128, 255)
        yield "noise before a frame is passed over", "B.1", self._passes_noise
        yield "a frame with a wrong checksum is dropped", "B.1", self._drops_wrong_checksum
        yield "a LEN below 3 and one beyond the buffer are dropped", "B.1", self._drops_wrong_lengths
        yield "a frame that stops is given up after silence", "B.1", self._gives_up_stopped_frame
        kinds = (frame_codec.RESPONSE, frame_codec.REGISTRATION, 0x05, 0xFF)
        of_kinds = {f"TYPE 0x{kind:02X}": bytes((kind, 0, 1)) for kind in kinds}
        yield "types that are not for stubs are not answered", "B.1", partial(self._drops_messages, of_kinds)
        yield "an unknown id is answered with a status", "B.1", self._refuses_unknown_command
        for tool in self._description.tools:
            yield f"{tool.name} answers as described", "B.1", partial(self._serves, tool)
            yield f"{tool.name} refuses a payload of another length", "B.1", partial(self._refuses_length, tool)

    def _of_profile_b(self) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
        yield "tools are announced when asked for", "B.2", self._announces
        yield "the announcement is the same when asked again", "B.2", self._announces_again
        yield "a heartbeat is answered with its id", "8.2", partial(self._beats, 1, 23, 24, 255)
        yield "key 0 is accepted as 2 and as text", "8.2", partial(self._answers_beats, {0: 2}, {0: "2.0"})
        more_keys = {19: [1, {2: 3}], "more": "text"}
        yield "unknown keys are ignored", "8.2", partial(self._answers_beats, more_keys)
        beat, framed = self._codec.encode_heartbeat(5), partial(self._framed, frame_codec.HEARTBEAT, 0)
        no_id = {"a heartbeat without an id": framed(frame_codec.UNASKED, encoded({1: "h"}))}
        yield "what has no id is not answered", "8.2", partial(self._drops_messages, no_id)
        no_maps = {
            "an array": framed(5, encoded([1, "h"])),
            "two items in one frame": beat + b"\x00",
            "an item that ends too early": beat[:-1],
            "a length that lies": framed(5, b"\xa2\x01\x61h\x02\x9a\xff\xff\xff\xff"),
        }
        yield "what is no CBOR map is dropped", "B.2", partial(self._drops_messages, no_maps)
        no_frames = {"a code byte beyond its frame": b"\x09\x01\x02\x00", "an empty frame": b"\x00\x00"}
        yield "what is no COBS frame is dropped", "B.2", partial(self._drops_frames, no_frames)
        too_large = {"more bytes than a frame has": b"\x01" * (2 * self._description.link.max_frame) + b"\x00"}
        yield "a message beyond the buffer is dropped", "B.2", partial(self._drops_frames, too_large)
        yield "a frame that stops is given up", "B.2", self._gives_up_stopped_frame
        yield "a frame with a wrong checksum is dropped", "8.1", self._drops_wrong_checksum
        yield "an unknown id is answered with an error", "8.2", self._refuses_unknown_tool
        yield "described tools are announced as described", "B.2", self._agrees_with_description
        for tool in self._description.tools:
            yield f"{tool.name} answers as described", "B.2", partial(self._serves, tool)

    # Asking

    def _ask(self, message: bytes) -> messages.Received:
        """Send a message and return its answer. Send it again if it is lost. Raise NotKept if no answer arrives."""
        for _ in range(TRIES):
            self._line.send(message)
            if (answer := self._find_answer(self.within_s)) is not None:
                return answer
        raise NotKept(f"no answer within {self.within_s:g} s, {TRIES} times")

    def _ask_for(
        self, message: bytes, request_id: int, *, what: str = "", is_refused: bool | None = None
    ) -> DeviceAnswer:
        """Send a request and return its answer. Raise NotKept if there is no answer, or if it is not the expected one.

        `what` is the subject of the error message. `is_refused` says whether the stub must refuse the request; None
        accepts both.
        """
        answer = self._ask(message)
        is_own = isinstance(answer, DeviceAnswer) and answer.request_id == request_id
        if not isinstance(answer, DeviceAnswer) or not is_own or is_refused not in (None, bool(answer.status)):
            raise NotKept(f"{what} answered with {answer}".strip())
        return answer

    def _find_answer(self, within_s: float) -> messages.Received | None:
        """Return the next message that is not an event, or None if none arrives in time. Raise NotKept if a message is
        malformed.
        """
        ends = time.monotonic() + within_s
        while True:
            if (message := self._line.find_message(ends - time.monotonic())) is None:
                return None
            try:
                received = self._codec.decode_untrusted(message)
            except DeviceFault as fault:
                raise NotKept(f"{message.hex(' ')}: {fault.detail}") from fault
            if not isinstance(received, messages.EventMessage):  # a device may send an event at any time
                return received

    def _beats(self, *ids: int) -> None:
        """Send heartbeats with these ids. Raise NotKept if the stub does not answer each of them, which shows that it
        still works.
        """
        for each in ids:
            what = f"heartbeat {each} was"
            self._ask_for(self._codec.encode_heartbeat(each), each, what=what, is_refused=False)

    def _drops(self, what: str, data: bytes) -> None:
        """Send bytes that the stub must ignore. Raise NotKept if the stub answers them, or does not answer heartbeats
        afterwards.
        """
        self._line.send_bytes(data)
        try:
            is_silent = self._find_answer(SILENCE_S) is None
        except NotKept:  # an answer that cannot be read is an answer
            is_silent = False
        if not is_silent:
            self._line.drain(SILENCE_S)
            raise NotKept(f"it answered {what}")
        self._beats(9)

    # Both profiles

    def _unknown_id(self, others: Iterable[messages.Announced | Event]) -> int:
        """Return an id that neither a tool nor one of `others` has. Raise NotTried if the user does not allow calls of
        unknown ids.
        """
        if not self.may_call_unknown:
            raise NotTried("not tried: it might do something; --unknown-ids asks for it")
        return max(set(range(TOOL_ID_MAX + 1)) - {each.id for each in (*self._description.tools, *others)})

    def _gives_up_stopped_frame(self) -> None:
        frame = self._line.framing.encode(self._codec.encode_heartbeat(5))
        self._line.send_bytes(frame[: len(frame) // 2])
        if self._line.find_message(self.gap_s) is not None:
            raise NotKept("it answered half a frame")
        if self._is_cobs:
            self._line.send_bytes(b"\0")
        self._beats(6)

    def _drops_wrong_checksum(self) -> None:
        link = self._description.link
        if self._is_cobs and link.crc in ("auto", "none"):
            raise NotTried("this link has no checksum; crc = 'crc16' in [link] asks for one")
        message = self._codec.encode_heartbeat(5)
        if not self._is_cobs:
            frame = bytearray(self._line.framing.encode(message))
            frame[-1] ^= 0x01
            self._drops("a frame with a wrong checksum", bytes(frame))
        else:
            unchecked = CobsFraming(max_message=link.max_frame)
            self._drops("a frame without a checksum", unchecked.encode(message))

    def _serves(self, tool: ToolDescription) -> None:
        if tool.mutable is not False:
            raise NotTried("not called: only tools with mutable = false are")
        announced = [each for each in self._announced if each.id == tool.id]
        if self._description.profile == "b" and not announced:
            raise NotTried("not announced")
        try:
            if announced:
                tool = announced_tool(announced[0], tool, self._description.link)
            arguments = {field.name: _simplest_argument(field) for field in tool.request}
            answer = self._ask_for(self._codec.encode_call(33, tool, arguments), 33)
            if answer.tool_id not in (None, tool.id):
                raise NotKept(f"answered with {answer}")
            if answer.status:
                raise NotKept(f"failed with {answer.status}")
            self._codec.result(tool, answer.payload)
        except DeviceFault as fault:
            raise NotKept(f"{fault.detail}{f' ({fault.path})' if fault.path else ''}") from fault

    # Profile A

    def _passes_noise(self) -> None:
        self._line.send_bytes(b"\x00\xff\x55\xaa")
        self._beats(7)

    def _drops_wrong_lengths(self) -> None:
        for wrong in (b"\x02\x04\x00\x00", b"\x7f" + b"\x00" * 8):
            self._line.send_bytes(bytes((self._description.link.sof,)) + wrong)
            self._line.drain(self.gap_s)
        self._beats(8)

    def _refuses_unknown_command(self) -> None:
        if not self._description.tools:
            raise NotTried("needs a description: an id that is not described might do something")
        unknown = self._unknown_id(self._description.events)
        self._ask_for(bytes((frame_codec.CALL, unknown, 3)), 3, what=f"id {unknown} was", is_refused=True)

    def _refuses_length(self, tool: ToolDescription) -> None:
        length = tool.req_len if tool.req_len is not None else layout_size(tool.payload, tool.request)
        if tool.mutable is not False or length is None:
            raise NotTried("only tried on tools with mutable = false and a fixed length")
        answer = self._ask(bytes((frame_codec.CALL, tool.id, 4)) + bytes(length + 1))
        if not isinstance(answer, DeviceAnswer) or not answer.status:
            raise NotKept(f"{length + 1} bytes instead of {length} were answered with {answer}")

    # Profile B

    def _announces(self) -> str:
        self._announced = self._announcement()
        ids = ", ".join(str(tool.id) for tool in self._announced)
        return f"tools {ids}" if ids else "no tools"

    def _announces_again(self) -> None:
        if self._announcement() != self._announced:
            raise NotKept("another announcement")

    def _announcement(self) -> tuple[messages.Announced, ...]:
        request = self._codec.encode_registration_request()
        assert request is not None  # noqa: S101  # for the type checker
        announcement = Announcement()
        received: messages.Received | None = self._ask(request)
        while True:
            if not isinstance(received, messages.AnnouncementFrame):
                raise NotKept(f"answered with {received}" if received else "a frame of the announcement is missing")
            try:
                tools = announcement.add(received)
            except DeviceFault as fault:
                raise NotKept(fault.detail) from fault
            if tools is not None:
                return tools
            received = self._find_answer(self.within_s)

    def _framed(self, kind: int, tool_id: int, seq: int, message: bytes) -> bytes:
        """Put the header of a Profile A frame before a message of Profile B, if the link uses such frames. Otherwise
        return the message unchanged.
        """
        return message if self._is_cobs else bytes((kind, tool_id, seq)) + message

    def _answers_beats(self, *members_added: dict[Any, Any]) -> None:
        for members in members_added:
            self._ask_for(self._framed(frame_codec.HEARTBEAT, 0, 11, encoded({1: "h", 2: 11, **members})), 11)

    def _drops_messages(self, dropped: dict[str, bytes]) -> None:
        """Check that the stub answers none of these messages."""
        for what, message in dropped.items():
            self._drops(what, self._line.framing.encode(message))

    def _drops_frames(self, frames: dict[str, bytes]) -> None:
        """Check that the stub ignores these bytes, which are not valid COBS frames. Raise NotTried if the link has
        other frames.
        """
        if not self._is_cobs:
            raise NotTried("this link has another framing")
        for what, data in frames.items():
            self._drops(what, data)

    def _refuses_unknown_tool(self) -> None:
        unknown = self._unknown_id(self._announced)
        message = self._framed(frame_codec.CALL, unknown, 12, encoded({1: unknown, 2: 12, 3: {}}))
        self._ask_for(message, 12, what=f"id {unknown} was", is_refused=True)

    def _agrees_with_description(self) -> None:
        if not self._description.tools:
            raise NotTried("nothing is described")
        announced = {tool.id: tool for tool in self._announced}
        for tool in self._description.tools:
            if tool.id not in announced:
                raise NotKept(f"{tool.name} ({tool.id}) is not announced")
            try:
                announced_tool(announced[tool.id], tool, self._description.link)
            except DeviceFault as fault:
                raise NotKept(fault.detail) from fault


def _simplest_argument(field: Any) -> Any:
    """Return the simplest argument that the field accepts."""
    if is_number(field):
        least, greatest = limits(field)
        return 0 if (least is None or least <= 0) and (greatest is None or greatest >= 0) else least
    match field.type:
        case "bool":
            return False
        case "enum":
            return next(iter(field.values))
        case "bytes":
            return base64.b64encode(bytes(field.size or 0)).decode()
        case _:
            return ""


HELD = "a node that has the device holds its port: stop the node, or move the description out of .devices meanwhile"
WORDS = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}


def check_stub(
    invocation: Invocation, description: DeviceDescription, *, within_s: float, gap_s: float, may_call_unknown: bool
) -> None:
    out = invocation.out
    items = []
    try:
        line = Line(description)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = HELD if isinstance(error, OSError) and error.errno == errno.EBUSY else None
        raise Refused("cannot_reach_device", f"{description.link.port} cannot be opened: {why}", hint=hint) from error
    try:
        check = StubCheck(line, description, within_s=within_s, gap_s=gap_s, may_call_unknown=may_call_unknown)
        for item in check.run():
            items.append(item)
            if not out.as_json:
                remark = f": {item.message}" if item.message else ""
                out.line(f"{WORDS[item.result]}  MCP-AX {item.clause}  {item.name}{remark}")
    except OSError as error:
        raise Refused("cannot_reach_device", f"{description.link.port}: {error.strerror or error}") from error
    finally:
        line.close()
    counts = {word: sum(item.result == word for item in items) for word in WORDS}
    if out.as_json:
        out.json({"profile": description.profile, "counts": counts, "checks": msgspec.to_builtins(items)})
    else:
        counted = ", ".join(f"{number} {word}" for word, number in counts.items())
        out.line(f"Profile {description.profile.upper()}: {counted}")
    if counts["failed"]:
        raise typer.Exit(EXIT_REFUSED)
