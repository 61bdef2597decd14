"""The keys of [drivers]: what the operator says of drivers beside their files."""

from typing import Final

from interlock.config.plan import DriversPlan, PolicyPlan
from interlock.config.sections import Key, keys_of
from interlock.config.server_keys import MESSAGE_SIZE, MONTH_S
from interlock.config.value_types import Choice, FilePath, Many, Record, Seconds, Table, Text

_ID: Final = r"[a-z0-9][a-z0-9.-]{1,79}"  # AIP-30 and AIP-14 give drivers and contracts the same form
_HOST: Final = Text(
    pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]",
    what="a host's name or address",
    hint="without scheme, port and path, for instance mcp.lan",
)
_TAG: Final = Text(
    pattern=r"[a-z0-9][a-z0-9-]{0,63}", what="a policy tag", hint="in lower case, for instance self-hosted"
)
_POLICY: Final = Record(
    what="the policy on drivers",
    example='policy = { deny = ["third-party-api"] }',
    fields={"allow": Many(item=_TAG), "deny": Many(item=_TAG)},
    make=PolicyPlan,
)
_REGION: Final = Text(pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", what="a region", hint='for instance "EU"')
_SANDBOXES: Final = Table(names=_ID, names_are="a driver's id", item=Choice(values=("off",)))
_RESULT_SIZES: Final = Table(names=_ID, names_are="a driver's id", item=MESSAGE_SIZE)
_PINS: Final = Table(
    names=_ID,
    names_are="a contract's id",
    item=Text(pattern=rf"{_ID}(?:@[0-9]{{1,9}})?", what="a driver's id", hint="for instance filesystem-mcp"),
)

DRIVERS: Final = keys_of(
    DriversPlan,
    Key(
        name="paths",
        kind=Many(item=FilePath()),
        example=["/srv/drivers"],
        help="Further folders of drivers, searched after .drivers in the workspace and the person's own.",
    ),
    Key(
        name="registration",
        example="lazy",
        help="Whether a driver's server is started and checked at once, or when it is first called.",
    ),
    Key(
        name="idle_timeout_s",
        kind=Seconds(low=1, high=MONTH_S),
        example=60,
        help="After how many seconds without a call a driver's server is stopped.",
    ),
    Key(
        name="on_mismatch",
        example="drop_binding",
        help="When a server's tool does not fit its contract: the whole driver is rejected, or only that tool.",
    ),
    Key(
        name="sandbox",
        kind=_SANDBOXES,
        example={"legacy-mcp": "off"},
        help="Drivers that run without a sandbox. It is shown in lists and written to the audit log.",
    ),
    Key(
        name="result_bytes",
        kind=_RESULT_SIZES,
        example={"files-mcp": "64Mi"},
        help="The largest answer taken from a driver's server; a larger one fails its call alone.",
    ),
    Key(
        name="insecure_hosts",
        kind=Many(item=_HOST),
        example=["mcp.lan"],
        help="Hosts of remote drivers that may be reached over plain http.",
    ),
    Key(
        name="ca_file",
        kind=FilePath(),
        example="tls/company-ca.pem",
        help="Further CA certificates (PEM) for remote drivers.",
    ),
    Key(
        name="region",
        kind=_REGION,
        example="EU",
        help="Where this node runs: what the region self-hosted of a driver means.",
    ),
    Key(
        name="policy",
        kind=_POLICY,
        example={"deny": ["third-party-api"]},
        help="Which drivers may serve, by their policy tags: only those with one of allow, none with one of deny.",
    ),
    Key(
        name="pins",
        kind=_PINS,
        example={"fs.read": "filesystem-mcp"},
        help="The driver that serves a contract, where several could.",
    ),
    Key(
        name="trust_workspace",
        example=True,
        help="Whether drivers of the workspace need no `interlock drivers trust NAME`.",
    ),
    Key(
        name="allow_unverified_install",
        example=True,
        help="Whether a download without a checksum may be installed, and a Python package without a wheel be built.",
    ),
    Key(name="npx", example=True, help="Whether npm packages are run with npx instead of being installed."),
    Key(
        name="dev", example=True, help="Whether a change that needs a new major version of a driver is only warned of."
    ),
    unwritten=("own",),
)
