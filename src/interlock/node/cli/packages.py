"""interlock packages list | prune"""

from typing import TYPE_CHECKING

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.text import count

if TYPE_CHECKING:
    from interlock.process.packages.package_store import PackageStore

_MB = 1_000_000

app = verb_app(
    "Look at installed packages of servers, and remove those that are not used.",
    examples="""
    interlock packages list
    interlock packages prune
    """,
)


@verb(app, "list")
def list_packages(invocation: Invocation) -> None:
    """List installed packages and what uses them.

    Examples:
        interlock packages list
        interlock packages list --json | jq -r '.packages[].entry'
    """
    store, out = _store(invocation), invocation.out
    packages = list(store.packages())
    if out.as_json:
        shown = [{"entry": each.entry, "bytes": each.size, "users": list(each.users)} for each in packages]
        out.json({"folder": str(store.folder), "packages": shown})
        return
    rows = [(each.entry, _size(each.size), count(len(each.users), "use")) for each in packages]
    if rows:
        out.draw_table("PACKAGE|SIZE|USED BY", rows, {0: 20}, frozenset({1}))
    out.line(f"{count(len(packages), 'package')} in {store.folder}")


@verb(app, "prune")
def prune(invocation: Invocation) -> None:
    """Remove installed packages that no data folder uses.

    A package that is removed is installed again when a server needs it. Packages in use stay, also those of nodes that
    run.

    Examples:
        interlock packages prune
        interlock packages prune --json
    """
    store, out = _store(invocation), invocation.out
    removed = []
    for each in store.prune():
        removed.append(each)
        if not out.as_json:
            out.line(f"removed {each.entry} ({_size(each.size)})")
    if out.as_json:
        shown = [{"entry": each.entry, "bytes": each.size} for each in removed]
        out.json({"folder": str(store.folder), "removed": shown})
    else:
        out.line(f"removed {count(len(removed), 'package')}, {_size(sum(each.size for each in removed))}")


def _store(invocation: Invocation) -> "PackageStore":
    from interlock.process.packages.package_store import PackageStore, package_folders

    return PackageStore(package_folders(invocation.loaded.plan).store)


def _size(size: int) -> str:
    return f"{size / _MB:.1f} MB"
