"""Does an entry say where it comes from, also after its name was removed, or registered by somebody else?"""

import pytest
from msgspec.structs import replace
from tests.names.old_registry import entry

from interlock.names.protocol.comparison import compare_name, count_differing, differences, origin
from interlock.names.protocol.entry import RegistryEntry
from interlock.names.protocol.registry import NamesRegistry, RegistryStep, SourceRegistry, decode_step, encode_step
from interlock.names.state import initial_steps

NAME = "org_alter_ingest"
INITIAL = "draft-morrison-mcp-tool-surface-names-registry-00, initial contents"


def step(changed: RegistryEntry, *, is_removed: bool = False) -> RegistryStep:
    at = "2026-11-17T00:00:00Z"
    return RegistryStep(at=at, by="expert:eve", what="accept", entry=changed, is_removed=is_removed)


@pytest.mark.req("REG-6-6")
def test_an_initial_entry_keeps_its_origin_until_its_name_is_registered_again() -> None:
    registry = NamesRegistry(initial_steps())
    initial = registry.entries[NAME]
    registry.apply(step(replace(initial, public_confirmed_on="2026-11-17")))
    assert origin(registry, registry.entries[NAME]) == INITIAL
    registry.apply(step(replace(initial, first_registered="2031-11-17")))
    assert origin(registry, registry.entries[NAME]) == "registered here"
    removed = NamesRegistry(initial_steps())
    removed.apply(step(initial, is_removed=True))
    assert NAME not in removed.initial
    removed.apply(step(initial))
    assert origin(removed, removed.entries[NAME]) == "registered here"


@pytest.mark.req("REG-6-6")
def test_other_entries_say_that_they_are_registered_here_or_imported() -> None:
    registry = NamesRegistry(initial_steps())
    own, foreign = entry("acme_search"), entry("zoo_search", source="https://registry.example")
    registry.apply(step(own))
    registry.apply(step(foreign))
    assert origin(registry, own) == "registered here"
    assert origin(registry, foreign) == "imported from https://registry.example"


@pytest.mark.req("REG-6-7")
def test_a_compared_entry_is_read_back_from_the_log_and_is_no_entry_of_the_registry() -> None:
    registry = NamesRegistry(initial_steps())
    updated, holders = registry.updated, dict(registry.holders)
    source = SourceRegistry(url="later", digest="sha256:00", imported_on="2026-11-17", is_beside=True)
    begun = RegistryStep(at="2026-11-17T00:00:00Z", by="local", what="import", source=source)
    other = entry("acme_search", source="later")
    for each in (begun, replace(begun, source=None, beside=other)):
        registry.apply(decode_step(encode_step(each)))
    assert (registry.updated, registry.holders) == (updated, holders)
    assert "acme_search" not in registry.entries
    (comparison,) = compare_name(registry, "acme_search")
    assert (comparison.source, comparison.imported_on, comparison.status) == ("later", "2026-11-17", "Active")
    assert count_differing(registry.entries, registry.beside["later"]) == 1
    registry.apply(replace(begun, source=None, beside=other, is_removed=True))
    assert list(compare_name(registry, "acme_search")) == []
    assert [each.differences for each in compare_name(registry, NAME)] == [("it has no entry of this name",)]
    registry.apply(replace(begun, source=replace(source, is_beside=False)))
    assert list(compare_name(registry, NAME)) == []


@pytest.mark.req("REG-6-7")
def test_schemas_are_compared_only_if_the_other_registry_has_them() -> None:
    own = entry("acme_search")
    revision = replace(own.specification, argument_digest=None, return_digest=None)
    without = replace(own, revisions=(revision,))
    assert differences(own, without) == ()
    argument, returned = differences(without, own)
    assert argument.startswith("argument schema: none here, sha256:") and returned.startswith("return schema: none")
