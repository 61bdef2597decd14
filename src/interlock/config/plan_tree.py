"""Sections of the plan about the tree of aggregators (MCP-AX): [ax], [degraded] and [devices]."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.ax.protocol.capability import PRIVATE_CLASS
from interlock.config.addresses import SocketUrl
from interlock.config.keys import AT_ONCE, Key, SecretPart, StructTable
from interlock.config.order import ADDED_IS_LOOSER, ANY_CHANGE, FREE, Order, file_digest, fingerprint, ranked
from interlock.config.plan_servers import ENVIRONMENT, MONTH_S
from interlock.config.problems import At
from interlock.config.value_types import SECRET_REFERENCE, CommandLine, Many, Seconds, Segment, Table, Text, Whole
from interlock.devices.protocol.description import DeviceDescription
from interlock.net.protocol.address_scope import is_loopback

_TREE: Final = Text(r"[a-z0-9][a-z0-9._-]{0,62}", "1 to 63 of the characters a-z 0-9 . _ -")
AUTHORITY: Final = Text(
    r"dns:(?=.{1,253}$)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
    'a DNS name after "dns:"',
    hint='for instance "dns:edge01.example.com"',
)
_URL_GLOBS: Final = Many(Text(r"https?://[!-~]+", "an http:// or https:// URL, * standing for any part"))


class ParentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A parent of this node: an aggregator with which the node registers.

    If the parent is lost, the next one of the same tree replaces it (MCP-AX 13.3).
    """

    url: Annotated[str, SocketUrl()]
    segment: Annotated[str, Segment()]
    tree: Annotated[str | None, _TREE] = None  # None: the node's own tree
    secret: Annotated[str | None, Text(references=True), SecretPart.VALUE] = None  # the subserver token
    authority: Annotated[str | None, AUTHORITY] = None
    secure_by: str | None = None  # what protects a link without TLS
    ca_file: Path | None = None  # CA certificates for the parent; None: those of the system
    tls_cert: Path | None = None  # the node's own certificate
    tls_key: Path | None = None


def _check_parent(parent: ParentPlan, at: At) -> bool:
    """Report a parent aggregator that the node would reach without protection, or certificates that would not be used.

    Return True if there is no problem.
    """
    parts = urlsplit(parent.url)
    if parts.scheme == "ws" and not is_loopback(parts.hostname or "") and parent.secure_by is None:
        hint = 'dial wss://, or say secure_by = "why it is secure" if something else protects the way'
        at.wrong(f"{at.name} is beyond this machine without TLS", hint)
        return False
    if parts.scheme == "ws" and (parent.ca_file is not None or parent.tls_cert is not None):
        at.wrong(f"{at.name} has certificates and dials without TLS", "dial wss://, or leave them out")
        return False
    return True


_PARENTS: Final = Many(
    StructTable(
        ParentPlan,
        "a parent",
        where="[[ax.parents]]",
        needs={"tls_cert": ("tls_key",), "tls_key": ("tls_cert",)},
        check=_check_parent,
    )
)


def _parent_print(parent: ParentPlan) -> str:
    """Return the fingerprint of a parent. It covers the content of the CA certificates that prove the parent's
    identity.
    """
    return fingerprint(parent if parent.ca_file is None else (parent, file_digest(parent.ca_file)))


def _drop_added_parents(signed: list[str], written: tuple[ParentPlan, ...], _: object) -> tuple[ParentPlan, ...]:
    return tuple(each for each in written if _parent_print(each) in signed)


_PARENT_ORDER: Final = Order(
    "added_is_looser", _drop_added_parents, lambda parents, _: [_parent_print(each) for each in parents]
)


class ChildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A subserver that the node starts as a child process, and that registers with the node over stdio."""

    command: Annotated[tuple[str, ...], CommandLine()]
    segment: Annotated[str, Segment()]
    env: Annotated[dict[str, str], ENVIRONMENT, SecretPart.VALUE] = {}


_CHILDREN: Final = Many(StructTable(ChildPlan, "a child", where="[[ax.children]]"))


class AxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the place of this node in a tree of aggregators: parents above it, subservers below it, and limits
    on links.

    Keys:
        tree: Which tree the node belongs to; within one tree a subserver has one parent.
        parents: Aggregators to register with: the first of each tree, and the others as its backups.
        children: Subservers to start as children, which register over their stdio.
        dial_back: Where the node may connect to when a subserver registers by POST and names its endpoint.
        endpoints: Where a subserver is reached that registers by POST and names no endpoint, by its segment.
        socket: A Unix socket for subservers of this machine; [[access]] says which users may register (uid:1000).
        require_proof: For which subservers a claim of authority must be proved: those with mutable tools, all, or none.
        heartbeat_min_ms: The shortest heartbeat interval a subserver may promise, in milliseconds.
        max_hops: Tools that are more aggregators away are withheld.
        notify_per_s: How many notifications a second are passed on for one subserver.
        notify_buffer: How many more wait, before the oldest are dropped and counted.
        transport_classes: Private transport classes that subservers and tools may name.
        root_segment: First segment of every qualified name; changing it renames every tool.
        list_ttl_s: How many seconds the tool list of a server that announces no changes stays valid.
    """

    tree: Annotated[str, _TREE, Key("plant"), FREE] = "default"
    parents: Annotated[
        tuple[ParentPlan, ...],
        _PARENTS,
        Key([{"url": "wss://hub.example.com/ax", "segment": "edge"}]),
        AT_ONCE,
        _PARENT_ORDER,
    ] = ()
    children: Annotated[
        tuple[ChildPlan, ...],
        _CHILDREN,
        Key([{"command": "python greenhouse.py", "segment": "greenhouse"}]),
        AT_ONCE,
        FREE,
    ] = ()
    dial_back: Annotated[tuple[str, ...], _URL_GLOBS, Key(["https://*.example.com/*"]), ADDED_IS_LOOSER] = ()
    endpoints: Annotated[
        dict[str, str],
        Table(
            names=r"[a-z0-9_-]{1,63}",
            names_are="a segment",
            item=Text(r"https?://[!-~]+", "an http:// or https:// URL"),
        ),
        Key({"stm32h7": "https://edge01.example.com/mcp"}),
        ANY_CHANGE,
    ] = {}
    socket: Annotated[Path | None, Key("/run/interlock/ax.sock"), ANY_CHANGE] = None
    require_proof: Annotated[
        Literal["mutable", "always", "never"], Key("always"), ranked("always", "mutable", "never")
    ] = "mutable"
    heartbeat_min_ms: Annotated[int, Whole(10, 3_600_000), Key(1000), FREE] = 100
    max_hops: Annotated[int, Whole(1, 255), Key(8), FREE] = 32
    notify_per_s: Annotated[int, Whole(1, 1_000_000), Key(500), FREE] = 100
    notify_buffer: Annotated[int, Whole(1, 1_000_000), Key(5000), FREE] = 1000
    transport_classes: Annotated[
        tuple[str, ...], Many(Text(PRIVATE_CLASS, 'a private class, "x-" and a-z, 0-9, _ and -')), Key(["x-lora"]), FREE
    ] = ()
    root_segment: Annotated[str | None, Segment(), Key("home"), ANY_CHANGE] = None
    # AX-5.1-3
    list_ttl_s: Annotated[float, Seconds(0, MONTH_S), Key(300), FREE] = 60


class DegradedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the tools of a subserver that has lost its connection (MCP-AX 13.2).

    Keys:
        enabled: Whether the tools of a lost subserver stay listed, as degraded, for a while.
        grace_s: How long they stay.
    """

    enabled: Annotated[bool, Key(False), FREE] = True
    grace_s: Annotated[float, Seconds(0, MONTH_S), Key(60), FREE] = 300


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a file of the workspace describes (`.devices/SEGMENT.toml`)."""

    segment: str
    description: DeviceDescription
    fault: str | None = None  # why the file cannot be used, and where: the device is not opened


def hide_password(device: DevicePlan) -> DevicePlan:
    """Return a device with its password replaced by a digest. A password that refers to a stored secret stays."""
    link = device.description.link
    if link.password is None or SECRET_REFERENCE.fullmatch(link.password):
        return device
    return _replace_password(device, f"sha256:{fingerprint(link.password)}")


def _replace_password(device: DevicePlan, password: str | None) -> DevicePlan:
    link = msgspec.structs.replace(device.description.link, password=password)
    return msgspec.structs.replace(device, description=msgspec.structs.replace(device.description, link=link))


def _join_devices(stored: Any, written: tuple[DevicePlan, ...], _: object) -> tuple[DevicePlan, ...]:
    """Return the written devices. A device that differs from its signed form is replaced by the signed form, and a new
    device is left out.

    A file that cannot be used is no device yet. It is not opened, and its fault is shown at once.
    """
    try:
        signed = {each.segment: each for each in msgspec.convert(stored, tuple[DevicePlan, ...])}
    except msgspec.ValidationError:
        signed = {}
    joined = []
    for device in written:
        before, hidden = signed.get(device.segment), hide_password(device)
        password = hidden.description.link.password
        if before == hidden or (device.fault is not None and (before is None or before.fault is not None)):
            joined.append(device)
        elif before is None or before.fault is not None:  # AX-11.N-1: a new device waits
            continue
        elif before.description.link.password == password:
            joined.append(_replace_password(before, device.description.link.password))
        elif hide_password(before) == before:
            joined.append(before)
    return tuple(joined)


_DEVICES: Final = Order("devices", _join_devices, lambda devices, _: [hide_password(each) for each in devices])


class DevicesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of microcontrollers and PLCs: how they register, and the descriptions that were read.

    Keys:
        mode: Where devices are registered: here, as servers of this node (aggregate), or each of them at the parents of
            this node, which speaks and beats for it (on_behalf).
    """

    mode: Annotated[Literal["aggregate", "on_behalf"], Key("on_behalf"), FREE] = "aggregate"
    # Computed: the descriptions in the workspace.
    described: Annotated[tuple[DevicePlan, ...], AT_ONCE, _DEVICES] = ()
