"""The table of capabilities and the configuration: every section belongs to one capability."""

from collections import Counter

from interlock.config.schema import sections
from interlock.node.capabilities import CAPABILITIES


def test_every_section_belongs_to_exactly_one_capability() -> None:
    listed = Counter(section for each in CAPABILITIES for section in each.sections)
    listed.update(each.section.name for each in CAPABILITIES if each.section is not None)
    assert listed == Counter(list(sections()))


def test_names_of_capabilities_and_commands_are_unique() -> None:
    names = [each.name for each in CAPABILITIES]
    commands = [command for each in CAPABILITIES for command in each.commands]
    assert len(set(names)) == len(names) and len(set(commands)) == len(commands)
