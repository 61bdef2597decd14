"""In a real browser: does each page of the console do its job, and does nothing that anybody wrote act on it?"""

import contextlib
import http.client
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect
from tests.gate.held_calls import Client
from tests.names.old_registry import ARGUMENT, register
from tests.operator.garden_server import BIG_CHARS, command
from tests.operator.processes.console.conftest import Console, Passkey, log_in
from tests.support.node_process import RunningNode, wait_for

from interlock.core.link_state import LinkState

pytestmark = pytest.mark.timeout(120)  # a browser starts slowly beside seven others

TOOL, SERVER, NAME = "/tools?tool=garden.water_beds", "/servers?server=shed", "/names?name=org_alter_handbook"
PAGES = (
    "/",
    "/approvals",
    "/activity",
    "/tools",
    TOOL,
    SERVER,
    "/agents",
    "/rooms",
    NAME,
    "/access",
    "/grants",
    "/classification",
)
WATER = {"bed": "north", "litres": 5}


def held(node: RunningNode, arguments: dict[str, Any]) -> str:
    """An agent's call that waits; gives its approval."""
    with Client(node) as client:
        return str(client.held("garden.water_beds", arguments)["confirmation_id"])


def test_the_overview_shows_the_state_of_the_tree_its_reasons_and_what_waits(console: Console) -> None:
    id = held(console.node, {**WATER, "note": "overview"})
    page = console.open("/")
    main = page.locator("main")
    expect(main).to_contain_text("1 server needs attention: shed")
    shed = page.locator(".tree .leaf", has_text="shed")
    expect(shed.locator(".pill")).to_have_text(re.compile("failed|connecting"))
    expect(page.locator(f'a[href="/approvals/{id}"]')).to_contain_text("garden.water_beds")
    expect(main).to_contain_text("Not listed")
    expect(page.locator("#waiting")).to_have_text(re.compile(r"\d+"))
    expect(page.locator("header .brand")).to_have_text("Interlock")
    assert page.title() == "Overview · Interlock"
    expect(page.locator("#node")).to_have_text("home")
    console.picture("overview")
    console.node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})
    expect(page.locator(f'a[href="/approvals/{id}"]')).to_have_count(0)  # live


