"""Does whatever stands in another program's file come out as values, and never as an exception or a leak?"""

import json
from contextlib import suppress
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scale import examples

from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text, read_frontmatter
from interlock.interop.protocol.client_files import read_client_file
from interlock.interop.protocol.clients import CLIENTS
from interlock.interop.protocol.drafts import PENDING, ImportChoices, Sourced, batch, draft_entry
from interlock.interop.protocol.model import DriverDraft, FileReading
from interlock.interop.protocol.package_files import read_docker, read_registry
from interlock.interop.protocol.text_edits import UnreadableFile
from interlock.interop.protocol.translation import Surroundings

AROUND = Surroundings(home="/srv/ada", workspace="/srv/ada/w", env={"A": "b"})
WORDS = st.sampled_from(
    (
        "npx",
        "-y",
        "uvx",
        "docker",
        "run",
        "-e",
        "--from",
        "mcp-remote",
        "https://a.example/x?k=v",
        "${A}",
        "${input:x}",
        "--header",
        "Authorization: Bearer abc",
        "--key=1",
        "/srv/x",
        "${",
        "$A",
        "{{x|y}}",
        "{env:A}",
        "cmd",
        "/c",
        "-",
    )
)
TEXTS = st.one_of(WORDS, st.text(max_size=12))
VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=6,
)
KEYS = st.sampled_from(
    (
        "type",
        "command",
        "args",
        "env",
        "url",
        "headers",
        "cwd",
        "envFile",
        "tools",
        "timeout",
        "disabled",
        "sandbox",
        "httpUrl",
        "auth",
        "oauth",
        "cmd",
        "envs",
        "env_keys",
        "inputs",
        "env_vars",
        "bearer_token_env_var",
        "trust",
    )
)
SENSIBLE = st.fixed_dictionaries(
    {"command": WORDS, "args": st.lists(TEXTS, max_size=6), "env": st.dictionaries(TEXTS, TEXTS)}
)
ENTRIES = st.one_of(VALUES, st.dictionaries(KEYS, VALUES, max_size=5), SENSIBLE)


@settings(max_examples=examples(80, 3000), deadline=None)
@given(st.sampled_from(CLIENTS), st.dictionaries(TEXTS, ENTRIES, max_size=3))
def test_any_entries_become_drivers_that_can_be_read_or_notes(client: Any, entries: dict[str, Any]) -> None:
    content: Any = entries
    for key in reversed(client.root):
        content = {key: content}
    reading = FileReading()
    with suppress(UnreadableFile):  # a client whose form is not JSON may not read this
        reading = read_client_file(json.dumps(content).encode(), client)
    sourced = [Sourced(key=f"{index}", title="x", entry=entry) for index, entry in enumerate(reading.entries)]
    found = batch(sourced, [], AROUND, ImportChoices(everything=True))
    assert len({each.draft.id for each in found.planned}) == len(found.planned)
    for planned in found.planned:
        text = frontmatter_text({**planned.draft.data, "implements": [PENDING]})
        assert read_driver(text.encode(), "DRIVER.md").value is not None
        front = read_frontmatter(text.encode(), "DRIVER.md").value
        assert front is not None
        assert front.data == {**planned.draft.data, "implements": [PENDING]}


@settings(max_examples=examples(80, 3000), deadline=None)
@given(st.sampled_from(CLIENTS), st.binary(max_size=200))
def test_any_bytes_are_a_reading_or_an_unreadable_file(client: Any, data: bytes) -> None:
    for read in (partial(read_client_file, client=client), read_registry, read_docker):
        with suppress(UnreadableFile):
            read(data)


@settings(max_examples=examples(60, 2000), deadline=None)
@given(VALUES, VALUES)
def test_any_description_is_drafted_or_refused(package: Any, remote: Any) -> None:
    whole = {
        "name": "a/b",
        "packages": [package, {"registryType": "npm", "identifier": "x", "packageArguments": package}],
    }
    reading = FileReading()
    with suppress(UnreadableFile):  # infinity and NaN are not JSON
        reading = read_registry(json.dumps({**whole, "remotes": [remote]}).encode())
    for entry in reading.entries:
        made = draft_entry(entry, AROUND, ImportChoices())
        assert not isinstance(made, DriverDraft) or made.data["server"]["kind"]
