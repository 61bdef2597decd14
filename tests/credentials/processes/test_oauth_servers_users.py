"""Servers that know people: each user calls with their own token, and is shown where to agree to it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.authority import Authority, authority
from tests.support.node_process import Answer, RunningNode, Wire, running_node
from tests.support.oauth_consent import (
    call,
    find_leaks,
    give_consent,
    guarded_server,
    query,
    refresh_count,
    visit,
    whoami,
)

ERAS = ["legacy", "modern"]
NEVER = '[auth]\nanonymous = "never"\n'
URL_MODE = {"elicitation": {"url": {}}}


@pytest.fixture(scope="module")
def started() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture
def corp(started: Authority) -> Authority:
    started.do("reset")
    return started


class Office:
    """A node in front of one server that knows people, an operator who agreed for the node, and two users."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        give_consent(node, "crm", "the operator")
        self.ada, self.bob = self.hire("ada"), self.hire("bob")

    def hire(self, name: str) -> str:
        body = {"name": name, "for": "client"}
        return str(self.node.admin("/admin/tokens", "POST", body)["token"])

    def call(self, token: str, tool: str = "crm__whoami", **options: Any) -> Answer:
        return call(self.node, tool, token, **options)

    def page(self, token: str) -> str:
        """Where a plain client is sent."""
        error = self.call(token).message["error"]
        assert (error["code"], error["data"]["reason"]) == (32002, "auth_required"), error
        return str(error["data"]["url"])

    def agree(self, token: str, name: str) -> None:
        assert visit(self.page(token), name).status == 200
        assert whoami(self.node, "crm", token) == name


@pytest.fixture(params=ERAS)
def office(corp: Authority, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Office]:
    servers = {"good": {"command": raw("echo")}}
    with guarded_server(corp, "--scope", "basic", "--call-scope", "extra", era=request.param) as url:
        table = {"url": url, "auth": {"per": "user"}}
        with running_node(tmp_path, {"crm": table, **servers}, NEVER) as node:
            yield Office(node)
            log = (tmp_path / "stderr.txt").read_text()
            assert "Traceback" not in log and "internal error" not in log, log
        assert find_leaks(tmp_path) == []


def test_each_user_calls_as_themselves_and_as_nobody_else(office: Office) -> None:
    with Wire(office.node, token=office.ada) as wire:
        assert "crm__whoami" in [tool["name"] for tool in wire.modern("tools/list").message["result"]["tools"]]
    first = office.page(office.ada)
    assert office.page(office.ada) == first  # the same page, however often they try
    assert query(first)["scope"] == "basic"
    office.agree(office.ada, "ada")
    assert query(office.page(office.bob))["state"] != query(first)["state"]
    office.agree(office.bob, "bob")
    for _ in range(3):  # a session belongs to the user who began it, so a shared one would be refused
        assert whoami(office.node, "crm", office.ada) == "ada"
        assert whoami(office.node, "crm", office.bob) == "bob"
    link = office.node.link("crm")
    assert link["users"] == 2 and link["calls"] >= 8
    names = [one["name"] for one in office.node.admin("/admin/secrets")["secrets"] if one["kind"] == "token"]
    assert sorted(names) == ["crm", "crm client:ada", "crm client:bob"]
    assert "error" not in office.call(office.ada, "good__exact").message
    assert "2 users" in office.node.cli("status", "crm").stdout


def test_a_client_that_can_show_pages_is_asked_to_and_goes_on_afterwards(office: Office) -> None:
    with Wire(office.node, token=office.ada) as wire:
        params = {"name": "crm__whoami", "arguments": {}}
        asked = wire.modern("tools/call", params, capabilities=URL_MODE).message["result"]
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert question["method"] == "elicitation/create" and question["params"]["mode"] == "url"
        retry = {**params, "requestState": asked["requestState"], "inputResponses": {key: {"action": "accept"}}}
        again = wire.modern("tools/call", retry, capabilities=URL_MODE).message["result"]
        assert again["resultType"] == "input_required"  # they said so, but did not agree
        assert visit(question["params"]["url"], "ada").status == 200
        retry["requestState"] = again["requestState"]
        done = wire.modern("tools/call", retry, capabilities=URL_MODE).message["result"]
        assert done["content"][0]["text"] == "ada"
        with Wire(office.node, token=office.bob) as other:
            error = other.modern("tools/call", retry, capabilities=URL_MODE).message["error"]
            assert error["data"]["reason"] == "state_foreign"