def test_an_agents_call_is_read_signed_and_run_exactly_once(console: Console) -> None:
    page = console.open("/approvals")
    arguments = {**WATER, "note": "from an agent"}
    with Client(console.node) as agent:
        id = agent.held("garden.water_beds", arguments)["confirmation_id"]
        row = page.locator(f'a[href="/approvals/{id}"]')
        expect(row).to_contain_text("asked by local")  # it came by itself
        row.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#approval pre")).to_contain_text('"note": "from an agent"')
        expect(page.locator("#approval")).to_contain_text("cannot be undone")
        expect(page.locator("#live")).to_have_text("Live")  # its script listens
        console.picture("approval")
        page.keyboard.press("a")
        expect(page.locator("#passkey")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#approval[data-status=approved]")).to_be_visible()
        assert arguments not in console.did()
        decision = console.node.admin(f"/approvals/{id}")["decision"]
        assert (decision["proof"]["anchor"], decision["proof"]["type"]) == ("ada", "operator_signature")
        assert agent.call("garden.water_beds", arguments)["structuredContent"]["watered"] is True
    expect(page.locator("#approval[data-status=done]")).to_be_visible()
    assert console.did().count(arguments) == 1


def test_one_signature_lets_calls_like_it_pass_until_it_is_revoked(console: Console) -> None:
    with Client(console.node) as agent:
        id = agent.held("garden.water_beds", {"bed": "north", "litres": 3, "note": "every day"})["confirmation_id"]
        page = console.open(f"/approvals/{id}")
        expect(page.locator("#approval")).to_contain_text("To be asked less often")
        expect(page.locator("#approval")).to_contain_text('"reversible"')
        page.click("#standing")
        said = page.locator("section.box")
        expect(said).to_contain_text("/litres must be a number from 0 to 3")
        expect(said).to_contain_text('/note must be "every day"')
        expect(said).to_contain_text("no other argument may be there")
        page.get_by_label("note", exact=True).select_option(label="anything")
        page.get_by_label("Value of litres").fill("[1, ")
        expect(said.locator(".wrong")).to_contain_text("not JSON")
        page.get_by_label("Value of litres").fill("[4, 9]")
        expect(said.locator(".wrong")).to_contain_text("the call itself would not be among those it covers")
        page.get_by_label("Value of litres").fill("[1, 4]")
        page.get_by_label("How many calls").fill("2")
        expect(said).to_contain_text("/litres must be a number from 1 to 4")
        expect(said).to_contain_text("/note must be anything")
        expect(said).to_contain_text("2 times")
        console.picture("grant")
        page.click("#sign")
        page.wait_for_url("**/grants")
        row = page.locator(".rows > li", has_text="garden.water_beds")
        expect(row).to_contain_text("0 of 2 calls")
        for arguments in ({"bed": "north", "litres": 3, "note": "every day"}, {"bed": "north", "litres": 4}):
            assert agent.call("garden.water_beds", arguments)["structuredContent"]["watered"] is True
            assert console.did().count(arguments) == 1
        expect(row).to_contain_text("2 of 2 calls")  # live
        expect(row).to_contain_text("used up")
        again = agent.held("garden.water_beds", {"bed": "north", "litres": 4})["confirmation_id"]
        page = console.open(f"/grants?approval={again}")
        page.get_by_role("button", name="Sign with a passkey").click()
        row = page.locator(".rows > li", has_text="active")
        row.locator("summary").click()
        row.get_by_role("button", name="Revoke").click()
        expect(page.locator(".rows > li", has_text="was revoked by browser")).to_have_count(1)
        anew = agent.held("garden.water_beds", {"bed": "north", "litres": 4})["confirmation_id"]
        assert anew != again  # which the grant had approved
        console.node.admin(f"/approvals/{anew}", "POST", {"decision": "deny"})


def test_the_inbox_is_walked_with_the_keyboard_and_denying_says_so(console: Console) -> None:
    ids = [held(console.node, {**WATER, "note": f"key {n}"}) for n in range(2)]
    page = console.open("/approvals")
    expect(page.locator(f'a[href="/approvals/{ids[1]}"]')).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    focused = page.evaluate("document.activeElement.getAttribute('href')")
    assert focused in {f"/approvals/{id}" for id in ids}
    page.keyboard.press("Enter")
    page.wait_for_selector("#approval")
    expect(page.locator("#live")).to_have_text("Live")
    page.keyboard.press("d")
    page.keyboard.type("not today")
    page.keyboard.press("Enter")
    expect(page.locator("#approval[data-status=denied]")).to_contain_text("not today")
    page.locator("h1").click()
    page.keyboard.press("u")
    page.wait_for_url("**/approvals")
    for id in ids:
        console.node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})
    expect(page.locator("main")).to_contain_text("Nothing waits for you")


def test_a_tool_is_found_by_words_and_every_check_of_a_call_is_shown(console: Console) -> None:
    page = console.open("/tools")
    page.get_by_label("Find a tool").fill("temperature of the garden")
    first = page.locator(".list a.row").first
    expect(first).to_contain_text("garden.read_climate")
    first.click()
    checks = page.locator(".checks li")
    expect(checks.first).to_be_visible()
    assert checks.count() >= 5
    expect(page.locator("#tool")).to_contain_text("read_only")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator("#answer[data-state=done]")).to_contain_text('"humidity": 64')
    console.picture("tool")


def test_a_form_says_what_is_wrong_and_sends_what_was_typed(console: Console) -> None:
    page = console.open("/tools?tool=garden.water_beds")
    call = page.get_by_role("button", name="Call", exact=True)
    call.click()
    wrong = page.locator(".wrong", has_text="required")
    expect(wrong).to_have_count(2)
    expect(page.get_by_label("bed")).to_be_focused()
    page.get_by_label("bed").select_option(label="south")
    litres = page.get_by_label("litres")
    for typed, said in (("many", "must be a number"), ("2.5", "whole number"), ("51", "At most 50")):
        litres.fill(typed)
        call.click()
        expect(page.locator(".wrong", has_text=said)).to_be_visible()
    litres.fill("7")
    zones = page.get_by_label("zones")
    zones.fill('{"a": 1}')
    expect(page.locator(".wrong", has_text="must be a list")).to_be_visible()
    zones.fill("[1, ")
    expect(page.locator(".wrong", has_text="not JSON")).to_be_visible()
    zones.fill('["a", 1.10]')
    page.get_by_label("at_once").select_option(label="true")
    page.get_by_role("button", name="JSON", exact=True).click()
    expect(page.get_by_label("Arguments as JSON")).to_have_value(re.compile("1.10"))
    page.get_by_role("button", name="Form", exact=True).click()
    zones.fill('["a", 1.10]')
    call.click()
    page.wait_for_selector("#answer[data-state=held]")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Decide on it").click()
    decision = opened.value
    expect(decision.locator("#approval pre")).to_contain_text("1.10")
    id = decision.url.rpartition("/")[2]
    decision.close()
    assert console.node.admin(f"/approvals/{id}")["requested_by"].startswith("browser:")
    console.node.admin(f"/approvals/{id}", "POST", {"decision": "deny", "reason": "too wet"})
    expect(page.locator("#answer[data-state=denied]")).to_contain_text("too wet")


