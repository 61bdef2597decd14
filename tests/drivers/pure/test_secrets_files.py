"""Does a SECRETS.md give an inventory and never a value, and does a NAME find its secret?"""

from typing import Any

import msgspec
import pytest
from tests.drivers.driver_texts import MISSING, as_secrets, secret, text, told

from interlock.drivers.protocol.files.inventory import default_slug, merge_inventories, read_secrets, secret_for
from interlock.drivers.protocol.files.plaintext import is_plaintext, plaintext_arguments, secret_names
from interlock.drivers.protocol.model import SecretGrant, SecretInventory


def loaded(*entries: Any) -> SecretInventory:
    reading = as_secrets(*entries)
    assert reading.value is not None, reading.problems
    return reading.value


def errors(*entries: Any) -> list[tuple[str, str]]:
    return told(as_secrets(*entries).errors)


@pytest.mark.req("AIP-19.file-1")
@pytest.mark.parametrize(
    ("entry", "pointer"),
    [
        (secret(slug="Stripe-key"), "slug"),
        (secret(slug="-stripe"), "slug"),
        (secret(slug="a/b/c"), "slug"),
        (secret(slug="ab/cd/ef"), "slug"),
        (secret(slug="a"), "slug"),
        (secret(slug="a" * 81), "slug"),
        (secret(slug="stripe_key"), "slug"),
        (secret(slug=MISSING), "slug"),
        (secret(name=MISSING), "name"),
        (secret(description=MISSING), "description"),
        (secret(more=1), "more"),
        (secret(kind="password"), "kind"),
        (secret(backend="vault"), "backend"),
        (secret(access={"read": []}), "access/read"),
        (secret(access={"bind": [{"role": "a", "tool": "b"}]}), "access/bind/0"),
        (secret(audit={"retention": "long"}), "audit/retention"),
        (secret(tags=["A"]), "tags/0"),
        (secret(exposures=[{"kind": "env", "name": "lower", "field": "x"}]), "exposures/0/name"),
        (secret(metadata={"bindings": {"env": ["lower"]}}), "metadata/bindings/env/0"),
    ],
)
def test_an_entry_is_a_closed_object(entry: dict[str, Any], pointer: str) -> None:
    assert errors(entry) == [("schema_invalid", f"/secrets/0/{pointer}")]


@pytest.mark.req("AIP-19.file-1")
def test_an_inventory_has_entries_and_nothing_else() -> None:
    assert errors() == [("schema_invalid", "/secrets")]
    for wrong in ({"one": secret()}, "x", None):
        assert told(read_secrets(text({"secrets": wrong}), "S").errors) == [("schema_invalid", "/secrets")]
    assert told(read_secrets(text({"secrets": [secret()], "more": 1}), "S").errors) == [("schema_invalid", "/more")]
    assert [each.kind for each in loaded(secret()).entries] == ["opaque"]
    for slug in ("acme/key", "ab", "a" * 80):
        assert loaded(secret(slug=slug)).entries[0].slug == slug


@pytest.mark.req("AIP-19.file-1")
def test_an_exposure_and_a_grant_of_an_unknown_kind_are_ignored() -> None:
    entry = secret(exposures=[{"kind": "telepathy", "x": 1}], access={"bind": [{"moon": "full"}, {"tool": "a"}]})
    read = loaded(entry).entries[0]
    assert read.access is not None
    assert read.access.bind == (SecretGrant(kind="moon", value="full"), SecretGrant(kind="tool", value="a"))


@pytest.mark.req("AIP-19.file-2")
@pytest.mark.parametrize("key", ["value", "plaintext", "ciphertext", "secret", "data", "key", "token"])
def test_a_value_is_refused_and_not_repeated(key: str) -> None:
    reading = as_secrets(secret(), secret(slug="other", **{key: "hidden-value"}))
    assert told(reading.problems) == [("secret_in_manifest", f"/secrets/1/{key}")]
    assert b"hidden" not in msgspec.json.encode(reading.problems)


@pytest.mark.req("AIP-19.file-2")
@pytest.mark.parametrize(
    "token",
    [
        "ghp_hiddenhidden1234567890",
        "sk-hiddenhidden1234567890",
        "AKIAHIDDENHIDDEN1234",
        "-----BEGIN RSA PRIVATE KEY-----",
        "postgres://me:hidden@db",
    ],
)
def test_a_recognisable_token_in_a_description_is_refused_and_not_repeated(token: str) -> None:
    reading = as_secrets(secret(description=f"The key is {token}, keep it."))
    assert told(reading.problems) == [("secret_in_manifest", "/secrets/0")]
    assert token.encode() not in msgspec.json.encode(reading.problems)


