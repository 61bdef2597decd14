"""Keys of [servers.SEGMENT] and [[tool]]: how a server is reached, and what is known of its tools."""

import enum
from typing import Final, get_args

from interlock.ax.protocol.capability import AuthScope, Availability, Consistency, CostClass, LatencyClass
from interlock.ax.protocol.transport_classes import PRIVATE_CLASS, TRANSPORT_CLASSES
from interlock.config.addresses import Url
from interlock.config.aql_keys import OPERATION
from interlock.config.plan import Dial, Share, ToolClass, ToolRule
from interlock.config.record_types import AMOUNT, BUDGET, ENVIRONMENT, SERVER_AUTH
from interlock.config.sections import Key, choices_of, keys_by_name, keys_of
from interlock.config.value_types import (
    Choice,
    Command,
    FilePath,
    Flag,
    Headers,
    Many,
    Seconds,
    Size,
    Table,
    Text,
    Version,
    Whole,
)
from interlock.net.protocol.egress import ENTRY

MONTH_S: Final = 31 * 24 * 3600
MESSAGE_SIZE: Final = Size(low=1024, high=1024**3)
# A leading "-" would be an option to the installer, so no package or image may start with one.
NPM_PACKAGE: Final = r"(?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(?:@[0-9A-Za-z^~][0-9A-Za-z.+_-]*)?"
PYPI_PACKAGE: Final = (
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9][A-Za-z0-9._,-]*\])?(?:==[0-9A-Za-z][0-9A-Za-z.!+_-]*)?"
)
DOCKER_IMAGE: Final = r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?"


PROGRAMS: Final = ("command", "npm", "pypi")
REACHES: Final = (*PROGRAMS, "docker", "url")  # the keys of which a server has exactly one
DIALLED: Final = choices_of(Dial, "transport").values
TEXT: Final = Text(references=True, empty=True)
_TRANSPORT: Final = "|".join((*(one.id for one in TRANSPORT_CLASSES), PRIVATE_CLASS))
_TOOL_CLASS = Choice(values=get_args(ToolClass))


def _one_of(kind: type[enum.Enum]) -> Choice:
    return Choice(values=tuple(member.value for member in kind))


SERVERS: Final = keys_by_name(
    Key(
        name="command",
        kind=Command(),
        example="python -m my_server",
        help="A program to start: one string, split like a shell does it, or a list.",
    ),
    Key(
        name="npm",
        kind=Text(pattern=NPM_PACKAGE, what="an npm package", hint='write "@scope/name" or "name@1.2.3"'),
        example="@modelcontextprotocol/server-memory",
        help="An npm package to install and start.",
    ),
    Key(
        name="pypi",
        kind=Text(pattern=PYPI_PACKAGE, what="a PyPI package", hint='write "name" or "name==1.2.3"'),
        example="mcp-server-time",
        help="A PyPI package to install and start.",
    ),
    Key(
        name="docker",
        kind=Text(pattern=DOCKER_IMAGE, what="a container image", hint='write "owner/image:tag"'),
        example="mcp/fetch",
        help="A container image to start with docker run.",
    ),
    Key(
        name="url",
        kind=Url(outward=True),
        example="https://mcp.example.com/mcp",
        help="A server that is already running.",
    ),
    Key(
        name="args",
        beside=(*PROGRAMS, "docker"),
        kind=Many(item=TEXT),
        default=[],
        example=["--local-timezone", "Europe/Berlin"],
        help="Arguments of the program. ${env:NAME} is replaced.",
    ),
    Key(
        name="env",
        beside=(*PROGRAMS, "docker"),
        kind=ENVIRONMENT,
        default={},
        example={"LOG_LEVEL": "info"},
        help="Environment variables of the program. ${env:NAME} and ${secrets.NAME} are replaced.",
    ),
    Key(
        name="cwd",
        beside=PROGRAMS,
        kind=FilePath(),
        example="servers",
        help="The folder the program starts in. Default: workspace.",
    ),
    Key(
        name="headers",
        beside=("url",),
        kind=Headers(),
        default={},
        example={"X-Team": "blue"},
        help="Headers sent with every request. ${env:NAME} and ${secrets.NAME} are replaced.",
    ),
    Key(
        name="auth",
        beside=("url",),
        kind=SERVER_AUTH,
        example={"grant": "client_credentials", "client_id": "node", "client_secret": "${secrets.CRM}"},
        help="How OAuth tokens for the server are had. Default: a person agrees on the page the server names.",
    ),
    Key(
        name="egress",
        beside=(*PROGRAMS, "docker"),
        kind=Many(
            item=Text(
                pattern=ENTRY.pattern,
                what="the name of a host, *.NAME or *, with :PORT or without",
                hint="without path or network mask",
            )
        ),
        example=["api.example.com"],
        help="Start it in a sandbox, from which it reaches these hosts and no other. Empty: none.",
    ),
    Key(
        name="files",
        beside=(*PROGRAMS, "docker"),
        kind=Many(item=FilePath()),
        example=["~/notes"],
        help="Start it in a sandbox, in which it reads and writes these files and folders beside its own.",
    ),
    Key(
        name="roots",
        beside=REACHES,
        kind=Many(item=FilePath()),
        example=["~/notes"],
        help="The folders it is told as roots, whatever clients say. Default: files, else the folders in args.",
    ),
    Key(
        name="transport",
        beside=REACHES,
        kind=Choice(values=(*DIALLED, "stdio")),
        default="auto",
        example="auto",
        help="With url: http (streamable), sse (2024-11-05) or auto. A program speaks stdio.",
    ),
    Key(
        name="timeout_s",
        beside=REACHES,
        kind=Seconds(low=1, high=MONTH_S),
        default=300,
        example=900,
        help="How long a call may be silent whose tool declares no latency class. Progress starts it anew.",
    ),
    Key(
        name="share",
        beside=REACHES,
        kind=Choice(values=get_args(Share)),
        default="auto",
        example="session",
        help="Who uses one process or connection: all (node), a principal, a session. auto: all, until it matters.",
    ),
    Key(
        name="max_processes",
        beside=(*PROGRAMS, "docker"),
        kind=Whole(low=1, high=10_000),
        default=16,
        example=4,
        help="How many processes principals or sessions may have of their own.",
    ),
    Key(
        name="idle_timeout_s",
        beside=REACHES,
        kind=Seconds(low=1, high=MONTH_S),
        default=1800,
        example=300,
        help="How long the process or connection of a principal or session may be idle until it ends.",
    ),
    Key(
        name="result_bytes",
        beside=REACHES,
        kind=MESSAGE_SIZE,
        example="64Mi",
        help="The largest answer taken from it; a larger one fails its call alone. Default: limits.message_bytes.",
    ),
    Key(
        name="tools",
        beside=REACHES,
        kind=Table(names=r"[^\x00]+", names_are="a tool's name", item=_TOOL_CLASS),
        default={},
        example={"delete_file": "irreversible"},
        help="What a tool's effect is, by the name the server gives it.",
    ),
)

