"""Is every secret taken out of a foreign entry, and does every placeholder keep its meaning?"""

import base64
import json
from typing import Any

import pytest
from tests.interop.foreign_files import (
    HOME,
    WORKSPACE,
    drafted_from,
    entry,
    read,
    refused_from,
    wrap_servers,
    written_files,
)

from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.files.inventory import read_secrets
from interlock.drivers.protocol.files.plaintext import looks_random, may_be_secret
from interlock.interop.protocol.drafts import PENDING, ImportChoices, draft_entry, driver_id, secrets_text
from interlock.interop.protocol.model import DriverDraft

MARKER = "m4rk3r-S3cr3t-Value-0123456789"


def written(draft: DriverDraft) -> str:
    """All that is written of a draft, and all that is told of it."""
    files = frontmatter_text({**draft.data, "implements": [PENDING]}) + secrets_text(draft.secrets)
    told = [(note.code, note.text) for note in draft.notes] + [(each.place, each.slug) for each in draft.secrets]
    return files + json.dumps(dict(draft.hints)) + str(told) + repr(draft.secrets)


PLACES: dict[str, dict[str, Any]] = {
    "env by name": {"command": "x", "env": {"API_TOKEN": MARKER}},
    "env by shape": {"command": "x", "env": {"HARMLESS": MARKER}},
    "env with a password in an address": {"command": "x", "env": {"DB": f"postgres://u:{MARKER}@db.example/x"}},
    "header": {"url": "https://a.example", "headers": {"Authorization": f"Bearer {MARKER}"}},
    "other header": {"url": "https://a.example", "headers": {"X-Api-Key": MARKER}},
    "argument after its flag": {"command": "x", "args": ["--api-key", MARKER]},
    "argument with its flag": {"command": "x", "args": [f"--token={MARKER}"]},
    "argument alone": {"command": "x", "args": [f"postgres://u:{MARKER}@db.example/x"]},
    "argument that is a header": {"command": "x", "args": ["--header", f"Authorization: Bearer {MARKER}"]},
    "argument that is a header with its flag": {"command": "x", "args": [f"--header=X-Key: {MARKER}"]},
    "query": {"url": f"https://a.example/mcp?v=1&api_key={MARKER}"},
    "user and password": {"url": f"https://u:{MARKER}@a.example/mcp"},
    "docker": {"command": "docker", "args": ["run", "-e", f"API_KEY={MARKER}", "i:1"]},
    "a carrier's header": {"command": "npx", "args": ["mcp-remote", "https://a.example", "--header", f"X: {MARKER}"]},
    "before the program": {"command": "env", "args": [f"API_KEY={MARKER}", "npx", "pkg"]},
}


@pytest.mark.req("AIP-import-6")
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_in_the_store_s_hands_and_nowhere_else(place: str) -> None:
    draft = drafted_from("cursor", PLACES[place])
    text = written(draft)
    assert MARKER not in text
    (found,) = draft.secrets
    assert found.value is not None
    whole = base64.b64decode(found.value).decode() if place == "user and password" else found.value
    assert MARKER in whole
    assert f"${{secrets.{found.name}}}" in text
    assert found.slug == f"it-mcp/{found.name.lower().replace('_', '-')}"
    inventory = read_secrets(secrets_text(draft.secrets).encode(), "SECRETS.md")
    assert inventory.problems == ()
    assert inventory.value is not None
    assert inventory.value.entries[0].description
    driver = read_driver(frontmatter_text({**draft.data, "implements": [PENDING]}).encode(), "DRIVER.md")
    assert driver.errors == ()
    assert driver.value is not None
    assert driver.value.secret_names == (found.name,)
    assert driver.value.auth is not None


@pytest.mark.req("AIP-import-6")
def test_keys_of_a_query_become_server_query_and_the_rest_stays() -> None:
    server = drafted_from("cursor", {"url": f"https://a.example/mcp?v=1&api_key={MARKER}&x=%20#part"}).data["server"]
    assert server == {
        "kind": "remote",
        "url": "https://a.example/mcp?v=1&x=%20",
        "query": {"api_key": "${secrets.API_KEY}"},
    }


@pytest.mark.req("AIP-import-6", "AIP-import-7")
def test_a_declared_secret_is_secret_whatever_it_looks_like() -> None:
    raw = {"command": "x", "env": {"COLOUR": "${input:colour}"}}
    file = {"inputs": [{"type": "promptString", "id": "colour", "description": "Which one", "password": True}]}
    draft = draft_entry(entry("vscode", raw, **file), wrap_servers(), ImportChoices())
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"]["env"] == {"COLOUR": "${secrets.COLOUR}"}
    assert [(each.slug, each.description, each.value, each.backend) for each in draft.secrets] == [
        ("it-mcp/colour", "Which one", None, None)
    ]


