"""The publication of the registry, and the import of registries that others publish.

A published form is computed once for each state, day and set of experts. An imported entry is read-only here and never
replaces an entry of this registry or of another source. Importing the same source again replaces its earlier entries.
What an imported registry says is only enforced once an operator trusts the source (REG-N-5).
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from interlock.names.protocol.entry import RegistryEntry
from interlock.names.protocol.publication import BadDocument, Form, Publication, publish, read_published_untrusted
from interlock.names.protocol.registry import NamesRegistry, RegistryStep, SourceRegistry
from interlock.names.state import RegistryChange, RegistryState, changes_registry
from interlock.wire.refusal import NotFound, Refused

SOURCE_CHARS_MAX: Final = 500


class Publisher:
    """The publisher of the registry, which also imports other registries."""

    def __init__(self, state: RegistryState, experts: Callable[[], tuple[str, ...]]) -> None:
        """Create the publisher. `experts` returns the names of the people who decide on requests. The names are
        published.
        """
        self._state = state
        self._experts = experts
        self._published: dict[Form, tuple[tuple[str, ...], bytes]] = {}

    def published(self, form: Form) -> bytes:
        """Return the registry in a published form. It is computed again only after a change."""
        experts = self._experts()
        key = (self._state.version, self._state.today, *experts)
        cached = self._published.get(form)
        if cached is None or cached[0] != key:
            registry = self._state.registry
            publication = Publication(
                entries=tuple(registry.in_order()), updated=registry.updated, today=self._state.today, experts=experts
            )
            cached = self._published[form] = key, publish(publication, form)
        return cached[1]

    async def import_(
        self, by: str, data: bytes, source: str, *, is_trusted: bool, pin: str = ""
    ) -> tuple[int, SourceRegistry]:
        """Import the entries of another registry. They are read-only and replace earlier entries of the same source.

        `is_trusted` says whether tools that differ from these entries may be refused. `pin` is the digest that the
        document must have, or empty. Return the number of entries, and the source. Raise Refused if the document is not
        accepted, and StoreError if the entries cannot be stored.
        """
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if pin and pin != digest:
            raise Refused("wrong_digest", f"the document has the digest {digest}, not the pinned one")
        if not source or len(source) > SOURCE_CHARS_MAX or not source.isprintable():
            raise Refused("bad_source", "say where it comes from, in printable characters")
        try:
            entries = read_published_untrusted(data)
        except BadDocument as bad:
            raise Refused("bad_document", str(bad)) from None
        state = self._state

        def decide(registry: NamesRegistry) -> RegistryChange[SourceRegistry]:
            taken = [each.surface_name for each in entries if _is_taken(registry, each, source)]
            if taken:
                shown = ", ".join(taken[:5])
                raise Refused("name_taken", f"{shown}: registered here or by another source", {"names": taken[:100]})
            imported = SourceRegistry(url=source, digest=digest, imported_on=state.today, is_trusted=is_trusted)
            step = partial(RegistryStep, at=state.now, by=by, what="import")
            steps = [step(subject=source, source=imported)]
            names = {each.surface_name for each in entries}
            for old in registry.entries.values():
                if old.source == source and old.surface_name not in names:
                    steps.append(step(subject=old.surface_name, entry=old, is_removed=True))
            for entry in entries:
                new = replace(entry, source=source)  # REG-9-4
                # Every registry has the initial entries. An equal one that is registered here stays as it is.
                if registry.entries.get(entry.surface_name) not in (new, replace(entry, source="")):
                    steps.append(step(subject=entry.surface_name, entry=new))
            return RegistryChange(tuple(steps), imported)

        return len(entries), await state.change(decide)

    @changes_registry
    def trust(
        self, registry: NamesRegistry, by: str, source: str, *, is_trusted: bool
    ) -> RegistryChange[SourceRegistry]:
        """Set whether the entries of an imported registry are enforced (REG-N-5)."""
        current = registry.sources.get(source)
        if current is None:
            raise NotFound("source", source, list(registry.sources))
        changed = replace(current, is_trusted=is_trusted)
        what = "trust" if is_trusted else "distrust"
        step = RegistryStep(at=self._state.now, by=by, what=what, subject=source, source=changed)
        return RegistryChange((step,), changed)


def _is_taken(registry: NamesRegistry, entry: RegistryEntry, source: str) -> bool:
    """Return whether a name already has an entry that is registered here or was imported from another source. An equal
    entry that is registered here does not count.
    """
    standing = registry.entries.get(entry.surface_name)
    return standing is not None and standing.source != source and standing != replace(entry, source="")