def test_a_legacy_client_that_can_show_pages_is_asked_and_informed_when_it_is_done(office: Office) -> None:
    with Wire(office.node, token=office.ada) as wire, Wire(office.node, token=office.ada) as stream:
        wire.initialize(URL_MODE)
        stream.session = wire.session
        headers = {**stream.base, **wire.legacy_headers(), "accept": "text/event-stream"}
        stream.connection.request("GET", stream.path, headers=headers)
        events = stream.connection.getresponse()
        assert events.status == 200
        error = wire.legacy("tools/call", {"name": "crm__whoami", "arguments": {}}).message["error"]
        (page,) = error["data"]["elicitations"]
        assert (error["code"], page["mode"]) == (-32042, "url")
        assert page["elicitationId"] not in page["url"]
        assert visit(page["url"], "ada").status == 200
        told = json.loads(next(line for line in events if line.startswith(b"data: {"))[6:])
        while told["method"] != "notifications/elicitation/complete":
            told = json.loads(next(line for line in events if line.startswith(b"data: {"))[6:])
        assert told["params"] == {"elicitationId": page["elicitationId"]}
        done = wire.legacy("tools/call", {"name": "crm__whoami", "arguments": {}}).message
        assert done["result"]["content"][0]["text"] == "ada"


def test_a_user_whose_token_is_gone_is_asked_again_and_nobody_else_notices(office: Office, corp: Authority) -> None:
    office.agree(office.ada, "ada")
    office.agree(office.bob, "bob")
    removed = office.node.cli("secrets", "remove", "crm client:ada", "--kind", "token")
    assert removed.returncode == 0
    assert visit(office.page(office.ada), "ada the second").status == 200
    assert whoami(office.node, "crm", office.ada) == "ada the second"
    corp.do("forget", of="tokens")
    assert whoami(office.node, "crm", office.bob) == "bob"
    assert refresh_count(corp) >= 1
    corp.do("forget", of="tokens")
    corp.do("forget", of="refreshes")
    assert office.page(office.bob)
    office.agree(office.bob, "bob")


def test_more_scope_is_asked_of_the_user_who_needs_it(office: Office) -> None:
    office.agree(office.ada, "ada")
    error = office.call(office.ada, "crm__exact").message["error"]
    assert error["data"]["reason"] == "auth_required"
    assert query(error["data"]["url"])["scope"] == "basic extra"
    assert whoami(office.node, "crm", office.ada) == "ada"
    assert visit(error["data"]["url"], "ada").status == 200
    assert "error" not in office.call(office.ada, "crm__exact").message


def test_a_users_token_is_still_good_after_a_restart(corp: Authority, tmp_path: Path) -> None:
    with guarded_server(corp) as url:
        servers = {"crm": {"url": url, "auth": {"per": "user"}}}
        with running_node(tmp_path, servers, NEVER) as node:
            office = Office(node)
            office.agree(office.ada, "ada")
        with running_node(tmp_path, servers, NEVER) as node:
            node.wait_link("crm", {"state": "ready"})
            assert whoami(node, "crm", office.ada) == "ada"
            records = node.admin("/admin/audit?limit=1000")["records"]
            agreed = [one["who"] for one in records if one["method"] == "oauth/consent"]
            assert agreed == ["operator", "client:ada"]


def test_a_server_that_disconnects_is_not_mistaken_for_a_server_that_refuses_a_user(
    corp: Authority, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(guarded_server(corp))
        with running_node(tmp_path, {"crm": {"url": url, "auth": {"per": "user"}}}, NEVER) as node:
            office = Office(node)
            office.agree(office.ada, "ada")
            stack.close()
            error = office.call(office.ada).message["error"]
            assert error["data"]["reason"] == "subserver_unreachable"
