"""The source of the path of a call: which modules may take a name apart."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src/interlock"
CUTS = re.compile(r"""\.(?:r?split|r?partition)\(\s*["']\.["']""")


@pytest.mark.req("AX-2-3", "AX-7.2-2")
async def test_no_route_is_got_by_cutting_up_a_name() -> None:
    """Dots are cut where a server's list is read (`names.read_dotted`), never on the way of a call."""
    folders = [
        SOURCE / name for name in ("core", "guard", "dispatch", "fronts", "links", "catalog", "gate", "ax", "mcp")
    ]
    assert all(folder.is_dir() for folder in folders)
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    # The command line and the reader of names split what people and servers wrote; neither is on the path of a call.
    modules = [path for path in modules if "cli" not in path.parts and path != SOURCE / "ax/protocol/names.py"]
    # A JWS is three parts that are joined by dots.
    modules = [path for path in modules if path.name not in ("proofs.py", "relay.py")]
    assert [path for path in modules if CUTS.search(path.read_text("utf-8"))] == []
    for package in ("dispatch", "fronts", "guard", "gate"):
        for path in (SOURCE / package).rglob("*.py"):
            assert "read_dotted" not in path.read_text("utf-8")
    assert "read_dotted" not in (SOURCE / "links/link.py").read_text("utf-8")