@pytest.mark.req("AIP-import-6")
def test_a_key_that_only_looks_secret_can_be_declared_harmless() -> None:
    raw = {"command": "x", "args": ["--public-token", "abc"], "env": {"HARMLESS_TOKEN": "abc"}}
    draft = drafted_from("cursor", raw, wishes=ImportChoices(not_secret=frozenset({"HARMLESS_TOKEN", "public-token"})))
    assert draft.secrets == ()
    assert draft.data["server"]["env"] == {"HARMLESS_TOKEN": "abc"}
    assert draft.data["metadata"]["interlock"]["not_secret"] == ["HARMLESS_TOKEN", "public-token"]


def test_a_secret_in_the_path_of_an_address_cannot_be_kept_and_is_refused() -> None:
    note = refused_from("cursor", {"url": f"https://a.example/s/{MARKER}/mcp"})
    assert note.code == "secret_in_url"
    assert MARKER not in note.text


def test_one_value_in_two_places_is_one_secret() -> None:
    draft = drafted_from(
        "cursor", {"command": "x", "args": ["--key", MARKER], "env": {"KEY": MARKER, "OTHER_KEY": "b"}}
    )
    assert written_files(draft) == {"it-mcp/key": MARKER, "it-mcp/other-key": "b"}


def test_two_values_under_one_name_are_two_secrets() -> None:
    draft = drafted_from("cursor", {"command": "x", "args": ["--token", "a1", "--token", "b2"]})
    assert written_files(draft) == {"it-mcp/token": "a1", "it-mcp/token-2": "b2"}
    assert draft.data["server"]["args"] == ["--token", "${secrets.TOKEN}", "--token", "${secrets.TOKEN_2}"]