def test_a_held_call_of_the_console_runs_by_itself_once_it_is_approved(console: Console) -> None:
    page = console.open("/tools?tool=garden.water_beds")
    page.get_by_label("bed").select_option(label="north")
    page.get_by_label("litres").fill("9")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#answer[data-state=held]")
    waiting = console.node.admin("/approvals")["approvals"][-1]
    tab = page.context.new_page()
    passkey = Passkey(tab)
    console.passkey.move_to(passkey)
    tab.goto(f"{console.url}/approvals/{waiting['id']}")
    tab.click("#passkey")
    tab.wait_for_selector("#approval:not([data-status=pending])")
    expect(page.locator("#answer[data-state=done]")).to_contain_text("watered")
    assert console.did().count({"bed": "north", "litres": 9}) == 1
    tab.wait_for_selector("#approval[data-status=done]")
    passkey.move_to(console.passkey)


def test_a_call_shows_progress_and_can_be_cancelled(console: Console) -> None:
    page = console.open("/tools?tool=garden.grow")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator("#answer")).to_contain_text("sowing")
    assert page.locator("#answer progress").evaluate("bar => bar.value / bar.max") == 0.25
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#answer[data-state=cancelled]")).to_be_visible()
    wait_for(lambda: console.node.link("garden")["in_flight"] == 0)
    newest = wait_for(lambda: [one for one in records(console.node) if one.get("tool") == "garden.grow"])[-1]
    assert (newest["outcome"], newest["via"]) == ("cancelled", "operator")


def records(node: RunningNode) -> list[Any]:
    return list(node.admin("/admin/audit?limit=1000")["records"])


def test_a_failed_tool_is_distinguished_from_a_refused_call(console: Console) -> None:
    page = console.open("/tools?tool=garden.fail")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator('#answer[data-state="the tool failed"]')).to_contain_text("the pump is dry <img")
    page = console.open("/tools?tool=garden.nothing")
    expect(page.locator(".error")).to_contain_text("there is no tool")


def test_activity_is_live_filtered_and_goes_back(console: Console) -> None:
    page = console.open("/activity")
    expect(page.locator(".rows > li").first).to_be_visible()
    with Client(console.node) as agent:
        agent.call("garden.read_climate", {"bed": "live"})
    newest = page.locator(".rows > li").first
    expect(newest).to_contain_text("garden.read_climate")
    newest.locator("summary").click()
    expect(newest.locator("pre")).to_contain_text('"args_sha256"')
    console.picture("activity")
    page.get_by_label("Find").fill("water_beds")
    expect(page.locator(".rows > li .name").first).to_have_text("garden.water_beds")
    assert set(page.locator(".rows > li .name").all_inner_texts()) == {"garden.water_beds"}


def test_a_server_says_why_it_failed_and_is_started_afresh(console: Console) -> None:
    page = console.open("/servers?server=shed")
    shed = page.locator('[data-segment="shed"]')
    expect(shed.locator("pre")).to_contain_text("no garden at /dev/ttyUSB7")
    garden = page.locator('[data-segment="garden"]')
    garden.locator("summary").click()
    before = console.node.link("garden")["pid"]
    garden.get_by_role("button", name="Restart").click()
    garden.get_by_role("button", name="calls under way end").click()
    wait_for(lambda: console.node.link("garden")["pid"] not in (None, before))
    console.node.wait_link("garden", {"state": "ready"})


