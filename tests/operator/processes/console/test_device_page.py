"""Devices and drivers on the page of servers: are words shown of them, and not the name of a piece of the page?"""

import sys
from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.drivers.driver_files import contract, driver, text
from tests.operator.processes.console.conftest import log_in
from tests.support.node_process import running_node

DEVICE = Path(__file__).parents[4] / "examples/tree/.devices/vent.toml"


def test_a_device_shows_when_it_was_last_seen(browser: Browser, tmp_path: Path) -> None:
    devices = tmp_path / "workspace" / ".devices"
    devices.mkdir(parents=True)
    (devices / "vent.toml").write_text(DEVICE.read_text())
    with running_node(tmp_path, {}) as node:
        node.wait_link("vent", {"state": "ready"})
        context = browser.new_context()
        page = log_in(node, context)
        page.goto(f"{page.url}servers?server=vent")
        facts = page.locator("[data-segment=vent] dl.facts")
        expect(facts.locator("dd").filter(has_text="profile a, last seen").locator("time")).to_have_count(1)
        assert "[object" not in page.locator("main").inner_text()
        context.close()


def test_a_driver_that_cannot_be_used_is_on_the_page_with_the_reason_and_never_ready(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "workspace" / ".drivers" / "first-mcp"
    (folder / "tools" / "fs-read").mkdir(parents=True)
    (folder / "tools/fs-read/TOOL.md").write_text(text(contract(id="vent.read")))
    (folder / "DRIVER.md").write_text(text(driver("first-mcp")))
    with running_node(tmp_path, {"vent": {"command": [sys.executable, "-c", "input()"]}}) as node:
        context = browser.new_context()
        page = log_in(node, context)
        page.goto(f"{page.url}servers")
        row = page.locator("[data-segment=first-mcp]")
        expect(row).to_contain_text("listed under vent, which is [servers.vent]; rename one of the two")
        assert row.get_attribute("data-state") == "rejected"
        context.close()
