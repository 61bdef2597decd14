"""Does the house stand as ARCHITECTURE.md draws it? Each rule is shown on the sources and on a planted breach."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOT = ROOT / "src"

# __main__ stands on top; the package itself (its version) lies under everything.
LAYERS = {
    "__main__": 8,
    "surface": 7,
    "aql": 6,
    "rooms": 6,
    "subserver": 5,
    "runtime": 4,
    "operator_api": 3,
    "uplink": 3,
    "packages": 3,
    "keys": 3,
    "process": 2,
    "net": 2,
    "store": 2,
    "config": 2,
    "protocol": 1,
    "hooks": 1,
}

# Inside a layer, bottom up: a package imports only those above its own line here. The bare name of a layer or package
# stands for the modules that lie directly in it.
ORDER = [
    *("protocol.jsonrpc", "protocol.jsontext", "protocol.schemas", "protocol.net", "protocol.jose", "protocol.mcp"),
    "protocol.oauth",
    *("protocol.webauthn", "protocol.ax", "protocol.ax.registration", "protocol.ax.confirmation"),
    *("protocol.approvals", "protocol.drivers", "protocol.drivers.files.schemas"),
    *("protocol.drivers.files", "protocol.drivers.binding", "protocol.drivers.authoring"),
    *(
        "protocol.drivers.selection",
        "protocol.aql",
        "protocol.aql.safety",
        "protocol.rooms",
        "protocol.names",
        "protocol.devices",
        "protocol.interop",
        "protocol.interop.read",
        "protocol.interop.convert",
    ),
    *(
        "protocol.interop.write",
        "protocol",
        "hooks",
        "config",
        "store",
        "store.sqlite",
        "store.nats",
        "net.http",
        "net",
    ),
    *("net.websocket", "net.devices", "process", "keys", "packages", "uplink", "operator_api"),
    *("runtime.base", "runtime.trust", "runtime.sandbox", "runtime.credentials", "runtime.calls", "runtime.links"),
    "runtime.own_links",
    *("runtime.catalog", "runtime.access", "runtime.approvals", "runtime.gate", "runtime.safety"),
    "runtime.names",
    *("runtime.dispatch.checks", "runtime.dispatch"),
    *("runtime.audience", "runtime.ax", "runtime.aql"),
    *("runtime.rooms.timeline", "runtime.rooms", "runtime.fronts"),
    "runtime.fronts.ax",
    "runtime.fronts.rooms",
    "runtime.fronts.names",
    "runtime.parents",
    "runtime.devices",
    "runtime.drivers",
    *("runtime.drivers.install", "runtime.drivers.secrets", "runtime.drivers.workspace", "runtime.drivers.provider"),
    *("runtime.drivers.add", "runtime.drivers.contracts", "runtime.drivers.registry", "runtime.interop"),
    *(
        "runtime.operations",
        "runtime.node",
        "runtime",
        "subserver",
        "rooms",
        "surface",
        "surface.console",
        "surface.cli.terminal",
        "surface.cli.client",
    ),
    *(
        "surface.operator",
        "surface.cli.render",
        "surface.cli",
        "surface.cli.keys",
        "surface.cli.aql_check",
        "surface.cli.device_check",
        "surface.cli.names",
        "surface.cli.set_up",
        "surface.cli.room_client",
        "surface.cli.verbs",
        "aql",
        "__main__",
    ),
]
POSITION = {f"interlock.{name}": position for position, name in enumerate(ORDER)}

# What the protocol layer may import: values and computation, nothing that reaches out, waits, or knows the time.
PURE = frozenset(
    {"abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "dataclasses", "datetime"}
)
PURE |= {"decimal", "difflib", "enum", "fnmatch", "functools", "hashlib", "heapq", "hmac", "ipaddress", "itertools"}
PURE |= {"json", "math", "operator", "re", "string", "struct", "types", "typing", "unicodedata", "urllib.parse"}
PURE |= {"cbor2", "cobs"}  # bytes in memory alone
PURE |= {"csv", "io", "xml.parsers"}  # texts in memory alone
PURE |= {"interlock", "msgspec", "jsonschema_rs", "re2", "ruamel.yaml", "tomllib"}  # the last four fetch nothing here
SETS_DEPTH = "interlock.wire.jsonrpc.deep"  # asks the interpreter how deep a decoder may go, and nothing else
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})

NAMELESS = frozenset({"utils", "util", "helpers", "helper", "common", "shared", "misc"})
LINES_MAX = 800
FAN_OUT_MAX = 29  # modules of ours that one module imports

# What a module may note on an object of another module's class: the name the object goes by and the attributes, with
# the reason. Parts of a node are not among them: what a part needs is given to its constructor.
_CALL = (
    "asking after booked charge deadline done forwarded handle head hold link params progressed queue reason renewed"
)
_LINK = "asks booked contracts doubled errors events kinds pid pipe providers queue refused renewable restarts session"
NOTED_ON: dict[str, str] = {
    # a call in flight is one record, which every stage fills in; what it waits for is a part of that record
    "call": f"{_CALL} sha256 sink target ticket timeout_s upstream_id uri wished",
    "pending": "handle upstream_id",
    "origin": "renewed",
    "hold": "answered_here digest goes_on is_named is_waiting",
    "dialogue": "interviewer is_gathering lacked questions rounds",
    "open_dialogue": "interviewer is_gathering lacked questions request_digest",
    # an HTTP exchange is between its protocol and its endpoint
    "exchange": "extra keep on_gone running session streams_only",
    "output": "on_gone",
    "head": "caller decision",
    # what a client says of itself when it greets
    "caller": "asker calls capabilities client front hop log_level modern_capabilities seen version view whole",
    "session": "front knows_tree unchanging",
    "opened": "knows_tree surface",
    # an execution of an agent is one record, which the safety loop keeps current
    "execution": "counted ended_because grants is_refused notices pause seen_at start_id steps",
    # the MQTT library has no other place for a bound on what it reads
    "client": "_sock_recv",
    # a link's connection, offer and counters are its keeper's and dispatcher's
    "link": f"{_LINK} shown stray tasks transport",
    "booked": "booked",
    "found": "booked",
    # a library's connection, which its maker (uvicorn) gives one limit alone
    "protocol": "max_fragment_size max_message_size",
    # a row of a table, which its users keep current
    "task": "caller connection",
    "instance": "used_at verdict",
    "tracked": "approval_id changed fulfilment matched_by sent_params told",
    "connection": "expires_at",  # the pool notes when a connection of its own lapses
    "pipe": "cell child",  # the connector starts the child behind the pipe it has made
    "invocation": "config",  # `init` goes on with the configuration it has written
    # a draft, collected over several functions
    "work": "hands_on notes",
    "secrets": "found",
    # not classes of ours
    "cycle": "disconnected keep_alive",
    "run": "__annotations__ __doc__ __signature__",
    "around": "__path__ hooks",
    "options": "log_errors max_mem",
    "yaml": "preserve_quotes width",
    "context": "minimum_version",
    "state": "is_live roles",
    "parser": "CharacterDataHandler EndElementHandler EntityDeclHandler StartDoctypeDeclHandler StartElementHandler"
    " buffer_text",
    "db": "isolation_level",
    "router": "redirect_slashes",
    # objects of libraries of devices are set up by their attributes
    "properties": "MaximumPacketSize",
    "device": "max_speed_hz mode",
    "pdu": "dev_id",
    "comm_params": "timeout_connect",
}

MACHINE_PATH = re.compile(r"(?<![\w.~$)}>\]])/(?:tmp|work|root|opt|home/\w+|Users/\w+)(?![\w-])")
REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b")


class Source(NamedTuple):
    module: str
    is_package: bool
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """The name under interlock: protocol, runtime, ...; empty for the package itself."""
        return _package(self.module)


Rule = Callable[[Source], Iterator[str]]


def sources() -> list[Source]:
    found = []
    for path in sorted(SOURCE_ROOT.rglob("*.py")):
        parts = path.relative_to(SOURCE_ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found.append(Source(module, is_package, path.read_text(encoding="utf-8")))
    return found


def planted(module: str, text: str) -> Source:
    return Source(module, is_package=False, text=text)


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _imports(source: Source) -> Iterator[str]:
    """Everything imported, also what a table of replaceable parts names as "module:Class"."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = source.module.split(".")
                above = here[: len(here) - node.level + source.is_package]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Constant) and (named := re.fullmatch(r"(interlock\.[\w.]+):\w+", str(node.value))):
            yield named[1]