def test_an_admin_adds_a_server_with_the_operation_of_interlock_add(console: Console) -> None:
    page = console.open("/servers")
    form = page.locator("#add")
    form.get_by_label("Add a server").fill("npm:@modelcontextprotocol/server-everything")
    with page.expect_response(lambda answer: answer.url.endswith("/admin/drivers/trials")) as answer:
        form.get_by_role("button", name="Add").click()
    assert answer.value.request.post_data_json == {"reference": "npm:@modelcontextprotocol/server-everything"}
    # This node has an approver: the operation refuses to start a server that no approver has accepted.
    assert answer.value.json()["error"] == "proof_required"
    expect(form.get_by_role("status")).to_contain_text("interlock add npm:@modelcontextprotocol/server-everything")


def test_a_server_that_sleeps_needs_no_attention(console: Console) -> None:
    ask = "states => import('/console/dom.js').then(dom => states.filter(one => dom[NAME](one) CASE))"
    states = [state.value for state in LinkState]
    bad = console.page.evaluate(ask.replace("NAME", "'mood'").replace("CASE", "=== 'bad'"), states)
    assert set(bad) == {"unauthorised", "failed"}
    attended = console.page.evaluate(ask.replace("NAME", "'needsAttention'").replace("CASE", ""), states)
    assert set(states) - set(attended) == {"ready", "slow", "asleep"}


def test_agents_and_access_say_what_there_is_and_what_to_do_next(console: Console) -> None:
    expect(console.open("/agents").locator("main")).to_contain_text("The safety loop is off")
    page = console.open("/access")
    expect(page.locator("main")).to_contain_text("browser")
    expect(page.locator("main")).to_contain_text("ada")


@pytest.mark.req("REG-5-13", "REG-8.4-2", "REG-5-9", "REG-5-10", "REG-5-15")
def test_names_are_found_and_show_what_is_late_their_record_and_what_waits(console: Console, tmp_path: Path) -> None:
    beside = threading.Thread(target=register, args=(console.node.data,))  # a loop runs in this thread
    beside.start()
    beside.join()
    asking = {"change_controller": "Kite", "authentication_scope": "member-recognition", "vendor_prefix": "kite_"}
    asking |= {"specification_reference": "https://kite.invalid/", "semantics": "2", "argument_schema": ARGUMENT}
    (tmp_path / "request.json").write_text(json.dumps(asking | {"return_schema": ARGUMENT}))
    made = console.node.cli("names", "request", "kite_fly", "--from", str(tmp_path / "request.json"), "--json")
    approval = json.loads(made.stdout)["approval"]
    page = console.open("/names")
    expect(page.locator("main")).to_contain_text("1 review is overdue")
    draft = page.locator(".rows a.row", has_text="acme_draft")
    expect(draft).to_contain_text("review overdue")
    request = page.locator(f'a[href="/approvals/{approval}"]')
    expect(request).to_contain_text("kite_fly")
    page.get_by_label("Search").fill("acme_f")
    expect(page.locator(".rows a.row", has_text="acme_")).to_have_count(1)
    page.locator(".rows a.row", has_text="acme_fire").click()
    shown = page.locator("#name")
    expect(shown).to_contain_text("Revision 1")
    expect(shown).to_contain_text("accept by expert:eve")
    console.picture("names")
    shown.get_by_role("button", name="Confirm that it is public").click()
    expect(shown).to_contain_text("confirm_public by")
    page.get_by_label("Search").fill("")
    page.get_by_label("Status").select_option("Deprecated")
    expect(page.locator("main")).to_contain_text("No name fits")
    console.node.admin(f"/approvals/{approval}", "POST", {"decision": "deny", "reason": "later"})
    expect(request).to_have_count(0)  # live
    expect(console.open("/names?name=kite_fly").locator("#name")).to_contain_text("request rejected: later")
    expect(console.open("/").locator("main")).to_contain_text("1 review of a registered name is overdue")


@pytest.mark.req("REG-6-6", "REG-6-7")
def test_a_name_says_where_it_comes_from_and_how_a_later_revision_differs(console: Console, tmp_path: Path) -> None:
    head = "Surface Name,Specification Reference,Authentication Scope,Vendor Prefix,Change Controller,Status,"
    row = "org_alter_ingest,draft-morrison-org-alter-policy-provision-00,member-recognition,org_alter_,"
    (tmp_path / "later.csv").write_text(
        f"{head}First Registered\r\n{row}Alter Meridian Pty Ltd,Provisional,2026-05-15\r\n"
    )
    imported = console.node.cli("names", "import", str(tmp_path / "later.csv"), "--source", "later", "--beside")
    assert imported.returncode == 0, imported.stderr
    page = console.open("/names?name=org_alter_ingest")
    shown = page.locator("#name")
    expect(shown).to_contain_text("draft-morrison-mcp-tool-surface-names-registry-00, initial contents")
    expect(shown).to_contain_text("Compared with later")
    expect(shown).to_contain_text("status: Active here, Provisional there")
    expect(page.locator("main")).to_contain_text("Compared with later, entries that differ: 1 of 1.")
    expect(page.locator(".rows a.row", has_text="initial contents")).to_have_count(4)


