"""The table of capabilities and the configuration: every section belongs to one capability."""

from collections import Counter

from interlock.config.schema import sections
from interlock.node.capabilities import capabilities


def test_every_section_belongs_to_exactly_one_capability() -> None:
    listed = Counter(section for each in capabilities() for section in each.sections)
    listed.update(each.section.name for each in capabilities() if each.section is not None)
    assert listed == Counter(list(sections()))


def test_names_of_capabilities_and_commands_are_unique() -> None:
    names = [each.name for each in capabilities()]
    commands = [command for each in capabilities() for command in each.commands]
    assert len(set(names)) == len(names) and len(set(commands)) == len(commands)
