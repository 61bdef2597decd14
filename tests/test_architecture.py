"""Check that the sources keep the rules of ARCHITECTURE.md. Every rule is also tried on a planted breach.

Breaches that existed before a rule did are listed in tests/known_breaches.txt. The list must be exact: a new breach
fails, and so does a line that is no longer needed. After removing or renaming one, run

    python tests/test_architecture.py --rewrite

which writes the list again and refuses to make it longer.
"""

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
KNOWN_BREACHES = ROOT / "tests" / "known_breaches.txt"

# The running parts of packages: each may import only what is to its left. Inside a package there is no order.
_RUNNING = (
    "wire mcp crypto net config store core process access credentials guard links catalog approvals gate safety"
    " dispatch fronts ax aql rooms names devices drivers interop operator sdk node cli"
)
PACKAGE_ORDER = _RUNNING.split()

# The pure parts, which may be imported from everywhere: each may import only pure parts to its left.
_PURE = "wire net mcp crypto credentials access ax gate approvals drivers safety aql rooms names devices interop"
PURE_ORDER = _PURE.split()
PURE_PACKAGES = ("wire", "mcp", "crypto.jose", "crypto.webauthn")  # besides every X.protocol

# Folders and modules that count as another package than the one that they are in.
COUNTED_AS = {"__main__": "cli", "subserver": "sdk"}
PART_OF = {"operations": "operator", "cli": "cli", "parts": "node"}

# The declarations of the operator API, which may be imported from everywhere: X/api.py, X/y_api.py, and their parts.
API_MODULE = re.compile(r"interlock\.(?:\w+\.(?:\w+_)?api|operator\.operation)")
API_IMPORTS = frozenset({"collections", "dataclasses", "typing", "msgspec"})

# The table of capabilities, which may be imported from everywhere. What it names as "module:attribute" is
# imported when it is used.
CAPABILITY_MODULE = re.compile(r"interlock\.(?:core\.capability|node\.capabilities)")
DECLARATIONS = re.compile(f"{API_MODULE.pattern}|{CAPABILITY_MODULE.pattern}")
CAPABILITY_IMPORTS = frozenset({"collections", "functools", "importlib", "typing"})

# What a pure module may import: values and computation, nothing that reaches out, waits, or knows the time.
_IMPORTS = (
    "abc array base64 binascii bisect collections contextlib dataclasses datetime decimal difflib enum fnmatch"
    " functools hashlib heapq hmac ipaddress itertools json math operator re string struct types typing"
    " unicodedata urllib.parse interlock"
    # libraries and modules that work on bytes and text in memory, as they are used here
    " cbor2 cobs csv io jsonschema_rs msgspec re2 ruamel.yaml tomllib xml.parsers"
)
PURE_IMPORTS = frozenset(_IMPORTS.split())
RECURSION_LIMIT_MODULE = "interlock.wire.jsonrpc.codec"  # reads sys.getrecursionlimit, and nothing else of sys
WRITES = re.compile(r"print|input|click\.\w+|typer\.(?:echo|secho|confirm|prompt)|sys\.std\w+\.write|(?:\w+\.)?Console")
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})

# What a program that uses the libraries in `sdk` loads besides pure modules.
SDK_IMPORTS = (
    "interlock.sdk",
    "interlock.net",
    "interlock.process",
    "interlock.config.folders",
    "interlock.crypto.signing",
    "interlock.ax.uplink",
)

MEANINGLESS_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "shared", "misc"})
LINES_MAX = 800

MACHINE_PATH = re.compile(r"(?<![\w.~$)}>\]])/(?:tmp|work|root|opt|home/\w+|Users/\w+)(?![\w-])")
REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b")


class Source(NamedTuple):
    """A module of src/interlock."""

    module: str
    is_package: bool
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)

    @property
    def is_pure(self) -> bool:
        return is_pure(self.module)

    @property
    def package(self) -> str:
        return package_of(self.module)


Rule = Callable[[Source], Iterator[str]]