@pytest.mark.req("REG-5-9")
@pytest.mark.parametrize(
    ("button", "state"),
    [("Deny", "rejected"), ("Return to be revised", "revision_requested"), ("Approve with a passkey", "accepted")],
)
def test_an_expert_decides_on_a_name_on_its_page(console: Console, tmp_path: Path, button: str, state: str) -> None:
    node, name = console.node, f"kite_{state}"
    asking = {"change_controller": state, "authentication_scope": "member-recognition", "cross_vendor": True}
    asking |= {"specification_reference": "https://kite.invalid/", "semantics": "2", "argument_schema": ARGUMENT}
    (tmp_path / "request.json").write_text(json.dumps(asking | {"return_schema": ARGUMENT}))
    made = node.cli("names", "request", name, "--from", str(tmp_path / "request.json"), "--json")
    assert node.cli("names", "attach", name, str(tmp_path / "request.json")).returncode == 0
    page = console.open(f"/approvals/{json.loads(made.stdout)['approval']}")
    decide = page.get_by_role("button", name=button)
    page.locator("form", has=decide).locator("[name=reason]").fill("read it")
    decide.click()
    status = "done" if state == "accepted" else "denied"
    expect(page.locator(f"#approval[data-status={status}]")).to_be_visible()
    (request,) = json.loads(node.cli("names", "show", name, "--json").stdout)["requests"]
    assert (request["state"], request["reason"]) == (state, "read it")


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CONTRAST = {"type": "rule", "values": ["color-contrast"]}


def test_every_page_is_accessible_in_light_and_dark(console: Console) -> None:
    id = held(console.node, {**WATER, "note": "axe"})
    page = console.page
    try:
        for path in (f"/approvals/{id}", f"/grants?approval={id}", *PAGES):
            console.open(path)
            page.wait_for_selector("main h2, main .empty, main .rows")
            page.evaluate(AXE)
            assert violations(page, AA) == [], path
            page.emulate_media(color_scheme="dark")
            assert violations(page, CONTRAST) == [], path
            if path == SERVER:
                console.picture("servers-dark")
            page.emulate_media(color_scheme="light")
    finally:
        page.emulate_media(color_scheme="light")
        console.node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})


def violations(page: Page, only: Any) -> list[Any]:
    options = {"runOnly": only, "resultTypes": ["violations"], "ancestry": False, "xpath": False}
    found = page.evaluate("options => axe.run(document, options)", options)["violations"]
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]


def test_a_phone_shows_every_page_without_scrolling_sideways(console: Console) -> None:
    id = held(console.node, {**WATER, "note": "phone"})
    page = console.page
    page.set_viewport_size({"width": 360, "height": 740})
    try:
        for path in (f"/approvals/{id}", f"/grants?approval={id}", *PAGES):
            console.open(path)
            page.wait_for_timeout(100)
            assert fits(page), path
            if path.startswith("/approvals/"):
                console.picture("phone")
            for link in page.locator("nav a").all():
                box = link.bounding_box()
                assert box is not None and box["width"] >= 44 and 44 <= box["height"] <= 60
            overflowing = "all => all.filter(one => one.scrollWidth > one.parentElement.clientWidth).length"
            assert page.locator("nav a > span").evaluate_all(overflowing) == 0
    finally:
        page.set_viewport_size({"width": 1000, "height": 680})
        console.node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})


def test_a_keyboard_alone_reaches_content_navigation_and_a_call(console: Console) -> None:
    page = console.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.locator("header .brand").focus()
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.innerText.split('\\n')[0]"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert seen == ["Overview", "Inbox", "Activity", "Tools", "Servers", "Agents", "Rooms", "Access"]


