"""`auth` of a server and ${secrets.NAME}: what may be written, what must not, and that nothing of it is shown."""

import json
from typing import Any

import jsonschema
import pytest
from tests.config.config_project import Project

from interlock.config.effective import MASK, effective
from interlock.config.plan import Dial, OAuthPlan, Spawn
from interlock.config.schema import json_schema
from interlock.config.toml_text import toml_text

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
URL = "https://mcp.example.com/mcp"
WHOLE: dict[str, Any] = {
    "grant": "client_credentials",
    "issuer": "https://login.example.com",
    "client_id": "node",
    "client_secret": "${secrets.CRM}",
    "scopes": ["a:b", "c"],
    "per": "server",
}


def toml(auth: Any, **more: Any) -> str:
    table = {"url": URL, **more} | ({} if auth is None else {"auth": auth})
    return "[servers.crm]\n" + "".join(f"{name} = {toml_text(value)}\n" for name, value in table.items())


def reach(project: Project, text: str, env: dict[str, str] | None = None) -> Any:
    (server,) = project.load(text, env or {}).plan.servers
    return server.reach


def test_without_auth_the_server_decides(project: Project) -> None:
    assert reach(project, toml(None)) == Dial(url=URL)
    assert reach(project, toml({})).auth == OAuthPlan()


def test_every_key_reaches_the_plan(project: Project) -> None:
    VALIDATOR.validate({"servers": {"crm": {"url": URL, "auth": WHOLE}}})
    assert reach(project, toml(WHOLE)).auth == OAuthPlan(**(WHOLE | {"scopes": ("a:b", "c")}))
    key = {name: value for name, value in WHOLE.items() if name != "client_secret"} | {"private_key": "key.pem"}
    assert reach(project, toml(key)).auth.private_key.name == "key.pem"


def test_a_secret_is_masked_wherever_the_plan_is_shown(project: Project) -> None:
    for secret in ("${env:S}", "hush"):
        shown = effective(project.load(toml(WHOLE | {"client_secret": secret}), {"S": "hush"}).plan)
        assert "hush" not in json.dumps(shown)
        assert shown["servers"]["crm"]["auth"]["client_secret"] == MASK


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ("oauth", "must be a table"),
        ({"grant": "password"}, "must be one of"),
        ({"grants": "client_credentials"}, "did you mean 'grant'?"),
        ({"issuer": "http://login.example.com"}, "https"),
        ({"scopes": ["a b"]}, "an OAuth scope"),
        ({"scopes": "a"}, "must be a list"),
        ({"per": "team"}, "must be one of"),
        ({"client_secret": "s"}, "needs 'client_id'"),
        ({"private_key": "k"}, "needs 'client_id'"),
        ({"client_id": "n", "client_secret": "s", "private_key": "k"}, "keep one of them"),
        ({"grant": "client_credentials"}, "needs 'client_id' and a proof"),
        ({"grant": "client_credentials", "client_id": "n"}, "needs 'client_id' and a proof"),
        (WHOLE | {"per": "user"}, "belongs to no single user"),
        (WHOLE | {"client_secret": "${secrets.}"}, "write ${secrets.NAME}"),
        (WHOLE | {"client_id": "${secrets.X1}"}, "no place for"),
    ],
)
def test_an_auth_setting_that_does_not_fit_is_named(project: Project, auth: Any, words: str) -> None:
    assert words in str(project.problem(toml(auth)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"headers": {"authorization": "Bearer x"}}, "an Authorization header"),
        ({"url": "http://mcp.example.com/mcp"}, "needs an https:// url"),
    ],
)
def test_auth_goes_neither_with_a_credential_nor_with_plain_http(project: Project, more: Any, words: str) -> None:
    assert words in str(project.problem(toml({"scopes": ["a"]}, **more)))


def test_a_server_that_knows_people_is_shared_by_nobody(project: Project) -> None:
    for share in ("node", "session"):
        assert f"cannot be '{share}' beside auth" in str(project.problem(toml({"per": "user"}, share=share)))
    for share in ("auto", "principal"):
        assert project.load(toml({"per": "user"}, share=share)).plan.servers[0].share == share


def test_auth_goes_with_url_alone(project: Project) -> None:
    text = '[servers.crm]\ncommand = "x"\nauth = { scopes = ["a"] }\n'
    assert "does not go with 'command'" in str(project.problem(text))


def test_a_secret_that_may_go_anywhere_is_warned_of(project: Project) -> None:
    unpinned = {name: value for name, value in WHOLE.items() if name != "issuer"}
    (warning,) = project.load(toml(unpinned)).warnings
    assert "names first" in warning.message and "issuer" in str(warning.hint)
    assert project.load(toml(WHOLE)).warnings == ()


def test_secrets_of_the_store_stay_references_in_headers_and_env(project: Project) -> None:
    headers = {"X-Key": "a ${secrets.CRM_KEY} ${env:S}"}
    assert reach(project, toml(None, headers=headers), {"S": "b"}).headers == {"X-Key": "a ${secrets.CRM_KEY} b"}
    spawn = reach(project, '[servers.crm]\ncommand = "x"\nenv = { K = "${secrets.CRM-key}" }\n')
    assert isinstance(spawn, Spawn) and spawn.env == {"K": "${secrets.CRM-key}"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('args = ["${secrets.KEY}"]', "no place for"),
        ('env = { K = "${secrets.KEY" }', "closing brace"),
        ('env = { K = "${secrets.K}" }', "write ${secrets.NAME}"),
        ('env = { K = "${secrets.a b}" }', "write ${secrets.NAME}"),
        ('env = { K = "${secrets.../x}" }', "write ${secrets.NAME}"),
        ('env = { K = "${secrets.9LIVES}" }', "write ${secrets.NAME}"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(project: Project, line: str, words: str) -> None:
    assert words in str(project.problem(f'[servers.crm]\ncommand = "x"\n{line}\n'))


def test_no_secret_decides_where_the_node_connects(project: Project) -> None:
    assert "no place for" in str(project.problem('[servers.crm]\nurl = "https://${secrets.HOST}/mcp"\n'))
