"""[[auth.issuers]]: what may be written there, what must not, and that its secret is shown to nobody."""

import json
from typing import Any

import jsonschema
import pytest
from tests.config.config_project import Project

from interlock.config.effective import MASK, effective
from interlock.config.plan import IssuerPlan
from interlock.config.schema import json_schema
from interlock.config.toml_text import toml_text

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GOOD: dict[str, Any] = {"name": "corp", "url": "https://login.example.com/"}
ASKED = {"introspection_url": "https://login.example.com/i", "client_id": "node", "client_secret": "${env:SECRET}"}


def toml(*issuers: dict[str, Any], before: str = "") -> str:
    tables = ("".join(f"{name} = {toml_text(value)}\n" for name, value in one.items()) for one in issuers)
    return before + "".join(f"[[auth.issuers]]\n{table}" for table in tables)


def test_two_keys_are_enough_and_the_url_is_kept_to_the_letter(project: Project) -> None:
    (issuer,) = project.load(toml(GOOD)).plan.auth.issuers
    assert issuer == IssuerPlan(name="corp", url="https://login.example.com/")


def test_every_key_reaches_the_plan(project: Project) -> None:
    written = GOOD | ASKED | {"audience": "api://x", "jwks_url": "http://[::1]:9/k?p=1", "scopes": {"a:b": "admin"}}
    VALIDATOR.validate({"auth": {"issuers": [written]}})
    (issuer,) = project.load(toml(written), {"SECRET": "hush"}).plan.auth.issuers
    assert issuer == IssuerPlan(**(written | {"client_secret": "hush"}))


def test_the_secret_is_masked_wherever_the_plan_is_shown(project: Project) -> None:
    for secret in ("${env:SECRET}", "hush"):
        written = GOOD | ASKED | {"client_secret": secret, "jwks_url": "https://h/k?key=hush"}
        shown = effective(project.load(toml(written), {"SECRET": "hush"}).plan)
        assert "hush" not in json.dumps(shown)
        assert shown["auth"]["issuers"][0]["client_secret"] == MASK
        assert shown["auth"]["issuers"][0]["url"] == GOOD["url"]
    assert effective(project.load(toml(GOOD)).plan)["auth"]["issuers"][0]["client_secret"] is None


def test_a_secret_that_is_not_set_is_named(project: Project) -> None:
    problem = project.problem(toml(GOOD | ASKED))
    assert "environment variable SECRET" in problem.message
    assert problem.key == "auth.issuers[0].client_secret"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": None}, "needs 'name'"),
        ({"url": None}, "needs 'url'"),
        ({"name": ""}, "empty"),
        ({"name": "a/b"}, "1 to 63"),
        ({"name": "a@b"}, "1 to 63"),
        ({"name": 7}, "must be"),
        ({"url": "http://login.example.com"}, "https"),
        ({"url": "login.example.com"}, "https"),
        ({"url": "https://user:pw@login.example.com"}, "https"),
        ({"url": "https://login.example.com/#x"}, "https"),
        ({"url": "https://login example.com"}, "https"),
        ({"url": "https://löwe.example"}, "https"),
        ({"jwks_url": "http://10.0.0.1/jwks"}, "https"),
        ({"jwks_url": "file:///etc/hosts"}, "https"),
        ({"jwks_uri": "https://h/jwks"}, "did you mean 'jwks_url'?"),
        ({"introspection_url": "https://h/i"}, "needs 'client_id'"),
        ({"client_id": "x"}, "needs 'introspection_url'"),
        ({"client_secret": "x"}, "needs 'introspection_url'"),
        ({"scopes": {"a": "write all"}}, "one of read, write, admin"),
        ({"scopes": {"a b": "write"}}, "is not an OAuth scope"),
        ({"scopes": ["read"]}, "table"),
        ({"audience": ""}, "empty"),
        ({"audience": ["a"]}, "must be"),
    ],
)
def test_a_mistake_is_named_at_its_line(project: Project, changes: dict[str, Any], words: str) -> None:
    written = {name: value for name, value in (GOOD | changes).items() if value is not None}
    problems = project.problems(toml(written))
    assert any(words in str(problem) for problem in problems), problems
    assert all(problem.line is not None for problem in problems)
    assert "pw" not in "".join(map(str, problems))


@pytest.mark.parametrize("value", ["'https://login.example.com'", "['https://login.example.com']", "{}", "7"])
def test_an_issuer_that_is_no_table_is_refused(project: Project, value: str) -> None:
    assert project.problem(f"[auth]\nissuers = {value}\n").line == 2


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"name": "corp", "url": "https://other.example"}, "same 'name'"),
        ({"name": "other", "url": GOOD["url"]}, "same 'url'"),
        ({"name": "other", "url": "https://other.example"} | ASKED, "only one entry"),
    ],
)
def test_two_issuers_can_be_distinguished(project: Project, other: dict[str, Any], words: str) -> None:
    assert words in project.problem(toml(GOOD | ASKED, other), {"SECRET": "x"}).message


@pytest.mark.parametrize("listen", ["0.0.0.0:7411", "192.168.1.5:7411"])
def test_a_node_that_others_reach_must_say_which_url_tokens_are_for(project: Project, listen: str) -> None:
    node = f"[node]\nlisten = '{listen}'\n"
    assert "node.public_url" in str(project.problem(toml(GOOD, before=node)).hint)
    public = node + "public_url = 'https://mcp.example.com'\n"
    assert project.load(toml(GOOD, before=public)).plan.auth.issuers
    assert project.load(node).plan.auth.issuers == ()