def test_motion_stops_where_a_person_asks_for_less(console: Console) -> None:
    page = console.open("/")
    page.emulate_media(reduced_motion="reduce")
    try:
        page.evaluate("document.getElementById('live').dataset.state = 'waiting'")
        assert page.evaluate("getComputedStyle(document.getElementById('live'), '::before').animationName") == "none"
    finally:
        page.emulate_media(reduced_motion="no-preference")


def test_possibly_outdated_data_is_not_shown_as_live(console: Console, browser: Any) -> None:
    with browser.new_context() as context:
        context.clock.install()
        page = log_in(console.node, context)
        state = page.locator("#live")
        expect(state).to_have_text("Live")
        process = console.node.process
        process.send_signal(signal.SIGSTOP)
        try:
            context.clock.run_for(13_000)  # longer than the node is ever silent
            expect(state).to_contain_text("Reconnecting… as of ")
            assert page.evaluate("document.body.classList.contains('stale')")
        finally:
            process.send_signal(signal.SIGCONT)
        wait_for(lambda: (context.clock.run_for(1_000), state.inner_text() == "Live")[1])
        assert not page.evaluate("document.body.classList.contains('stale')")


def test_a_person_who_is_not_logged_in_sees_no_data_and_learns_how_to_log_in(console: Console, browser: Any) -> None:
    with browser.new_context() as stranger:
        page = stranger.new_page()
        for path in ("/", "/tools", "/activity"):
            page.goto(console.url + path)
            expect(page.locator("#sign-in")).to_contain_text("interlock open")
            assert "garden" not in page.content()
        page.goto(console.url + "/approvals")
        page.get_by_label("Token of an operator").fill("ilo_wrong")
        page.keyboard.press("Enter")
        expect(page.locator(".wrong")).to_contain_text("needs an operator's token")
        made = console.node.cli("access", "token", "--for", "operator", "--name", "phone", "--json")
        page.get_by_label("Token of an operator").fill(json.loads(made.stdout)["token"])
        page.keyboard.press("Enter")
        page.wait_for_selector("#live[data-state=live]")


def test_a_session_is_left_and_its_streams_end(console: Console, browser: Any) -> None:
    with browser.new_context() as context:
        page = log_in(console.node, context)
        page.goto(console.url + "/access")
        page.get_by_role("button", name="Log out").click()
        expect(page.locator("#sign-in")).to_be_visible()
        assert page.locator("#live").inner_text() == ""


def test_a_tool_that_is_not_classified_leads_to_the_question(console: Console) -> None:
    page = console.open("/tools?tool=garden.prune")
    expect(page.locator("#tool")).to_contain_text("not classified")
    page.get_by_role("button", name="Say what it does").click()
    expect(page.locator("h1")).to_have_text("What does garden.prune do?")


def test_a_tool_is_classified_with_a_passkey_and_not_without_its_person(console: Console) -> None:
    page = console.open("/classification")
    told, row = page.locator("main .told[role=status]"), page.locator("#classes tr", has_text="garden.prune")
    row.get_by_role("combobox").select_option("reversible")
    sign = page.get_by_role("button", name="Sign with a passkey")
    console.passkey.knows_its_person(False)
    sign.click()
    expect(told).to_contain_text("Nothing was signed")
    assert console.node.admin("/admin/status")["gate"]["unclassified"] == 1
    console.passkey.knows_its_person(True)
    sign.click()
    expect(told).to_contain_text("1 tool classified")
    expect(page.locator("main")).to_contain_text("Every tool has a class")
    wait_for(lambda: console.node.admin("/admin/status")["gate"]["unclassified"] == 0)
    (said,) = [one for one in records(console.node) if one.get("tool") == "garden.prune" and "answer" in one]
    assert (said["method"], said["answer"], said["anchor"]) == ("approvals/approve", "reversible", "ada")  # it waited
    with Client(console.node) as agent:
        assert agent.call("garden.prune", {})["structuredContent"]["watered"] is True


@contextlib.contextmanager
def following(node: RunningNode, token: str) -> Iterator[http.client.HTTPResponse]:
    there = urlsplit(node.operator_url)
    with contextlib.closing(http.client.HTTPConnection(there.hostname or "", there.port, timeout=20)) as connection:
        connection.request("GET", "/admin/events", headers={"authorization": f"Bearer {token}"})
        with connection.getresponse() as stream:
            yield stream


