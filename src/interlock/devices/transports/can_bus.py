"""CAN: whole messages as ISO-TP (ISO 15765-2) over classical CAN, normal addressing, one pair of ids for each device.

Devices of one bus share one bus object. Reading and writing it may block, so each has a thread; ISO-TP itself runs in
the event loop. Options of an interface that a description does not have (its bit rate) come from python-can's own
configuration file.

Every frame on a bus reaches the reading thread, also those of other devices and of a device that sends without end. The
thread drops frames of unknown ids and frames beyond the rate of a device before they wake the event loop. A device may
always send what it was asked for: each message that is sent allows as many frames as flow control for it and the
longest answer take. Everything else counts against `FRAMES_PER_S`. The bus as a whole is limited as well, because a
virtual bus can carry more than a wire.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque

import can
import isotp

from interlock.devices.transports.transport import SharedConnection, Transport, TransportFailed, call_in_loop

MESSAGE_MAX = 4095  # bytes: what the 12 bits of a first frame count
STANDARD_ID_MAX = 0x7FF  # above it: 29 bits
READ_S = 0.2  # after which the reading thread looks whether it is to end
WRITE_S = 1.0  # in which a full buffer of the interface has to take a frame
FRAMES_WAITING_MAX = 4096  # of a bus, between its thread and the event loop
FRAMES_PER_S = 2000  # of one device, beside its answers; half of what a bus of 500 kbit/s carries
BURST_FRAMES = 2048  # of one device at once: three of the longest messages
BUS_FRAMES_PER_S = 10_000  # of all; more than 1 Mbit/s carries
REST_S = 0.05  # of the thread, where a bus that is none of wires carries more
FRAMES_AT_ONCE = 256  # before others have their turn

LOGGER = "interlock.devices.isotp"
logging.getLogger(LOGGER).setLevel(logging.CRITICAL)  # what it warns of is counted

_FLOW_ERRORS = (isotp.FlowControlTimeoutError, isotp.UnexpectedFlowControlError, isotp.MaximumWaitFrameReachedError)
REASONS: dict[type[Exception], str] = {
    isotp.WrongSequenceNumberError: "sequence",
    isotp.UnexpectedConsecutiveFrameError: "sequence",
    isotp.ReceptionInterruptedWithSingleFrameError: "interrupted",
    isotp.ReceptionInterruptedWithFirstFrameError: "interrupted",
    isotp.ConsecutiveFrameTimeoutError: "incomplete",
    isotp.FrameTooLongError: "too_large",
    **dict.fromkeys((*_FLOW_ERRORS, isotp.UnsupportedWaitFrameError, isotp.OverflowError), "flow_control"),
}


class CanTransport(Transport):
    """A transport to one device on a CAN bus, which has a pair of CAN ids. It contains the ISO-TP state of
    this pair.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        link = self._link
        self.rx_id, self.tx_id = link.rx_id, link.tx_id
        self._key = ("can", link.interface, link.channel)
        self._bus: CanBus | None = None
        self._layer: isotp.TransportLayerLogic | None = None
        self._frames: deque[isotp.CanMessage] = deque()
        self._to_send: deque[bytes] = deque()  # behind the one that is on its way
        self._timer: asyncio.TimerHandle | None = None
        self._answer_frames = frames_of(min(link.max_frame, MESSAGE_MAX))
        self._due_max = link.in_flight * 2 * self._answer_frames  # flow control for the longest request, and an answer
        self._frames_asked = 0  # of all messages sent
        self._frames_given = 0  # of those, come or given up; this and the next are the reading thread's
        self._paid_until = 0.0
        self._overruns = 0

    @property
    def discarded(self) -> dict[str, int]:
        return {**self._discarded, "overrun": self._overruns} if self._overruns else dict(self._discarded)

    async def open(self) -> None:
        link = self._link
        if self.rx_id is None or self.tx_id is None:
            raise TransportFailed("a device on CAN needs rx_id and tx_id")
        self._bus = await self._connections.acquire(self._key, lambda: CanBus(link.interface, link.channel))
        self._frames.clear()
        self._to_send.clear()
        is_extended = max(self.rx_id, self.tx_id) > STANDARD_ID_MAX
        mode = isotp.AddressingMode.Normal_29bits if is_extended else isotp.AddressingMode.Normal_11bits
        self._bus.join(self.rx_id, self)
        self._layer = isotp.TransportLayerLogic(
            rxfn=lambda timeout: self._frames.popleft() if self._frames else None,
            txfn=self._put_frame,
            address=isotp.Address(mode, rxid=self.rx_id, txid=self.tx_id),
            error_handler=self._count,
            params={"max_frame_size": min(link.max_frame, MESSAGE_MAX), "logger_name": LOGGER},
        )
        self._is_open = True

    def send(self, message: bytes) -> None:
        if len(message) > MESSAGE_MAX:
            raise ValueError(f"a message on CAN has at most {MESSAGE_MAX} bytes")
        if self._layer is not None:
            self._frames_asked += frames_of(len(message)) + self._answer_frames
            self._to_send.append(message)
            self._process()

    def withdraw(self, message: bytes) -> None:
        self._to_send = deque(each for each in self._to_send if each != message)

    async def close(self) -> None:
        self._is_open = False
        bus, self._bus, self._layer = self._bus, None, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if bus is not None:
            bus.leave(self)
            await self._connections.release(bus, self._key)

    def receive_untrusted(self, frame: can.Message) -> None:
        """Process a received frame that has the id of this device."""
        if self._layer is not None and not frame.is_remote_frame and not frame.is_error_frame:
            id, data = frame.arbitration_id, bytes(frame.data)
            self._owner.on_traffic(False, data)
            self._frames.append(isotp.CanMessage(id, frame.dlc, data, frame.is_extended_id, frame.is_fd))
            self._process()

    def is_borne(self, now: float, waiting: int) -> bool:
        """Return whether one more frame of this device is accepted while `waiting` frames of the bus are not handled
        yet. Called in the thread that reads the bus.
        """
        self._paid_until = max(now, self._paid_until)
        self._frames_given = max(self._frames_given, self._frames_asked - self._due_max)
        if waiting < FRAMES_WAITING_MAX:
            if self._frames_given < self._frames_asked:
                self._frames_given += 1
                return True
            if self._paid_until - now <= BURST_FRAMES / FRAMES_PER_S:
                self._paid_until += 1 / FRAMES_PER_S
                return True
        self._overruns += 1
        return False

    def lose(self, reason: str, rest_s: float = 0.0) -> None:
        self._layer = None
        super().lose(reason, rest_s)

    def _put_frame(self, frame: isotp.CanMessage) -> None:
        self._owner.on_traffic(True, bytes(frame.data))
        if self._bus is not None:
            is_extended = frame.is_extended_id
            self._bus.put(can.Message(arbitration_id=frame.arbitration_id, data=frame.data, is_extended_id=is_extended))

    def _count(self, error: Exception) -> None:
        self._discarded[REASONS.get(type(error), "malformed")] += 1

    def _process(self) -> None:
        """Run the due steps of ISO-TP, deliver complete messages, and schedule the next run."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (layer := self._layer) is None:
            return
        layer.process()
        while self._to_send and not layer.transmitting():
            layer.send(self._to_send.popleft())
            layer.process()
        while (message := layer.recv()) is not None:
            self._owner.on_message(bytes(message))
        if self._layer is None:  # the owner has closed it
            return
        delays = [timer.remaining() for timer in (layer.timer_rx_fc, layer.timer_rx_cf) if not timer.is_stopped()]
        if (delay := layer.next_cf_delay()) is not None:
            delays.append(delay)
        if delays:
            self._timer = asyncio.get_running_loop().call_later(min(delays) + 0.001, self._process)


class CanBus(SharedConnection[CanTransport]):
    """A connection to a CAN bus. `stations` maps the CAN id with which each device sends to the transport of that
    device.
    """

    def __init__(self, interface: str, channel: str | None) -> None:
        super().__init__()
        self._interface = interface
        self._channel = channel
        self._name = f"the CAN bus {interface} {channel}"
        self._received: deque[can.Message] = deque()
        self._to_send: queue.SimpleQueue[can.Message | None] = queue.SimpleQueue()
        self._is_draining = False
        self._is_closed = False
        self._bus: can.BusABC | None = None
        self._threads: list[threading.Thread] = []

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._bus = await asyncio.to_thread(can.Bus, channel=self._channel, interface=self._interface)
        except (can.CanError, OSError, ValueError, ImportError, NotImplementedError) as error:
            raise TransportFailed(f"{self._name} cannot be opened: {error}") from error
        for run in (self._read, self._write):
            thread = threading.Thread(target=run, args=(self._bus,), name=f"can {self._channel}", daemon=True)
            self._threads.append(thread)
            thread.start()

    async def close(self) -> None:
        self._is_closed = True
        self._to_send.put(None)
        threads, self._threads = self._threads, []
        bus, self._bus = self._bus, None
        if bus is not None:

            def end() -> None:
                for thread in threads:
                    thread.join()
                bus.shutdown()

            await asyncio.to_thread(end)

    def join(self, rx_id: int, station: CanTransport) -> None:
        """Add a device to the bus. Raise TransportFailed if another device sends with the same id."""
        if rx_id in self.stations:
            raise TransportFailed(f"another device on this bus has the rx_id {rx_id:#x}")
        self.stations[rx_id] = station

    def put(self, frame: can.Message) -> None:
        self._to_send.put(frame)

    def _read(self, bus: can.BusABC) -> None:
        """Read frames, in a separate thread. Frames of unknown devices, and frames beyond the rate of a device, are
        dropped without waking the event loop.
        """
        paid_until = 0.0
        try:
            while not self._is_closed:
                frame = bus.recv(READ_S)
                now = self._loop.time()
                paid_until = max(now, paid_until) + 1 / BUS_FRAMES_PER_S
                if paid_until - now > REST_S:
                    time.sleep(REST_S)
                if frame is None or (station := self.stations.get(frame.arbitration_id)) is None:
                    continue
                if not station.is_borne(now, len(self._received)):
                    continue
                self._received.append(frame)
                if not self._is_draining:
                    self._is_draining = True
                    call_in_loop(self._loop, self._drain)
        except (can.CanError, OSError, ValueError) as error:
            self._lose_from_thread(error)

    def _write(self, bus: can.BusABC) -> None:
        """Write the waiting frames to the bus, in a separate thread."""
        try:
            while self.loss is None and (frame := self._to_send.get()) is not None:
                bus.send(frame, timeout=WRITE_S)
        except (can.CanError, OSError, ValueError) as error:
            self._lose_from_thread(error)

    def _lose_from_thread(self, error: Exception) -> None:
        if not self._is_closed:
            call_in_loop(self._loop, self.lose, f"{self._name} failed: {error}")

    def _drain(self) -> None:
        self._is_draining = False
        for _ in range(FRAMES_AT_ONCE):
            if not self._received:
                return
            frame = self._received.popleft()
            if (station := self.stations.get(frame.arbitration_id)) is not None:
                station.receive_untrusted(frame)
        self._is_draining = True
        self._loop.call_soon(self._drain)


def frames_of(length: int) -> int:
    """Return the number of CAN frames that a message of this length needs. A first frame holds 6 bytes, any other frame
    7.
    """
    return 1 if length <= 7 else 1 + -(-(length - 6) // 7)