def test_inventories_are_merged_and_slugs_unique() -> None:
    one, same = as_secrets(secret()).value, read_secrets(text({"secrets": [secret()]}), "other/SECRETS.md").value
    different = read_secrets(text({"secrets": [secret(name="Another")]}), "third/SECRETS.md").value
    assert one is not None
    assert same is not None
    assert different is not None
    entries, problems = merge_inventories((one, same))
    assert (len(entries), problems) == (1, ())
    entries, problems = merge_inventories((one, different))
    assert entries == ()
    assert told(problems) == [("duplicate_slug", "/secrets/0/slug")]
    assert "SECRETS.md" in problems[0].message
    assert "third/SECRETS.md" in problems[0].message
    assert errors(secret(), secret(name="Another")) == [("duplicate_slug", "/secrets/1/slug")]


@pytest.mark.req("AIP-19.bind-1")
def test_a_name_finds_its_slug() -> None:
    assert default_slug("STRIPE_API_KEY") == "stripe-api-key"
    assert secret_names("${secrets.STRIPE_API_KEY}") == ("STRIPE_API_KEY",)
    found = secret_for("STRIPE_API_KEY", "pay-mcp", None, loaded(secret()).entries)
    assert found is not None
    assert found.slug == "stripe-api-key"
    assert secret_for("OTHER", "pay-mcp", None, loaded(secret()).entries) is None


@pytest.mark.req("AIP-19.bind-1")
@pytest.mark.parametrize("names", ["PAY_KEY", ["OTHER", "PAY_KEY"]])
def test_a_binding_goes_before_the_slug(names: Any) -> None:
    own = loaded(secret(slug="pay-key"), secret(slug="bound", metadata={"bindings": {"env": names}}))
    found = secret_for("PAY_KEY", "pay-mcp", own, ())
    assert found is not None
    assert found.slug == "bound"


@pytest.mark.req("AIP-19.bind-1")
def test_two_drivers_have_their_own_secret_under_one_name() -> None:
    workspace = loaded(secret(slug="a-mcp/api-key"), secret(slug="b-mcp/api-key"), secret(slug="api-key")).entries
    found = [secret_for("API_KEY", driver_id, None, workspace) for driver_id in ("a-mcp", "b-mcp", "c-mcp")]
    assert [each.slug if each else None for each in found] == ["a-mcp/api-key", "b-mcp/api-key", "api-key"]


@pytest.mark.req("AIP-19.bind-1")
def test_the_inventory_of_the_driver_goes_before_that_of_the_workspace() -> None:
    own = loaded(secret(slug="acme/api-key"))
    workspace = loaded(secret(slug="api-key"), secret(slug="bound", metadata={"bindings": {"env": "API_KEY"}})).entries
    found = secret_for("API_KEY", "a-mcp", own, workspace)
    assert found is not None
    assert found.slug == "acme/api-key"


def test_arguments_are_judged_by_what_precedes_them() -> None:
    args = (
        "--port",
        "8080",
        "--token",
        "blue",
        "--token=${secrets.T}",
        "--path",
        "/w",
        "-H",
        "X-Api-Key: green",
        "plain",
    )
    assert plaintext_arguments(args) == ((3, "token"), (8, "X-Api-Key"))


@pytest.mark.parametrize("name", ["A" * 100_000, "a_" * 50_000, "", "😀" * 1000])
def test_long_names_and_texts_are_judged_in_bounded_time(name: str) -> None:
    is_plaintext(name, "x" * 200_000)
    is_plaintext("", "a://" + "b" * 200_000)
    is_plaintext("", "a:" * 100_000)
    plaintext_arguments(("a=" * 50_000, "-" * 100_000))


@pytest.mark.req("AIP-19.file-1")
def test_settings_of_an_entry_without_effect_are_reported() -> None:
    audit = {"retention": "P7Y", "pii": True, "classification": ["internal"]}
    entry = secret(audit=audit, exposures=[{"kind": "unheard-of"}])
    reading = as_secrets(secret(slug="other"), entry)
    assert reading.value is not None
    assert {each.severity for each in reading.problems} == {"note"}
    assert told(reading.problems) == [
        ("not_enforced", "/secrets/1/exposures"),
        *(("not_enforced", f"/secrets/1/audit/{key}") for key in audit),
    ]
    assert as_secrets(secret(exposures=[])).problems == ()