CAPABILITY: Final = keys_by_name(  # MCP-AX 9.1
    Key(
        name="latency_class",
        kind=_one_of(LatencyClass),
        example="slow",
        help="How long a call usually takes.",
    ),
    Key(
        name="consistency",
        kind=_one_of(Consistency),
        example="eventual",
        help="What a read after a write sees.",
    ),
    Key(name="mutable", kind=Flag(), example=False, help="Whether a call changes anything."),
    Key(name="reversible", kind=Flag(), example=True, help="Whether what a call changed can be undone."),
    Key(name="idempotent", kind=Flag(), example=True, help="Whether a repeated call changes nothing more."),
    Key(
        name="transport",
        kind=Text(pattern=_TRANSPORT, what="a transport class", hint="such as native, or a private one as x-lora"),
        example="native",
        help="How the tool is reached.",
    ),
    Key(
        name="auth_scope",
        kind=_one_of(AuthScope),
        example="admin",
        help="The scope a caller needs.",
    ),
    Key(
        name="cost_class",
        kind=_one_of(CostClass),
        example="metered",
        help="What a call costs.",
    ),
    Key(
        name="availability",
        kind=_one_of(Availability),
        example="best_effort",
        help="When the tool can be called.",
    ),
    Key(
        name="schema_version",
        kind=Version(),
        example="1.2.0",
        help="Version of the tool's definition.",
    ),
)

TOOL: Final = (
    keys_of(
        ToolRule,
        Key(
            name="match",
            kind=Text(),
            example="files.write_*",
            help="Qualified tool name (glob); the first entry that matches applies.",
        ),
        Key(name="hide", example=True, help="Whether clients do not see the tool."),
        Key(
            name="cost_units",
            kind=AMOUNT,
            example=5,
            help="How many units a call costs. Default: what units in [budget] says of its cost_class.",
        ),
        Key(
            name="budget",
            kind=BUDGET,
            example={"max_calls_per_minute": 10},
            help="How much of each of these tools may be used, by all callers together.",
        ),
        Key(
            name="pin",
            example=True,
            help="Whether the tool, once its definition changes, is withheld until an operator accepts the change.",
        ),
        Key(
            name="trust",
            example="certified",
            help="How far the tool's server is trusted (MCP-AQL); a low trust denies dangerous operations.",
        ),
        Key(
            name="aql",
            kind=OPERATION,
            example={"category": "READ"},
            help="What is known of the tool's operation (MCP-AQL): name, category, family, danger and more.",
        ),
        unwritten=("capability",),
    )
    | CAPABILITY
)