def imports_go_downhill(source: Source) -> Iterator[str]:
    if source.package and source.package not in LAYERS:
        yield f"{source.module} stands in no layer"
        return
    layer = LAYERS.get(source.package, 0)
    for name in _imports(source):
        target = _package(name) if name.startswith("interlock.") else ""
        if target in LAYERS and target != source.package and LAYERS[target] >= layer:
            yield f"{source.module} imports {name}"


def packages_stand_in_order(source: Source) -> Iterator[str]:
    """Type-only imports count: what a reader has to know of another package is a dependency."""
    here = _unit(source.module)
    if here is None or (source.is_package and source.module not in POSITION):
        if source.package:
            yield f"{source.module} has no place in ORDER"
        return
    for name in _imports(source):
        there = _unit(name) if name.startswith("interlock.") else None
        if there is not None and POSITION[there] > POSITION[here]:
            yield f"{source.module} imports {name}"


def _unit(module: str) -> str | None:
    """The package of ORDER that a module lies in: the longest that it begins with."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((name for name in names if name in POSITION), None)


def protocol_is_pure(source: Source) -> Iterator[str]:
    if source.package != "protocol":
        return
    for name in _imports(source):
        if name.split(".")[0] == "sys" and source.module == SETS_DEPTH:
            continue
        if not PURE & {name.split(".")[0], ".".join(name.split(".")[:2])}:
            yield f"{source.module} imports {name}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"{source.module}:{node.lineno} is async"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                yield f"{source.module}:{node.lineno} calls {node.func.id}"
            elif isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK_METHODS:
                yield f"{source.module}:{node.lineno} asks the clock"


def only_the_guard_admits(source: Source) -> Iterator[str]:
    if source.module == "interlock.guard.guard":
        return
    if "interlock.guard.guard._KEY" in _imports(source):
        yield f"{source.module} imports the key of Admitted"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            made = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            name = made.attr if isinstance(made, ast.Attribute) else made.id if isinstance(made, ast.Name) else ""
            if name == "Admitted":
                yield f"{source.module}:{node.lineno} makes an Admitted"


def the_mcp_sdk_is_not_in_the_path(source: Source) -> Iterator[str]:
    for name in _imports(source):
        if name.split(".")[0] in {"mcp", "mcp_types", "fastmcp", "pydantic"}:
            yield f"{source.module} imports {name}"


def every_module_is_a_noun(source: Source) -> Iterator[str]:
    if NAMELESS & set(source.module.split(".")):
        yield f"{source.module} says nothing about what it holds"


def no_file_is_two(source: Source) -> Iterator[str]:
    if (lines := source.text.count("\n")) > LINES_MAX:
        yield f"{source.module} has {lines} lines"


@functools.cache
def _modules() -> frozenset[str]:
    return frozenset(source.module for source in sources() if not source.is_package)


def no_module_meets_them_all(source: Source) -> Iterator[str]:
    met = _modules().intersection(_imports(source))
    if len(met) > FAN_OUT_MAX:
        yield f"{source.module} imports {len(met)} modules"


def nothing_is_wired_from_outside(source: Source) -> Iterator[str]:
    """An object gets what it needs from its constructor. A module may change objects of its own classes."""
    for target in _set_from_outside(source):
        if target.attr not in NOTED_ON.get(_called(target.value), "").split():
            yield f"{source.module}:{target.lineno} sets {ast.unparse(target)}"
    for node in ast.walk(source.tree):
        is_setattr = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr"
        if is_setattr and source.package == "runtime":
            yield f"{source.module}:{node.lineno} sets an attribute by its name"


def _set_from_outside(source: Source) -> Iterator[ast.Attribute]:
    """Attributes that are set on objects of other classes than the module's own, as far as names tell."""
    tree = source.tree
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    declared = {id(node): _declared(node) for node in classes}
    inside = {id(statement): node for node in classes for statement in ast.walk(node)}  # the innermost comes last
    for node in ast.walk(tree):
        here = id(inside.get(id(node)))
        for target in _assigned(node):
            if isinstance(target, ast.Attribute) and not _is_own(target):
                # `dispatch.gate` is not `self.gate`, even where the class has a gate as well.
                is_of_class = isinstance(target.value, ast.Name) and target.value.id in {made.name for made in classes}
                if not is_of_class and not any(target.attr in known for key, known in declared.items() if key != here):
                    yield target