@pytest.mark.req("AIP-import-6")
@pytest.mark.parametrize(
    ("name", "text", "secret"),
    [
        ("GITHUB_TOKEN", "abc", True),
        ("CLIENT_SECRET", "abc", True),
        ("DB_PASSWORD", "abc", True),
        ("OPENAI_API_KEY", "abc", True),
        ("ACCESS_KEY_ID", "abc", True),
        ("AWS_CREDENTIALS", "abc", True),
        ("BASIC_AUTH", "abc", True),
        ("SENTRY_DSN", "https://abc@errors.example/1", True),
        ("SESSION_COOKIE", "a=b", True),
        ("X", "ghp_abcdefgh", True),
        ("X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", True),
        ("X", "-----BEGIN PRIVATE KEY-----\nabc", True),
        ("X", "mysql://u:p@db.example/x", True),
        ("X", "550e8400-e29b-41d4-a716-446655440000", True),
        ("X", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", True),
        ("X", "AbCdEfGhIjKlMnOpQrStUvWx", True),
        ("HOOK", f"https://a.example/hooks/{MARKER}", True),
        ("LEVEL", "debug", False),
        ("MAX_TOKENS", "4096", False),
        ("AUTH_ENABLED", "true", False),
        ("AUTH_URL", "https://login.example/authorize", False),
        ("TOKEN_FILE", "/srv/ada/token", False),
        ("MODEL", "claude-3-5-sonnet-20241022", False),
        ("PACKAGE", "@modelcontextprotocol/server-filesystem", False),
        ("NAME", "thisIsACamelCaseIdentifierOfSomething", False),
        ("IMAGE", "ghcr.example/owner/some-mcp-server:v0.1.2", False),
        ("X", "", False),
    ],
)
def test_doubt_counts_as_secret_and_plain_settings_do_not(name: str, text: str, secret: bool) -> None:
    assert may_be_secret(name, text) is secret


SECRET_NAMES = """
    DB_PASS PW PIN DBPASS PGPASSWORD MYSQL_PWD SSHPASS ADMIN_PASS_2 DB_PASS2 userPassWord pass pw pwd passwd passphrase
    passcode DB_PASS_PROD ADMIN_PW_TEST PRIVATE PRIVATE_PEM SIGNATURE REQUEST_SIGNATURE SESSION SESSION_ID
    TELEGRAM_SESSION_STRING STORAGE_SAS BOTTOKEN OPENAI_APIKEY CLIENTSECRET API_KEYS OPENAI_KEY_1 AWS_CREDS JWT WIFI_PSK
""".split()  # noqa: SIM905
PLAIN_NAMES = """
    PATH PASSIVE_MODE COMPASS COMPASS_URL BYPASS KEYBOARD TOKENIZERS_PARALLELISM PASS_THROUGH PINNED SPIN
    PINECONE_ENVIRONMENT SESSION_NAME SESSION_MODE PRIVATE_REPOS PUBLIC_KEY SORT_KEYS MONKEY MAX_TOKENS AUTHOR
    DESIGNATION SASS_STYLE PASSENGER LEVEL REGION USER
""".split()  # noqa: SIM905


@pytest.mark.req("AIP-import-6")
@pytest.mark.parametrize("name", SECRET_NAMES)
def test_any_value_under_a_name_that_suggests_a_secret_is_a_secret(name: str) -> None:
    assert may_be_secret(name, "hunter")


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_the_name_of_an_ordinary_setting_makes_no_secret_of_its_value(name: str) -> None:
    assert not may_be_secret(name, "hunter")


@pytest.mark.parametrize(
    ("name", "text", "secret"),
    [
        ("PIN", "1234", True),
        ("DB_PASS", "12345", True),
        ("USE_PIN", "1", False),
        ("DB_PASS", "", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("SESSION_TIMEOUT", "3600", False),
        ("PASS_FILE", "/srv/ada/pass", False),
        ("PWD", "/srv/ada/work", False),
        ("ENDPOINT", "https://a.example/x?sv=1&sig=abc", True),
        ("ENDPOINT", "https://a.example/x?token=abc", True),
        ("ENDPOINT", "https://a.example/x?page=2", False),
        ("DSN_OF", "host=db user=u pass=hunter", True),
    ],
)
def test_a_short_number_is_a_password_and_a_switch_is_none(name: str, text: str, secret: bool) -> None:
    assert may_be_secret(name, text) is secret


@pytest.mark.req("AIP-import-6")
@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["-p", "hunter"], ["-p", "${secrets.P_VALUE}"]),
        (["-P", "hunter"], ["-P", "${secrets.P_VALUE}"]),
        (["-k", "hunter"], ["-k", "${secrets.K_VALUE}"]),
        (["-p=hunter"], ["-p=${secrets.P_VALUE}"]),
        (["-pHunter"], ["-p${secrets.P_VALUE}"]),
        (["--pass", "hunter"], ["--pass", "${secrets.PASS}"]),
        (["--pw", "1234"], ["--pw", "${secrets.PW}"]),
        (["--key", "hunter"], ["--key", "${secrets.KEY}"]),
        (["--password", "hunter=2"], ["--password", "${secrets.PASSWORD}"]),
        (["--password", "hunter: 2"], ["--password", "${secrets.PASSWORD}"]),
    ],
)
def test_a_password_after_its_flag_is_taken_out(args: list[str], left: list[str]) -> None:
    draft = drafted_from("cursor", {"command": "x", "args": args})
    assert draft.data["server"]["args"] == left
    assert "unter" not in written(draft)
    assert len(draft.secrets) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["-p", "8080"],
        ["-p8080"],
        ["-p", "8080:80"],
        ["-p", "3.12"],
        ["-p", "/srv/data"],
        ["-p", "tsconfig.json"],
        ["-p", "@scope/pkg"],
        ["-k", "https://a.example/x"],
        ["-port", "8080"],
        ["-p", "--verbose"],
        ["-v", "hunter"],
    ],
)
def test_a_port_a_path_or_a_file_after_a_short_flag_stays(args: list[str]) -> None:
    draft = drafted_from("cursor", {"command": "x", "args": args})
    assert draft.data["server"]["args"] == args
    assert draft.secrets == ()


def test_a_password_that_is_half_a_placeholder_is_refused() -> None:
    note = refused_from("cursor", {"command": "x", "env": {"DB_PASS": "hunter${X}"}})
    assert note.code == "secret_in_place"
    assert "hunter" not in note.text


def test_random_text_is_judged_by_its_mixture() -> None:
    assert looks_random("k3y-" + "a1b2c3d4e5f6g7h8i9")
    assert not looks_random("a1" * 3)
    assert not looks_random("version-2024-11-05-of-the-protocol")
    assert not looks_random("aaaaaaaaaaaaaaaaaaaaaaaaa1")