def test_events_tell_the_status_approvals_and_records_until_the_token_is_revoked(node: RunningNode) -> None:
    made = node.cli("access", "token", "--for", "operator", "--name", "stream", "--json")
    with following(node, json.loads(made.stdout)["token"]) as stream:
        told: dict[str, Any] = {}

        def next_event() -> Any:
            while line := stream.readline():
                if line.startswith(b"data: "):
                    return json.loads(line[6:])
            return None

        first = next_event()
        assert first["status"]["node"]["name"] == "home"
        id = held(node, {**WATER, "note": "events"})
        while not {"approval", "records"} <= told.keys() or told["approval"]["id"] != id:
            told |= next_event()
        assert told["approval"]["status"] == "pending" and "params" not in told["approval"]
        node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})
        node.admin("/admin/tokens/stream", "DELETE")
        while next_event() is not None:
            pass


def test_a_viewer_cannot_call_tools(console: Console, browser: Any) -> None:
    made = console.node.cli("access", "token", "--for", "operator", "--name", "eyes", "--scope", "read", "--json")
    token = {"authorization": f"Bearer {json.loads(made.stdout)['token']}", "content-type": "application/json"}
    url = f"{console.url}/admin/tools/garden.read_climate/call"
    refused = console.page.request.post(url, headers=token, data="{}")
    assert (refused.status, refused.json()["error"]) == (403, "role_required")


def test_a_program_calls_a_tool_over_the_api_and_reads_the_events(console: Console) -> None:
    made = console.node.cli("access", "token", "--for", "operator", "--name", "ops", "--json")
    headers = {"authorization": f"Bearer {json.loads(made.stdout)['token']}", "content-type": "application/json"}
    text = console.page.request.post(
        f"{console.url}/admin/tools/garden.read_climate/call", headers=headers, data="{}"
    ).text()
    (event,) = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert event["result"]["structuredContent"]["humidity"] == 64
    unknown = console.page.request.post(
        f"{console.url}/admin/tools/garden.none/call", headers=headers, data="{}"
    ).text()
    assert '"error":' in unknown
    newest = wait_for(lambda: [one for one in records(console.node) if one["who"] == "operator:ops"])
    assert {(one["tool"], one["via"]) for one in newest} == {
        ("garden.read_climate", "operator"),
        ("garden.none", "operator"),
    }


def test_files_are_asked_about_by_their_tag_and_pages_allow_nothing_inline(console: Console) -> None:
    request = console.page.request
    style = request.get(f"{console.url}/console/console.css")
    assert style.headers["cache-control"] == "no-cache"
    again = request.get(f"{console.url}/console/console.css", headers={"if-none-match": style.headers["etag"]})
    assert again.status == 304
    assert request.get(f"{console.url}/console/..%2fframe.py").status == 404
    policy = request.get(f"{console.url}/").headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "trusted-types 'none'" in policy


def test_nothing_that_a_server_or_a_caller_wrote_acts_or_breaks_the_layout(console: Console) -> None:
    words = command(console.diary, "weeds")
    with console.node.config.open("a") as file:
        file.write(f"[servers.weeds]\ncommand = {json.dumps(words[0])}\nargs = {json.dumps(words[1:])}\n")
    console.node.wait_link("weeds", {"state": "ready"})
    console.complaints.clear()
    page = console.open("/tools?tool=weeds.shout")
    page.get_by_role("button", name="Call", exact=True).click()
    answer = page.locator("#answer[data-state=done]")
    expect(answer).to_contain_text("<script>document.title='owned'</script>")
    expect(answer).to_contain_text("\\u202egnp.exe\\u2066")
    page.get_by_role("button", name=re.compile("Show all")).click()
    wait_for(lambda: len(page.locator("#answer pre").inner_text()) > BIG_CHARS)
    hostile = {"note": "</pre><script>document.title='owned'</script>\u202e", "k" * 500: "v" * 9000}
    id = held(console.node, {**WATER, **hostile})
    shown = ("/tools?tool=weeds.shout", f"/approvals/{id}", "/approvals", "/", "/servers?server=weeds", "/activity")
    for path in shown:
        console.open(path)
        page.wait_for_timeout(50)
        assert "owned" not in page.title()
        assert page.locator("main img, main script").count() == 0
        assert "\u202e" not in page.locator("body").inner_text()
        assert fits(page), path
        page.set_viewport_size({"width": 360, "height": 740})
        assert fits(page), path
        page.set_viewport_size({"width": 1000, "height": 680})
    assert console.complaints == []
    console.node.admin(f"/approvals/{id}", "POST", {"decision": "deny"})
