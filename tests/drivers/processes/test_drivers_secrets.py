"""The secrets of drivers, from the person who sets them to the process that gets them, and nowhere else."""

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_node import Workspace, until, wait_states
from tests.drivers.driver_texts import contract, text
from tests.drivers.leaking_driver import ID, MARKER, confide, greeted, rows, set_secret
from tests.support.authority import authority
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.oauth_consent import ask_for_page, guarded_server, query, visit

TOKEN = {"TOKEN": "${secrets.TOKEN}"}
ENTRY = {"slug": "confiding-mcp/token"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.mark.req("AIP-server-13", "AIP-30.auth-2")
async def test_a_driver_waits_for_its_secret_says_so_and_has_it_once_it_is_set(workspace: Workspace) -> None:
    login = {"login": {"url": "https://login.example.com/start"}}
    confide(workspace, entries=[ENTRY], env={"TOKEN": "of-${secrets.TOKEN}"}, auth=login)
    with workspace.node() as node:
        wait_states(node, "unauthed", ID)
        async with await greeted(node) as peer:
            answer = (await peer.call("demo__env", {"name": "TOKEN"})).result
            assert answer["isError"] is True
            assert answer["_meta"]["dev.interlock/error"]["code"] == "auth_required"
            said = answer["content"][0]["text"]
            assert said.startswith("auth_required: ")
            assert "interlock secrets set confiding-mcp/token" in said
            assert "https://login.example.com/start" in said
            assert set_secret(node, "confiding-mcp/token", MARKER)["restarted"] == ["confiding"]
            wait_states(node, "ready", ID)
            answer = (await peer.call("demo__env", {"name": "TOKEN"})).result
            assert answer["structuredContent"]["value"] == "of-[secret:confiding-mcp/token]"
        shown = json.dumps(node.admin(f"/admin/drivers/{ID}"))
        assert MARKER not in shown
        assert "of-${secrets.TOKEN}" in shown
        assert MARKER not in (workspace.folder / "stderr.txt").read_text()


@pytest.mark.req("AIP-30.auth-2")
async def test_another_value_restarts_the_server_after_its_open_calls(workspace: Workspace) -> None:
    confide(workspace, entries=[ENTRY], env=TOKEN, metadata={"interlock": {"redact_results": False}})
    with workspace.node() as node:
        set_secret(node, "confiding-mcp/token", "the-first-value")
        wait_states(node, "ready", ID)
        async with await greeted(node) as peer:
            first = (await peer.call("demo__env", {"name": "TOKEN"})).result["structuredContent"]
            assert first["value"] == "the-first-value"  # results are left alone
            gate = workspace.folder / "gate"
            open_call = peer.begin_call("demo__wait", {"until": str(gate)})
            await until(gate.with_suffix(".waits").exists)
            set_secret(node, "confiding-mcp/token", "the-second-value")
            later = peer.begin_call("demo__env", {"name": "TOKEN"})
            gate.touch()
            assert (await open_call.reply()).result["structuredContent"]["pid"] == first["pid"]
            second = (await later.reply()).result["structuredContent"]
            assert second["value"] == "the-second-value"
            assert second["pid"] != first["pid"]


@pytest.mark.req("AIP-19.audit-1")
async def test_each_reveal_is_a_row_without_the_value(workspace: Workspace) -> None:
    slugs = ["confiding-mcp/token", "confiding-mcp/other"]
    entries = [ENTRY, {"slug": "confiding-mcp/other", "backend": "env://CONFIDED"}]
    confide(workspace, entries=entries, env={**TOKEN, "OTHER": "${secrets.OTHER}", "AGAIN": "${secrets.TOKEN}"})
    os.environ["CONFIDED"] = MARKER
    try:
        with workspace.node() as node:
            set_secret(node, "confiding-mcp/token", MARKER)
            wait_states(node, "ready", ID)
            wait_for(lambda: [row["slug"] for row in rows(node, "secret.reveal")[-2:]] == slugs)
            found = rows(node, "secret.reveal")
    finally:
        del os.environ["CONFIDED"]
    run = found[-1]["context"]["run"]
    of_it = [row for row in found if row["context"]["run"] == run]
    assert [row["slug"] for row in of_it] == slugs
    for row in of_it:
        assert (row["actor"], row["granted_by"]) == (f"driver:{ID}@1", "auth.ref")
        assert f"{ID}@1" in row["purpose"]
        assert run in row["purpose"]
        assert row["timestamp"] == row["at"]
        assert row["context"]["workspace_id"] == str(workspace.path)
    assert MARKER not in json.dumps(found)


@pytest.mark.req("AIP-19.access-1")
async def test_access_is_judged_before_anything_is_fetched(workspace: Workspace) -> None:
    fetched = workspace.folder / "fetched"
    os.mkfifo(fetched)  # whoever opens it to read waits for a writer
    entry = {**ENTRY, "backend": f"file://{fetched}", "access": {"bind": [{"tool": "other"}, {"planet": "mars"}]}}
    folder = confide(workspace, entries=[entry], env=TOKEN)
    with workspace.node() as node:
        wait_states(node, "unauthed", ID)
        (shown,) = (one for one in node.admin("/admin/drivers")["drivers"] if one["id"] == ID)
        assert "access_denied" in shown["reason"]
        async with await greeted(node) as peer:
            said = (await peer.call("demo__env", {"name": "TOKEN"})).result
            assert said["_meta"]["dev.interlock/error"]["code"] == "auth_required"
            assert "confiding-mcp/token" in said["content"][0]["text"]
        (row,) = wait_for(lambda: rows(node, "secret.reveal.denied")[:1])
        assert (row["slug"], row["granted_by"], row["outcome"]) == ("confiding-mcp/token", None, "access_denied")
        assert rows(node, "secret.reveal") == []
        entry = {"slug": "confiding-mcp/token", "name": "T", "description": "T"}
        entry["access"] = {"bind": [{"tool": "other"}, {"tool": ID}]}
        (folder / "SECRETS.md").write_bytes(text({"secrets": [entry]}))
        set_secret(node, "confiding-mcp/token", MARKER)
        wait_states(node, "ready", ID)
        wait_for(lambda: rows(node, "secret.reveal"))
        assert rows(node, "secret.reveal")[-1]["granted_by"] == f"tool:{ID}"


def waiting(node: RunningNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.cli("approvals", "list", "--json").stdout)["approvals"]
    return found


@pytest.mark.req("AIP-security-13", "AIP-19.access-1")
async def test_a_secret_of_a_trusted_driver_is_not_redirected_without_asking(workspace: Workspace) -> None:
    """In a real sandbox: a line added to an inventory of the workspace takes the driver away until it is trusted
    again, and even then no file of the operator is read."""
    folder = confide(
        workspace, entries=[{"slug": "unused"}], env=TOKEN, metadata={"interlock": {"redact_results": False}}
    )
    workspace.ids.clear()  # with its sandbox
    config = workspace.folder / "config"
    key = config / "interlock" / "keys" / "ada.key"
    key.parent.mkdir(parents=True)
    key.write_text("the operator's private key")
    inventory = workspace.path / ".secrets" / "SECRETS.md"
    inventory.parent.mkdir()
    entry = {"slug": "token", "name": "T", "description": "T", "access": {"bind": [{"tool": ID}]}}
    inventory.write_bytes(text({"secrets": [entry]}))
    with running_node(workspace.folder, {}, env={"XDG_CONFIG_HOME": str(config)}) as node:
        set_secret(node, "token", "of the store")

        def trust() -> None:
            shown = node.admin(f"/admin/drivers/{ID}")
            node.admin(f"/admin/drivers/{ID}/trust", "POST", {"digest": shown["digest"]})

        trust()
        wait_states(node, "ready", ID)
        async with await greeted(node) as peer:
            answer = (await peer.call("demo__env", {"name": "TOKEN"})).result
            assert answer["structuredContent"]["value"] == "of the store"
        accepted = node.admin(f"/admin/drivers/{ID}")["digest"]
        inventory.write_bytes(text({"secrets": [{**entry, "backend": f"file://{key}"}]}))
        wait_states(node, "untrusted", ID)
        shown = node.admin(f"/admin/drivers/{ID}")
        assert shown["digest"] != accepted
        assert shown["changed"] == ["secrets://TOKEN"]
        assert any(line.startswith("+") and f"file://{key}" in line for line in shown["difference"])
        (asked,) = wait_for(lambda: waiting(node))
        assert f"file://{key}" in node.cli("approvals", "show", asked["id"], "--json").stdout
        trust()  # a person looked away
        wait_states(node, "unauthed", ID)
        assert "never read" in node.admin(f"/admin/drivers/{ID}")["reason"]
        assert folder.is_dir()
        inventory.write_bytes(text({"secrets": [entry]}))
        wait_states(node, "untrusted", ID)  # the earlier state has been replaced by the one accepted since


def everywhere(workspace: Workspace, node: RunningNode) -> dict[str, bytes]:
    """Everything the node wrote, and how its processes were started."""
    found = {str(path): path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found[f"{process}/cmdline"] = (process / "cmdline").read_bytes()
        except OSError:
            continue
    for path in ("/admin/status", "/admin/drivers", f"/admin/drivers/{ID}", f"/admin/links/{ID}@1"):
        found[path] = json.dumps(node.admin(path)).encode()
    found["logs"] = json.dumps(node.admin(f"/admin/links/{ID}@1/logs")).encode()
    found["audit"] = node.cli("audit", "export").stdout.encode()
    return found


@pytest.mark.req("AIP-19.plain-1", "AIP-transport-13", "AIP-transport-6")
@pytest.mark.parametrize("is_sandboxed", [False, True], ids=["bare", "sandboxed"])
async def test_a_value_is_in_its_process_and_nowhere_else(workspace: Workspace, is_sandboxed: bool) -> None:
    confide(workspace, "TOKEN", "LONG", entries=[ENTRY, {"slug": "long"}], env={**TOKEN, "LONG": "${secrets.LONG}"})
    long = f'{MARKER}-"{MARKER}"\n{MARKER}\\end'
    if is_sandboxed:
        workspace.ids.clear()
    with workspace.node() as node:
        set_secret(node, "confiding-mcp/token", MARKER)
        set_secret(node, "long", long)
        wait_states(node, "ready", ID)
        async with await greeted(node) as peer:
            await peer.request("logging/setLevel", {"level": "debug"})
            answer = (await peer.call("demo__env", {"name": "TOKEN"})).result
            assert answer["structuredContent"]["value"] == "[secret:confiding-mcp/token]"
            for name in ("TOKEN", "LONG"):
                for tool in ("demo__env", "demo__fail", "demo__talk"):
                    assert MARKER not in (await peer.call(tool, {"name": name})).text
            assert "talked" not in (await peer.call("demo__talk", {"name": "TOKEN"})).text  # stderr is not parsed
            heard = await peer.hear("notifications/message")
            assert MARKER not in json.dumps(heard)
            failed = (await peer.call("demo__fail", {"name": "TOKEN"})).result
            assert "it does not work with [secret:confiding-mcp/token]" in failed["content"][0]["text"]
        logs = json.dumps(node.admin(f"/admin/links/{ID}@1/logs"))
        assert "TOKEN is [secret:confiding-mcp/token]" in logs
        os.kill(node.link(f"{ID}@1")["pid"], signal.SIGKILL)
        ended = wait_for(lambda: node.admin(f"/admin/drivers/{ID}")["running"]["ended"])
        assert "SIGKILL" in ended or is_sandboxed
        words = node.cli("drivers", "show", ID).stdout
        assert "last words" in words and "[secret:" in words and MARKER not in words
        found = everywhere(workspace, node)
    found |= {str(path): path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file()}
    assert [place for place, said in found.items() if MARKER.encode() in said] == []
    assert any(place.endswith("secrets.db") for place in found)


@pytest.mark.req("AIP-server-8")
async def test_an_oauth_login_is_waited_for_and_then_used(workspace: Workspace) -> None:
    with authority() as issuer, guarded_server(issuer) as url:
        server = {"kind": "remote", "url": url, "auth": {"type": "oauth", "scopes": ["read"]}}
        said = {"type": "object", "properties": {}}
        folder = workspace.add("crm-mcp", tools={"whoami": "crm.whoami"}, server=server, transport="http")
        (folder / "tools" / "crm.whoami" / "TOOL.md").write_bytes(
            text(contract(id="crm.whoami", inputs=said, outputs={"type": "object"}))
        )
        with workspace.node() as node:
            wait_states(node, "unauthed", "crm-mcp")
            async with await greeted(node) as peer:
                waiting = (await peer.call("crm__whoami", {})).result
                assert waiting["_meta"]["dev.interlock/error"]["code"] == "auth_required"
                assert "interlock links restart crm shows" in waiting["content"][0]["text"]
                page = visit(ask_for_page(node, "crm-mcp@1"))
                assert page.status == 200, page.text
                again = visit(page.url)
                assert again.status == 400
                node.wait_link("crm", {"state": "ready"})


@pytest.mark.req("AIP-30.auth-3")
async def test_a_login_is_not_completed_by_a_script_nor_after_it_was_given_up(workspace: Workspace) -> None:
    with authority() as issuer, guarded_server(issuer) as url:
        server = {"kind": "remote", "url": url, "auth": {"type": "oauth", "scopes": ["read"]}}
        folder = workspace.add("crm-mcp", tools={"whoami": "crm.whoami"}, server=server, transport="http")
        with workspace.node() as node:
            wait_states(node, "unauthed", "crm-mcp")
            state = query(ask_for_page(node, "crm-mcp@1"))["state"]
            back = f"{node.operator_url}/oauth/callback?state={state}&code=x&iss={issuer.url}/flows"
            for origin in ("https://evil.example", "null", "http://[", node.url):
                assert visited(back, {"Origin": origin}) == 400, origin
            assert issuer.do("seen", of="token") == []
            (folder / "DRIVER.md").unlink()  # whoever wanted it is gone
            wait_for(lambda: not node.admin("/admin/drivers")["drivers"])
            wait_for(lambda: "crm-mcp@1" not in str(node.admin("/admin/links")))
            assert visited(back, {}) == 400
            assert issuer.do("seen", of="token") == []


def visited(url: str, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as page:
            return int(page.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code