@functools.cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def sources() -> tuple[Source, ...]:
    """Read every module of src/interlock."""
    modules = []
    for path in sorted(SOURCE_ROOT.rglob("*.py")):
        parts = path.relative_to(SOURCE_ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        modules.append(Source(module, is_package, path.read_text(encoding="utf-8")))
    return tuple(modules)


@functools.cache
def module_names() -> frozenset[str]:
    return frozenset(source.module for source in sources())


def planted(module: str, text: str) -> Source:
    return Source(module, is_package=False, text=text)


def is_pure(module: str) -> bool:
    """Return whether a module is in a package that is pure by its path."""
    path = module.removeprefix("interlock.")
    return "protocol" in path.split(".") or any(f"{path}.".startswith(f"{package}.") for package in PURE_PACKAGES)


def package_of(module: str) -> str:
    """Return the package of PACKAGE_ORDER that a module counts as; empty for interlock/__init__.py.

    X/operations.py and X/operations/ count as `operator`, X/cli.py and X/cli/ as `cli`, X/parts.py as `node`.
    """
    parts = module.split(".")[1:]
    if not parts:
        return ""
    second = parts[1] if len(parts) > 1 else ""
    if second in PART_OF:
        return PART_OF[second]
    return COUNTED_AS.get(parts[0], parts[0])


def imported_names(source: Source) -> Iterator[str]:
    """Yield everything that a module imports, also what a table of replaceable parts names as "module:Class"."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = source.module.split(".")
                above = here[: len(here) - node.level + source.is_package]
                base = ".".join([*above, base] if base else above)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and (entry := re.fullmatch(r"(interlock\.[\w.]+):\w+", str(node.value))):
            yield entry[1]


def imported_modules(source: Source) -> Iterator[str]:
    """Yield the modules of ours that a module imports. A name that is imported from a module counts as that module."""
    for name in imported_names(source):
        if name.startswith("interlock."):
            yield (
                name
                if name in module_names() or name.rpartition(".")[0] not in module_names()
                else (name.rpartition(".")[0])
            )


# Rules


def pure_modules_reach_nothing(source: Source) -> Iterator[str]:
    """A pure module has no I/O, async, clock, randomness, environment or logging."""
    if not source.is_pure:
        return
    for name in imported_names(source):
        if name.split(".")[0] == "sys" and source.module == RECURSION_LIMIT_MODULE:
            continue
        if not PURE_IMPORTS & {name.split(".")[0], ".".join(name.split(".")[:2])}:
            yield f"{source.module} imports {name}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"{source.module}:{node.lineno} is async"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                yield f"{source.module}:{node.lineno} calls {node.func.id}"
            elif isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK_METHODS:
                yield f"{source.module}:{node.lineno} reads the clock"


def pure_modules_import_pure_modules_in_order(source: Source) -> Iterator[str]:
    if not source.is_pure:
        return
    if source.package not in PURE_ORDER:
        yield f"{source.module} has no place in PURE_ORDER"
        return
    for module in sorted(set(imported_modules(source))):
        package = package_of(module)
        is_above = package in PURE_ORDER and PURE_ORDER.index(package) > PURE_ORDER.index(source.package)
        if module != "interlock" and (not is_pure(module) or is_above):
            yield f"{source.module} imports {module}"


def running_parts_import_downward(source: Source) -> Iterator[str]:
    """Imports for type checking count: what a reader has to know of another package is a dependency."""
    if source.is_pure or not source.package or DECLARATIONS.fullmatch(source.module):
        return
    if source.package not in PACKAGE_ORDER:
        yield f"{source.module} has no place in PACKAGE_ORDER"
        return
    for module in sorted(set(imported_modules(source))):
        package = package_of(module)
        if is_pure(module) or not package or DECLARATIONS.fullmatch(module):
            continue
        if package not in PACKAGE_ORDER or PACKAGE_ORDER.index(package) > PACKAGE_ORDER.index(source.package):
            yield f"{source.module} imports {module}"


def api_modules_import_only_each_other(source: Source) -> Iterator[str]:
    """Commands read replies with these modules, and must not load the node to start."""
    if not API_MODULE.fullmatch(source.module):
        return
    for name in imported_names(source):
        if not name.startswith("interlock.") and name.split(".")[0] not in API_IMPORTS:
            yield f"{source.module} imports {name}"
    for module in sorted(set(imported_modules(source))):
        if not API_MODULE.fullmatch(module):
            yield f"{source.module} imports {module}"


def capability_modules_are_light(source: Source) -> Iterator[str]:
    """Every command reads the table of capabilities to start: a declaration imports no part of what it declares."""
    if not CAPABILITY_MODULE.fullmatch(source.module):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                if name.split(".")[0] not in CAPABILITY_IMPORTS and not CAPABILITY_MODULE.fullmatch(name):
                    yield f"{source.module} imports {name}"


def no_closure_names_a_later_variable(source: Source) -> Iterator[str]:
    """The object graph has no cycle: a lambda or inner function names nothing that is assigned after it.

    In a constructor this holds for attributes of `self` too.
    """
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        statements = list(_outside_of_closures(function))
        assigned = {
            argument.arg: function.lineno for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        }
        for node in statements:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assigned[node.id] = min(node.lineno, assigned.get(node.id, node.lineno))
            elif (
                function.name == "__init__" and (attribute := _own_attribute(node)) and isinstance(node.ctx, ast.Store)
            ):
                assigned[attribute] = min(node.lineno, assigned.get(attribute, node.lineno))
        for closure in statements:
            if isinstance(closure, _CLOSURES) and closure is not function:
                own = {node.arg for node in ast.walk(closure) if isinstance(node, ast.arg)}
                own |= {node.id for node in ast.walk(closure) if isinstance(node, ast.Name) and _is_store(node)}
                names = {node.id for node in ast.walk(closure) if isinstance(node, ast.Name)} - own
                names |= {attribute for node in ast.walk(closure) if (attribute := _own_attribute(node))}
                for name in sorted(names):
                    if assigned.get(name, 0) > (closure.end_lineno or closure.lineno):
                        yield f"{source.module}.{function.name} uses {name} before it exists"


_CLOSURES = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)


def _own_attribute(node: ast.AST) -> str:
    """Return "self.NAME" for an attribute of `self`, and an empty text for everything else."""
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return f"self.{node.attr}" if is_own else ""


def _outside_of_closures(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, its lambdas and inner functions included, but not what these contain."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*_CLOSURES, ast.comprehension)):
            pending.extend(ast.iter_child_nodes(node))


def _is_store(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def node_parts_are_complete_when_constructed(source: Source) -> Iterator[str]:
    """A part of the node gets what it needs from its constructor: `node` sets no attribute of another object."""
    if source.package != "node":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in _assignment_targets(node):
                is_own = isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}
                is_request_state = isinstance(target.value, ast.Attribute) and target.value.attr == "state"
                if not is_own and not is_request_state:
                    yield f"{source.module}:{node.lineno} sets {ast.unparse(target)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            yield f"{source.module}:{node.lineno} sets an attribute by its name"


def _assignment_targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[ast.Attribute]:
    """Yield the attributes that a statement assigns to."""
    pending: list[ast.expr] = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
    while pending:
        target = pending.pop()
        if isinstance(target, ast.Tuple | ast.List):
            pending.extend(target.elts)
        elif isinstance(target, ast.Attribute):
            yield target


def only_the_guard_makes_admitted(source: Source) -> Iterator[str]:
    if source.module == "interlock.guard.guard":
        return
    for name in imported_names(source):
        if re.fullmatch(r"interlock\.(?:guard|core)\.[\w.]+\._[A-Z_]*KEY", name):
            yield f"{source.module} imports the key of Admitted"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name == "Admitted":
                yield f"{source.module}:{node.lineno} makes an Admitted"


def no_mcp_sdk(source: Source) -> Iterator[str]:
    """Models that drop unknown fields are never in the path of a message."""
    for name in imported_names(source):
        if name.split(".")[0] in {"mcp", "mcp_types", "fastmcp", "pydantic"}:
            yield f"{source.module} imports {name}"


def hooks_need_python_alone(source: Source) -> Iterator[str]:
    """Hooks of drivers are imported in a sandbox that shows nothing else."""
    if not f"{source.module}.".startswith("interlock.drivers.hooks."):
        return
    for name in imported_names(source):
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("interlock.drivers.hooks"):
            yield f"{source.module} imports {name}"


def sdk_needs_no_node(source: Source) -> Iterator[str]:
    """A program that uses a library of `sdk` wants no gateway: it loads the protocols and transports alone."""
    if source.package != "sdk":
        return
    for module in imported_modules(source):
        if not is_pure(module) and not any(f"{module}.".startswith(f"{allowed}.") for allowed in SDK_IMPORTS):
            yield f"{source.module} imports {module}"


def routing_splits_no_names(source: Source) -> Iterator[str]:
    """MCP-AX 7.2: routing works on tables and arrays of segments, never on parts of a name."""
    first = PACKAGE_ORDER.index("core")
    if source.is_pure or source.package not in PACKAGE_ORDER[first : PACKAGE_ORDER.index("operator")]:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_at_dot = any(isinstance(argument, ast.Constant) and argument.value == "." for argument in node.args)
            if is_at_dot and node.func.attr in {"split", "rsplit", "partition", "rpartition"}:
                yield f"{source.module}:{node.lineno} splits a string at its dots"


def commands_write_by_output(source: Source) -> Iterator[str]:
    """What comes from servers, files and registries is escaped in `interlock.cli.terminal`, and there alone."""
    is_command = "cli" in source.module.split(".") and not source.module.startswith("interlock.cli.terminal.")
    # `app` prints the help of a command before there is an output, and the sample server speaks MCP on its stdout.
    if not is_command or source.module in ("interlock.cli.app", "interlock.aql.cli.sample_server"):
        return
    for node in ast.walk(source.tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if WRITES.fullmatch(called):
            yield f"{source.module}:{node.lineno} writes by {called}"


def module_names_say_something(source: Source) -> Iterator[str]:
    if MEANINGLESS_NAMES & set(source.module.split(".")):
        yield f"{source.module} does not say what it holds"


def modules_are_not_too_long(source: Source) -> Iterator[str]:
    if (lines := source.text.count("\n")) > LINES_MAX:
        yield f"{source.module} has {lines} lines"


RULES: list[Rule] = [
    pure_modules_reach_nothing,
    pure_modules_import_pure_modules_in_order,
    running_parts_import_downward,
    api_modules_import_only_each_other,
    capability_modules_are_light,
    no_closure_names_a_later_variable,
    node_parts_are_complete_when_constructed,
    only_the_guard_makes_admitted,
    no_mcp_sdk,
    hooks_need_python_alone,
    sdk_needs_no_node,
    routing_splits_no_names,
    commands_write_by_output,
    module_names_say_something,
    modules_are_not_too_long,
]

BREACHES: list[tuple[Rule, str, str]] = [
    (pure_modules_reach_nothing, "interlock.ax.protocol.x", "import asyncio"),
    (pure_modules_reach_nothing, "interlock.wire.x", "from os import environ"),
    (pure_modules_reach_nothing, "interlock.mcp.x", "from urllib import request"),
    (pure_modules_reach_nothing, "interlock.mcp.x", "import urllib.request"),
    (pure_modules_reach_nothing, "interlock.crypto.jose.x", "import logging.handlers"),
    (pure_modules_reach_nothing, "interlock.rooms.protocol.x.y", "async def f(): ..."),
    (pure_modules_reach_nothing, "interlock.rooms.protocol", "data = open('x')"),
    (pure_modules_reach_nothing, "interlock.wire.x", "from datetime import datetime\nat = datetime.now()"),
    (pure_modules_import_pure_modules_in_order, "interlock.ax.protocol.x", "import interlock.config.plan"),
    (pure_modules_import_pure_modules_in_order, "interlock.ax.protocol.x", "from interlock import store"),
    (pure_modules_import_pure_modules_in_order, "interlock.ax.protocol.x", "from ...guard.guard import Guard"),
    (pure_modules_import_pure_modules_in_order, "interlock.ax.protocol.x", "def late():\n    import interlock.cli"),
    (pure_modules_import_pure_modules_in_order, "interlock.mcp.x", "from interlock.ax.protocol import errors"),
    (pure_modules_import_pure_modules_in_order, "interlock.attic.protocol.x", ""),
    (running_parts_import_downward, "interlock.net.x", "from interlock.store.ports import Store"),
    (running_parts_import_downward, "interlock.crypto.x", "from interlock.net import http"),
    (running_parts_import_downward, "interlock.store.x", 'PARTS = {"a": "interlock.node.node:Node"}'),
    (running_parts_import_downward, "interlock.node.x", "from interlock.cli import app"),
    (running_parts_import_downward, "interlock.operator.x", "from interlock.__main__ import main"),
    (running_parts_import_downward, "interlock.links.x", "from interlock.dispatch.dispatch import Dispatch"),
    (
        running_parts_import_downward,
        "interlock.core.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from interlock.gate.gate import Gate",
    ),
    (running_parts_import_downward, "interlock.rooms.x", "from interlock.rooms.operations import list_rooms"),
    (running_parts_import_downward, "interlock.rooms.operations", "from interlock.rooms.cli import join"),
    (running_parts_import_downward, "interlock.attic.x", ""),
    (api_modules_import_only_each_other, "interlock.rooms.api", "import asyncio"),
    (api_modules_import_only_each_other, "interlock.rooms.api", "from interlock.rooms.rooms import Rooms"),
    (capability_modules_are_light, "interlock.node.capabilities", "from interlock.rooms.rooms import Rooms"),
    (capability_modules_are_light, "interlock.node.capabilities", "import msgspec"),
    (running_parts_import_downward, "interlock.rooms.rooms", "from interlock.rooms.parts import RoomParts"),
    (no_closure_names_a_later_variable, "interlock.node.x", "def build():\n    a = A(lambda: b)\n    b = B(a)"),
    (
        no_closure_names_a_later_variable,
        "interlock.node.x",
        "class N:\n    def __init__(self):\n        self.a = A(lambda: self.b)\n        self.b = B()",
    ),
    (
        no_closure_names_a_later_variable,
        "interlock.links.x",
        "def build():\n    def find():\n        return b\n    a = A(find)\n    b = B(a)",
    ),
    (node_parts_are_complete_when_constructed, "interlock.node.x", "def wire(dispatch):\n    dispatch.gate = 1"),
    (node_parts_are_complete_when_constructed, "interlock.node.x", "def wire(node):\n    node.gate.on_held = None"),
    (node_parts_are_complete_when_constructed, "interlock.node.x", "first, decisions.judge = 1, 2"),
    (node_parts_are_complete_when_constructed, "interlock.node.x", "registry.count += 1"),
    (node_parts_are_complete_when_constructed, "interlock.node.x", "setattr(dispatch, 'gate', 1)"),
    (only_the_guard_makes_admitted, "interlock.links.x", "from interlock.guard.guard import _KEY"),
    (only_the_guard_makes_admitted, "interlock.links.x", "Admitted(command=1)"),
    (only_the_guard_makes_admitted, "interlock.links.x", "guard.Admitted[Call](command=1)"),
    (no_mcp_sdk, "interlock.links.x", "from mcp.client import Client"),
    (no_mcp_sdk, "interlock.cli.x", "import mcp"),
    (hooks_need_python_alone, "interlock.drivers.hooks.x", "import msgspec"),
    (hooks_need_python_alone, "interlock.drivers.hooks.x", "from interlock.drivers.protocol import problems"),
    (sdk_needs_no_node, "interlock.sdk.subserver.x", "from interlock.node.node import Node"),
    (sdk_needs_no_node, "interlock.sdk.subserver.x", "from interlock.store.sqlite.store import SqliteStore"),
    (routing_splits_no_names, "interlock.catalog.catalog", "name.split('.')"),
    (routing_splits_no_names, "interlock.links.x", "name.rpartition('.')"),
    (commands_write_by_output, "interlock.links.cli", "print(name)"),
    (commands_write_by_output, "interlock.names.cli", "typer.confirm(name)"),
    (commands_write_by_output, "interlock.drivers.cli.x", "sys.stderr.write(name)"),
    (commands_write_by_output, "interlock.cli.x", "Console().print(name)"),
    (module_names_say_something, "interlock.links.utils", ""),
    (modules_are_not_too_long, "interlock.links.x", "\n" * (LINES_MAX + 1)),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (pure_modules_reach_nothing, "interlock.wire.x", "import re, hashlib, msgspec\nfrom urllib.parse import quote"),
    (pure_modules_reach_nothing, "interlock.net.x", "import asyncio"),
    (pure_modules_import_pure_modules_in_order, "interlock.ax.protocol.x", "from interlock.mcp import methods"),
    (running_parts_import_downward, "interlock.node.x", "from interlock.rooms import operations"),
    (running_parts_import_downward, "interlock.node.x", "from interlock import __version__"),
    (running_parts_import_downward, "interlock.net.x", "from interlock.rooms.protocol import limits"),
    (running_parts_import_downward, "interlock.links.x", "from ..net import http\nfrom .link import Link"),
    (running_parts_import_downward, "interlock.rooms.operations", "from interlock.operator import api"),
    (running_parts_import_downward, "interlock.rooms.rooms", "from interlock.operator.api import Status"),
    (api_modules_import_only_each_other, "interlock.links.api", "from interlock.guard.api import Spent"),
    (running_parts_import_downward, "interlock.rooms.cli", "from interlock.cli.terminal import output"),
    (running_parts_import_downward, "interlock.rooms.parts", "from interlock.node.common_parts import CallParts"),
    (running_parts_import_downward, "interlock.config.x", "from interlock.node.capabilities import CAPABILITIES"),
    (capability_modules_are_light, "interlock.node.capabilities", 'PARTS = "interlock.rooms.parts:RoomParts"'),
    (running_parts_import_downward, "interlock.__main__", "from interlock.cli import app"),
    (no_closure_names_a_later_variable, "interlock.node.x", "def build():\n    b = B()\n    return A(lambda: b)"),
    (no_closure_names_a_later_variable, "interlock.node.x", "def build():\n    f = lambda b: b\n    b = f(1)"),
    (
        node_parts_are_complete_when_constructed,
        "interlock.node.x",
        "class A:\n    def f(self):\n        self.x = 1",
    ),
    (node_parts_are_complete_when_constructed, "interlock.dispatch.x", "call.deadline = 1.0"),
    (only_the_guard_makes_admitted, "interlock.guard.guard", "Admitted(command=1)"),
    (only_the_guard_makes_admitted, "interlock.links.x", "def send(command: Admitted[Call]) -> None: ..."),
    (no_mcp_sdk, "interlock.links.x", "from interlock.mcp import messages"),
    (sdk_needs_no_node, "interlock.sdk.subserver.x", "from interlock.net import websocket"),
    (sdk_needs_no_node, "interlock.sdk.subserver.x", "from interlock.crypto.signing import read_signing_key"),
    (routing_splits_no_names, "interlock.links.x", "line.split(',')"),
    (commands_write_by_output, "interlock.links.cli", "out.line(name)\nconfirm(name)\nsys.stdout.flush()"),
    (commands_write_by_output, "interlock.cli.terminal.output", "typer.confirm(safe_text(question))"),
    (routing_splits_no_names, "interlock.ax.protocol.names", "name.split('.')"),
]


def breaches(rule: Rule) -> list[str]:
    return sorted({f"{rule.__name__}: {breach}" for source in sources() for breach in rule(source)})


def known_breaches() -> list[str]:
    lines = KNOWN_BREACHES.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep_the_rule(rule: Rule) -> None:
    present = set(breaches(rule))
    known = {line for line in known_breaches() if line.startswith(f"{rule.__name__}: ")}
    assert sorted(present - known) == [], "new breaches"
    assert sorted(known - present) == [], "no longer needed: python tests/test_architecture.py --rewrite"


def test_known_breaches_name_rules_that_exist() -> None:
    assert {line.split(":")[0] for line in known_breaches()} <= {rule.__name__ for rule in RULES}


@pytest.mark.parametrize(("rule", "module", "text"), BREACHES)
def test_a_planted_breach_is_reported(rule: Rule, module: str, text: str) -> None:
    assert list(rule(planted(module, text)))


@pytest.mark.parametrize(("rule", "module", "text"), ALLOWED)
def test_allowed_code_is_not_reported(rule: Rule, module: str, text: str) -> None:
    assert list(rule(planted(module, text))) == []


def test_every_rule_has_a_planted_breach() -> None:
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


def test_every_package_has_a_place_in_the_order() -> None:
    packages = {source.package for source in sources()} - {""}
    assert packages == set(PACKAGE_ORDER)


def test_no_test_or_script_is_too_long() -> None:
    scripts = [path for path in committed_files() if path.suffix == ".py"]
    assert [path for path in scripts if path.read_text("utf-8").count("\n") > LINES_MAX] == []


def test_committed_files_name_no_machine_and_no_registry() -> None:
    lines = []
    for path in committed_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                lines.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert lines == []


@pytest.mark.parametrize(
    "place", ["tmp/x", "tmp", "work/main", "root/.cache", "opt/x", "home/someone", "Users/someone/x"]
)
@pytest.mark.parametrize("before", ["", "file://", '"', "see ", "("])
def test_a_machine_path_is_recognised(before: str, place: str) -> None:
    assert MACHINE_PATH.search(before + "/" + place)


@pytest.mark.parametrize(
    "text", ["/workspace/a", "src/tmp/x", "https://example.com/work", "/tmpfs", "a/root", "/options"]
)
def test_an_ordinary_path_is_not_taken_for_a_machine_path(text: str) -> None:
    assert not MACHINE_PATH.search(text)


def committed_files() -> list[Path]:
    """Return tracked files and those that would be added."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


HEADER = """\
# Breaches of the rules in tests/test_architecture.py that existed before the rules. Remove lines, add none.
# After removing or renaming one: python tests/test_architecture.py --rewrite
"""


def rewrite() -> None:
    """Write the list of known breaches again, unless it became longer."""
    lines = [breach for rule in RULES for breach in breaches(rule)]
    known = known_breaches() if KNOWN_BREACHES.exists() else lines
    if len(lines) > len(known):
        sys.exit("\n".join(["there are new breaches:", *sorted(set(lines) - set(known))]))
    KNOWN_BREACHES.write_text(HEADER + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(known)} known breaches before, {len(lines)} now")


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit("usage: python tests/test_architecture.py --rewrite")
    rewrite()