def _assigned(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to, one by one."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        found = [node.target]
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found.extend(target.elts)
        else:
            yield target


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def _declared(made: ast.ClassDef) -> set[str]:
    """The attributes of a class: its fields, and what its methods give themselves."""
    fields = {target.id for node in made.body for target in _assigned(node) if isinstance(target, ast.Name)}
    targets = [target for node in ast.walk(made) for target in _assigned(node)]
    return fields | {target.attr for target in targets if isinstance(target, ast.Attribute) and _is_own(target)}


def _called(value: ast.expr) -> str:
    """The last name of an expression: `link` of `self._link`, of `link` and of `self.link(name)`."""
    while isinstance(value, ast.Call | ast.Subscript):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.attr.lstrip("_") if isinstance(value, ast.Attribute) else getattr(value, "id", "")


def dispatch_cuts_no_names(source: Source) -> Iterator[str]:
    """MCP-AX 7.2: routing works on tables and arrays of segments."""
    if source.package != "runtime":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on_a_dot = any(isinstance(argument, ast.Constant) and argument.value == "." for argument in node.args)
            if on_a_dot and node.func.attr in {"split", "rsplit", "partition", "rpartition"}:
                yield f"{source.module}:{node.lineno} cuts a string at its dots"


def a_leaf_needs_no_node(source: Source) -> Iterator[str]:
    """The library for subservers stands on the protocol and the transports; whoever imports it wants no gateway.
    What it may sign with is a file like an operator's, and read in the same room."""
    if source.package not in {"subserver", "aql", "rooms"}:
        return
    for name in _imports(source):
        if name.startswith(("interlock.crypto.keys.signing", "interlock.store.ports")):
            continue
        if _package(name) in LAYERS and _package(name) not in {
            "subserver",
            *({source.package} - {"subserver"}),
            "protocol",
            "net",
            "process",
            "uplink",
            "config",
        }:
            yield f"{source.module} imports {name}"


def hooks_need_python_alone(source: Source) -> Iterator[str]:
    """They are imported in a sandbox that shows nothing else."""
    if source.package != "hooks":
        return
    for name in _imports(source):
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("interlock.drivers.hooks"):
            yield f"{source.module} imports {name}"


def operator_api_is_types_alone(source: Source) -> Iterator[str]:
    """Every command reads answers with it, and should not wait for anything else to be imported."""
    if source.package != "operator_api":
        return
    for name in _imports(source):
        if name.split(".")[0] not in {"typing", "msgspec"} and not name.startswith("interlock.operator_api"):
            yield f"{source.module} imports {name}"


RULES: list[Rule] = [
    imports_go_downhill,
    packages_stand_in_order,
    hooks_need_python_alone,
    operator_api_is_types_alone,
    a_leaf_needs_no_node,
    protocol_is_pure,
    only_the_guard_admits,
    the_mcp_sdk_is_not_in_the_path,
    every_module_is_a_noun,
    no_file_is_two,
    no_module_meets_them_all,
    nothing_is_wired_from_outside,
    dispatch_cuts_no_names,
]

BREACHES: list[tuple[Rule, str, str]] = [
    (imports_go_downhill, "interlock.ax.protocol.x", "from interlock.runtime import catalog"),
    (imports_go_downhill, "interlock.ax.protocol.x", "import interlock.config.plan"),
    (imports_go_downhill, "interlock.ax.protocol.x", "from interlock import store"),
    (imports_go_downhill, "interlock.ax.protocol.x", "from ...runtime.guard import Guard"),
    (imports_go_downhill, "interlock.ax.protocol.x", "def late():\n    import interlock.cli"),
    (imports_go_downhill, "interlock.net.x", "from interlock.store.ports import Store"),
    (imports_go_downhill, "interlock.config.x", "from interlock.net import http"),
    (imports_go_downhill, "interlock.store.x", 'PARTS = {"a": "interlock.node.node:Node"}'),
    (imports_go_downhill, "interlock.runtime.x", "from interlock.surface import cli"),
    (imports_go_downhill, "interlock.surface.x", "from interlock.__main__ import main"),
    (imports_go_downhill, "interlock.attic.x", ""),
    (packages_stand_in_order, "interlock.links.x", "from interlock.dispatch.dispatch import Dispatch"),
    (packages_stand_in_order, "interlock.core.calls.x", "from interlock.catalog.routes import Route"),
    (
        packages_stand_in_order,
        "interlock.core.calls.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from interlock.gate.gate import Gate",
    ),
    (packages_stand_in_order, "interlock.mcp.x", "from interlock.ax.protocol import errors"),
    (packages_stand_in_order, "interlock.store.x", "from interlock.store.sqlite.store import SqliteStore"),
    (packages_stand_in_order, "interlock.attic.x", ""),
    (hooks_need_python_alone, "interlock.drivers.hooks.x", "import msgspec"),
    (hooks_need_python_alone, "interlock.drivers.hooks.x", "from interlock.drivers.protocol import errors"),
    (operator_api_is_types_alone, "interlock.operator_api.x", "import asyncio"),
    (operator_api_is_types_alone, "interlock.operator_api.x", "from interlock.drivers.protocol.model import Problem"),
    (a_leaf_needs_no_node, "interlock.sdk.subserver.x", "from interlock.node.node import Node"),
    (a_leaf_needs_no_node, "interlock.sdk.subserver.x", "from interlock.store.sqlite.store import SqliteStore"),
    (imports_go_downhill, "interlock.runtime.x", "from interlock.sdk.subserver import Subserver"),
    (protocol_is_pure, "interlock.protocol.x", "import asyncio"),
    (protocol_is_pure, "interlock.protocol.x", "from os import environ"),
    (protocol_is_pure, "interlock.protocol.x", "from urllib import request"),
    (protocol_is_pure, "interlock.protocol.x", "import urllib.request"),
    (protocol_is_pure, "interlock.protocol.x", "import logging.handlers"),
    (protocol_is_pure, "interlock.protocol.x", "async def f(): ..."),
    (protocol_is_pure, "interlock.protocol.x", "data = open('x')"),
    (protocol_is_pure, "interlock.protocol.x", "from datetime import datetime\nat = datetime.now()"),
    (
        nothing_is_wired_from_outside,
        "interlock.node.x",
        "class Node:\n    def __init__(self, dispatch):\n        self.gate = 1\n        dispatch.gate = self.gate",
    ),
    (nothing_is_wired_from_outside, "interlock.node.x", "def wire(link):\n    link.gate = 1"),
    (nothing_is_wired_from_outside, "interlock.node.x", "setattr(dispatch, 'gate', 1)"),
    (only_the_guard_admits, "interlock.links.x", "from interlock.guard.guard import _KEY"),
    (only_the_guard_admits, "interlock.links.x", "Admitted(command=1)"),
    (only_the_guard_admits, "interlock.links.x", "guard.Admitted[Call](command=1)"),
    (the_mcp_sdk_is_not_in_the_path, "interlock.runtime.x", "from mcp.client import Client"),
    (the_mcp_sdk_is_not_in_the_path, "interlock.surface.x", "import mcp"),
    (every_module_is_a_noun, "interlock.runtime.utils", ""),
    (no_file_is_two, "interlock.runtime.x", "\n" * 801),
    (
        no_module_meets_them_all,
        "interlock.runtime.x",
        "\n".join(f"import {module}" for module in sorted(_modules())[: FAN_OUT_MAX + 1]),
    ),
    (nothing_is_wired_from_outside, "interlock.runtime.x", "dispatch.gate = Gate()"),
    (nothing_is_wired_from_outside, "interlock.runtime.x", "def wire(node):\n    node.parts.gate.on_held = None"),
    (nothing_is_wired_from_outside, "interlock.runtime.x", "first, deciding.judge = 1, 2"),
    (nothing_is_wired_from_outside, "interlock.runtime.x", "registry.count += 1"),
    (
        nothing_is_wired_from_outside,
        "interlock.runtime.x",
        "class Servers:\n    def __init__(self, keeper):\n        self.gate = 1\n        keeper.part.gate = 1",
    ),
    (dispatch_cuts_no_names, "interlock.catalog.catalog", "name.split('.')"),
    (dispatch_cuts_no_names, "interlock.links.x", "name.rpartition('.')"),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (
        imports_go_downhill,
        "interlock.surface.x",
        "from interlock.runtime import node\nfrom interlock import __version__",
    ),
    (imports_go_downhill, "interlock.runtime.x", "from ..protocol.ax import names\nfrom .guard import Guard"),
    (packages_stand_in_order, "interlock.dispatch.x", "from interlock.links.link import Link"),
    (packages_stand_in_order, "interlock.ax.protocol.registration.x", "from interlock.ax.protocol import names"),
    (imports_go_downhill, "interlock.net.x", "from interlock.wire.jsonrpc import codec"),
    (imports_go_downhill, "interlock.__main__", "from interlock.cli import app"),
    (protocol_is_pure, "interlock.protocol.x", "import re, hashlib, msgspec\nfrom urllib.parse import quote"),
    (a_leaf_needs_no_node, "interlock.sdk.subserver.x", "from interlock.net import websocket"),
    (a_leaf_needs_no_node, "interlock.sdk.subserver.x", "from interlock.crypto.keys.signing import read_signing_key"),
    (protocol_is_pure, "interlock.net.x", "import asyncio"),
    (only_the_guard_admits, "interlock.guard.guard", "Admitted(command=1)"),
    (only_the_guard_admits, "interlock.links.x", "def send(command: Admitted[Call]) -> None: ..."),
    (the_mcp_sdk_is_not_in_the_path, "interlock.runtime.x", "from interlock.mcp import messages"),
    (dispatch_cuts_no_names, "interlock.runtime.x", "line.split(',')"),
    (nothing_is_wired_from_outside, "interlock.runtime.x", "class A:\n    def f(self):\n        self.x = 1"),
    (
        nothing_is_wired_from_outside,
        "interlock.runtime.x",
        "class Row:\n    count: int = 0\n\n\nclass Table:\n    def add(self, row):\n        row.count += 1",
    ),
    (nothing_is_wired_from_outside, "interlock.runtime.x", "call.deadline = 1.0"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep_the_rule(rule: Rule) -> None:
    assert [complaint for source in sources() for complaint in rule(source)] == []


@pytest.mark.parametrize(("rule", "module", "text"), BREACHES)
def test_a_planted_breach_is_found(rule: Rule, module: str, text: str) -> None:
    assert list(rule(planted(module, text)))


@pytest.mark.parametrize(("rule", "module", "text"), ALLOWED)
def test_what_is_allowed_is_not_found(rule: Rule, module: str, text: str) -> None:
    assert list(rule(planted(module, text))) == []


def test_what_may_be_noted_on_objects_of_others_is_noted_somewhere() -> None:
    noted = {(name, attribute) for name, attributes in NOTED_ON.items() for attribute in attributes.split()}
    assert {
        (_called(target.value), target.attr) for source in sources() for target in _set_from_outside(source)
    } == noted


def test_a_new_package_needs_a_place_in_the_order() -> None:
    added = Source("interlock.runtime.added", is_package=True, text="")
    assert list(packages_stand_in_order(added))


def test_the_rules_look_at_every_layer() -> None:
    assert {source.package for source in sources()} >= set(LAYERS) - {"__main__"}


def test_no_test_or_script_is_longer_than_two_files() -> None:
    long = [path for path in committed() if path.suffix == ".py" and path.read_text("utf-8").count("\n") > LINES_MAX]
    assert long == []


def test_committed_files_name_no_machine_and_no_registry() -> None:
    found = []
    for path in committed():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    "place", ["tmp/x", "tmp", "work/main", "root/.cache", "opt/x", "home/someone", "Users/someone/x"]
)
@pytest.mark.parametrize("before", ["", "file://", '"', "see ", "("])
def test_a_machine_path_is_recognised(before: str, place: str) -> None:
    assert MACHINE_PATH.search(before + "/" + place)


@pytest.mark.parametrize(
    "text", ["/workspace/a", "src/tmp/x", "https://example.com/work", "/tmpfs", "a/root", "/options"]
)
def test_an_ordinary_path_is_not_taken_for_a_machines(text: str) -> None:
    assert not MACHINE_PATH.search(text)


def committed() -> list[Path]:
    """Tracked files and those that would be added."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
