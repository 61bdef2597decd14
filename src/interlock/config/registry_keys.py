"""The keys of the registry of names: [registry]."""

from typing import Final, get_args

from interlock.config.plan import Enforcement, RegistryPlan
from interlock.config.sections import Key, keys_of
from interlock.config.value_types import Choice, Many, Table, Text

_NAME: Final = r"[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)*"

REGISTRY: Final = keys_of(
    RegistryPlan,
    Key(
        name="enforce",
        example="warn",
        help="What becomes of a tool that does not keep to the registered specification of its name: it is refused"
        " (reject), its server is (session), it is listed with its verdict (warn), or nothing is compared (off)."
        " Imported registries warn until they are trusted.",
    ),
    Key(
        name="per_name",
        kind=Table(names=_NAME, names_are="a surface name", item=Choice(values=get_args(Enforcement))),
        default={},
        example={"search": "off"},
        help="The same for single names.",
    ),
    Key(
        name="routes",
        kind=Table(names=_NAME, names_are="a surface name", item=Many(item=Text())),
        default={},
        example={"search": ["a", "b"]},
        help="Names that are offered without a segment, and the servers that may serve each: the first that is there"
        " and keeps to the specification.",
    ),
    Key(name="strict", example=True, help="Whether a server without an output schema is refused as well."),
    Key(name="public_read", example=True, help="Whether the registry can be read without a credential."),
    Key(name="tools", example=True, help="Whether clients are offered names.lookup, .check, .verify and .request."),
)
