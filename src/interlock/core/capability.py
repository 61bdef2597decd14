"""A capability: everything that one package adds to a node, as one entry of the table in `node/capabilities.py`.

An entry names what is heavy as "module:attribute", and nothing is imported before it is used.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


def load_reference(reference: str) -> Any:
    """Import the object that "module:attribute" names."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


class Command(NamedTuple):
    """A command of the command line, as a capability declares it."""

    app: str  # reference to its typer app
    other_number: str | None = None  # the noun's plural or singular, which works as well


class ConfigurationSection(NamedTuple):
    """A table of interlock.toml that a capability declares for itself, instead of a field of `Plan`.
    `section_values(plan, name, type)` returns its values.
    """

    name: str
    keys: str  # reference to the struct whose fields are the keys, each with a default
    help: str


class Capability(NamedTuple):
    """A declaration of all that a package adds to the configuration, the operator API, the command line and a node."""

    name: str
    sections: tuple[str, ...] = ()  # of interlock.toml, declared as fields of Plan
    section: ConfigurationSection | None = None  # declared here
    operations: tuple[str, ...] = ()  # references to declarations of operations
    commands: Mapping[str, Command] = {}
    parts: str | None = None  # reference to a subclass of CapabilityParts: links, checks, metrics, open and close