@pytest.mark.req("AIP-import-7")
@pytest.mark.parametrize(
    ("client", "text"),
    [("cursor", "${LEVEL}"), ("cursor", "${env:LEVEL}"), ("gemini-cli", "$LEVEL"), ("gemini-cli", "${LEVEL}")],
)
def test_a_variable_of_the_environment_is_handed_on(client: str, text: str) -> None:
    draft = drafted_from(client, {"command": "x", "env": {"LEVEL": text, "K": "v"}})
    assert draft.data["sandbox"] == {"env": {"pass": ["LEVEL"]}}
    assert draft.data["server"]["env"] == {"K": "v"}
    assert draft.secrets == ()


@pytest.mark.req("AIP-import-7")
def test_a_variable_with_a_default_is_handed_on_with_it() -> None:
    draft = drafted_from("claude-code", {"command": "x", "env": {"LEVEL": "${LEVEL:-info}"}})
    assert draft.data["sandbox"] == {"env": {"pass": ["LEVEL"], "set": {"LEVEL": "info"}}}


@pytest.mark.req("AIP-import-7")
@pytest.mark.parametrize("text", ["${MY_TOKEN}", "${env:MY_TOKEN}", "${MY_TOKEN:-}"])
def test_a_variable_that_is_secret_is_a_slug_of_the_environment(text: str) -> None:
    draft = drafted_from("cursor", {"command": "x", "env": {"MY_TOKEN": text}})
    assert draft.data["server"]["env"] == {"MY_TOKEN": "${secrets.MY_TOKEN}"}
    assert [(each.slug, each.backend, each.value) for each in draft.secrets] == [
        ("it-mcp/my-token", "env://MY_TOKEN", None)
    ]


def test_opencode_writes_variables_in_its_own_way() -> None:
    draft = drafted_from("opencode", {"type": "remote", "url": "https://a.example", "headers": {"X-K": "{env:MY_KEY}"}})
    assert draft.data["server"]["headers"] == {"X-K": "${secrets.MY_KEY}"}
    assert [each.backend for each in draft.secrets] == ["env://MY_KEY"]


@pytest.mark.req("AIP-import-7")
def test_a_variable_inside_a_longer_text_or_an_argument_is_a_slug_too() -> None:
    raw = {"command": "x", "args": ["--as", "me-${WHO}"], "env": {"OTHER": "${LEVEL}"}}
    draft = drafted_from("cursor", raw)
    assert draft.data["server"]["args"] == ["--as", "me-${secrets.WHO}"]
    assert draft.data["server"]["env"] == {"OTHER": "${secrets.OTHER}"}
    assert {each.name: each.backend for each in draft.secrets} == {"WHO": "env://WHO", "OTHER": "env://LEVEL"}


@pytest.mark.req("AIP-import-7")
def test_folders_become_paths() -> None:
    raw = {
        "command": "${userHome}/bin/x",
        "args": ["${workspaceFolder}/data", "--in=${HOME}/x"],
        "cwd": "${workspaceFolder}",
    }
    server = drafted_from("vscode", raw).data["server"]
    assert server == {
        "kind": "binary",
        "path": f"{HOME}/bin/x",
        "args": [f"{WORKSPACE}/data", f"--in={HOME}/x"],
        "cwd": WORKSPACE,
    }


@pytest.mark.req("AIP-import-7")
def test_an_env_file_is_read_like_env() -> None:
    text = f"# settings\nexport LEVEL=info\nAPI_KEY='{MARKER}'\nQUOTED=\"a b\"\nAFTER=x # note\n\nnonsense\n"
    raw = {"command": "x", "envFile": ".env", "env": {"LEVEL": "debug"}}
    draft = drafted_from("vscode", raw, env_files={".env": text})
    assert draft.data["server"]["env"] == {
        "LEVEL": "debug",
        "API_KEY": "${secrets.API_KEY}",
        "QUOTED": "a b",
        "AFTER": "x",
    }
    assert written_files(draft) == {"it-mcp/api-key": MARKER}
    assert [note.code for note in drafted_from("vscode", raw).notes] == ["env_file_unread"]


@pytest.mark.req("AIP-import-7")
def test_codex_names_variables_for_headers() -> None:
    raw = '[mcp_servers.it]\nurl = "https://a.example/mcp"\nbearer_token_env_var = "MY_TOKEN"\n'
    raw += 'http_headers = { X-Plain = "1" }\nenv_http_headers = { X-Key = "MY_KEY" }\n'
    draft = draft_entry(read("codex", raw).entries[0], wrap_servers(), ImportChoices())
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"]["headers"] == {
        "X-Plain": "1",
        "Authorization": "Bearer ${secrets.MY_TOKEN}",
        "X-Key": "${secrets.MY_KEY}",
    }
    assert [each.backend for each in draft.secrets] == ["env://MY_TOKEN", "env://MY_KEY"]


def test_codex_and_goose_name_variables_without_values() -> None:
    codex = read("codex", '[mcp_servers.it]\ncommand = "x"\nenv_vars = ["LEVEL", { name = "API_KEY" }]\n').entries[0]
    draft = draft_entry(codex, wrap_servers(), ImportChoices())
    assert isinstance(draft, DriverDraft)
    assert draft.data["sandbox"] == {"env": {"pass": ["LEVEL"]}}
    assert [each.backend for each in draft.secrets] == ["env://API_KEY"]
    goose = read("goose", "extensions:\n  it:\n    type: stdio\n    cmd: x\n    env_keys: [API_KEY]\n").entries[0]
    draft = draft_entry(goose, wrap_servers(), ImportChoices())
    assert isinstance(draft, DriverDraft)
    assert [(each.slug, each.backend, each.value) for each in draft.secrets] == [("it-mcp/api-key", None, None)]


def test_continue_asks_for_secrets_in_double_braces() -> None:
    text = "mcpServers:\n  - name: it\n    command: x\n    env:\n      K: ${{ secrets.MY_KEY }}\n"
    draft = draft_entry(read("continue", text).entries[0], wrap_servers(), ImportChoices())
    assert isinstance(draft, DriverDraft)
    assert draft.data["server"]["env"] == {"K": "${secrets.MY_KEY}"}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ({"command": "${NOWHERE}/x"}, "variable_unset"),
        ({"url": "https://${HOST}/mcp"}, "variable_unset"),
        ({"url": "https://a.example/${MY_TOKEN}/mcp"}, "variable_unset"),
        ({"command": "x", "args": ["${command:pick}"]}, "placeholder_unknown"),
        ({"command": "x", "args": [f"--k={MARKER}-${{X}}"]}, "secret_in_place"),
        ({"url": "https://a.example:port/"}, "url_invalid"),
        ({"url": "ftp://a.example/"}, "url_invalid"),
    ],
)
def test_commands_and_urls_with_unset_variables_are_refused(raw: dict[str, Any], code: str) -> None:
    assert refused_from("cursor", raw).code == code


def test_variables_in_urls_are_filled_in_at_import() -> None:
    draft = drafted_from("cursor", {"url": "https://${HOST}/${WHERE:-mcp}"}, env={"HOST": "a.example"})
    assert draft.data["server"]["url"] == "https://a.example/mcp"
    assert [note.code for note in draft.notes] == ["variable_filled", "variable_filled"]
    assert (
        refused_from("cursor", {"url": "https://a.example/${MY_TOKEN}"}, env={"MY_TOKEN": "x"}).code
        == "secret_in_place"
    )


def test_no_host_and_no_folder_is_open_that_nobody_named() -> None:
    draft = drafted_from("cursor", {"command": "x"})
    assert draft.data["network"] == {"egress": []}
    assert "sandbox" not in draft.data
    trusting = drafted_from("cursor", {"command": "x"}, wishes=ImportChoices(trust_network=True))
    assert trusting.written["network"] == {"egress": ["*"]}
    assert draft.written == draft.data


@pytest.mark.req("AIP-import-11")
def test_paths_are_proposed_and_never_widened() -> None:
    args = ["/srv/data", "--db=/srv/x.db", HOME, "/", "/srv", "/etc", f"{HOME}/notes", "/srv/ada/../b", "relative/x"]
    draft = drafted_from("cursor", {"command": "x", "args": args, "env": {"CERTS": "/srv/certs", "PATHS": "/a:/b"}})
    assert draft.data["sandbox"] == {
        "fs": {"read": ["/srv/x.db", "/srv/certs"], "write": ["/srv/data", f"{HOME}/notes"]}
    }
    assert draft.withheld == (HOME, "/", "/srv", "/etc", "/srv/ada/../b")
    assert [note.code for note in draft.notes] == ["path_withheld"]


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("My Files", "my-files-mcp"),
        ("github-mcp", "github-mcp"),
        ("GitHub", "github-mcp"),
        ("@scope/pkg", "scope-pkg-mcp"),
        ("1password", "server-1password-mcp"),
        ("mcp", "server-mcp"),
        ("日本", "server-mcp"),
        ("a" * 200, "a" * 36 + "-mcp"),
        ("--x--", "x-mcp"),
    ],
)
def test_a_name_becomes_an_id(name: str, identifier: str) -> None:
    assert driver_id(name) == identifier
