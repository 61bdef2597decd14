"""What an import found and did, for a person and as JSON. Places and slugs are named, values never."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from interlock.cli.terminal.output import Output
from interlock.cli.terminal.text import count, one_line
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.interop.client_discovery import SourceFile
from interlock.interop.importer import DriverReport, Report, SecretReport
from interlock.interop.probe_drafts import ProbeResult

SECRETS = {
    "kept": "copied to the store",
    "same": "in the store already",
    "differs": "the store has another value, which stays; interlock secrets set NAME replaces it",
    "environment": "taken from the environment",
    "unset": "not given yet: interlock secrets set NAME",
}


def show_files(out: Output, files: Sequence[SourceFile]) -> None:
    if out.as_json:
        out.json({"files": [_file_value(each) for each in files]})
        return
    from rich.text import Text

    from interlock.cli.terminal.columns import in_columns

    there = [each for each in files if each.state != "absent"]
    rows = [[Text(head, style="dim") for head in ("CLIENT", "SCOPE", "SERVERS", "FILE")]]
    for each in there:
        servers = str(len(each.reading.entries)) if each.state == "read" else one_line(each.reason or "")
        rows.append(
            [Text(each.title), Text(each.scope), Text(servers), Text(one_line(_short(each.path)), style="bold")]
        )
    if there:
        out.draw(*in_columns(rows, width=out.console.width, shrink={3: 20, 2: 8}))
    out.remark(f"{count(len(files) - len(there), 'place')} without a file")


def show_report(
    out: Output,
    files: Sequence[SourceFile],
    report: Report,
    *,
    dry_run: bool,
    asks_now: bool = False,
    connected: Sequence[ProbeResult] = (),
) -> None:
    """`asks_now`: the servers are asked for their tools after this."""
    if out.as_json:
        out.json(_report_value(files, report, connected, dry_run=dry_run))
        return
    for file in files:
        if file.state == "unreadable":
            out.line(f"skipped {one_line(_short(file.path))}: {one_line(file.reason or '')}")
        for note in file.reading.notes:
            out.line(f"note {one_line(_short(file.path))}: {note.text}")
    for each in report.drivers:
        _show_driver(out, each, dry_run=dry_run)
    for skipped in report.skipped:
        out.line(f"skipped {one_line(skipped.name)} ({skipped.told}): {one_line(skipped.note.text)}")
    left_in = dict.fromkeys(path for each in report.drivers for path in each.left_in)
    if left_in:
        out.line("secrets are copied, not moved: these files still hold the values, until you delete them there")
    for path in left_in:
        out.line(f"  {one_line(_short(Path(path)))}")
    written = [each for each in report.drivers if each.status != "unchanged"]
    if not report.drivers and not report.skipped:
        out.remark("no servers found; interlock import --list shows where was looked")
    elif not written:
        out.remark("nothing to do")
    elif dry_run:
        out.remark("nothing was written: this was --dry-run")
    else:
        drafts = [exposed_segment(each.id) for each in report.drivers if each.draft]
        if drafts and not asks_now:
            out.remark(f"which tools they have is not known yet: interlock add {quote(drafts[0])} asks the server")


def _show_driver(out: Output, driver: DriverReport, *, dry_run: bool) -> None:
    sources = ", ".join(dict.fromkeys(driver.sources))
    would = "would be " if dry_run and driver.status != "unchanged" else ""
    name = exposed_segment(driver.id)
    named = "" if driver.name == name else f"{one_line(driver.name)}, "  # what its client calls it
    out.line(f"{would}{driver.status} {name} ({named}{sources})")
    for file in driver.files:
        out.line(f"  {file}")
    for pointer in driver.changed:
        out.line(f"  changed {pointer}")
    for pointer in driver.conflicts:
        out.line(f"  conflict {pointer}: the source changed it too; yours stays")
    for secret in driver.secrets:
        out.line(f"  secret {one_line(secret.place)}: {secret.slug}, {_secret_words(secret, dry_run=dry_run)}")
    for note in driver.notes:
        out.line(f"  note {note.code}: {one_line(note.text)}")


def _secret_words(secret: SecretReport, *, dry_run: bool) -> str:
    if secret.state == "kept" and dry_run:
        return "would be copied to the store"
    words = SECRETS[secret.state]
    return f"{words} {secret.slug}" if words.endswith("secrets set") else words


def _file_value(file: SourceFile) -> dict[str, Any]:
    return {
        "client": file.client,
        "scope": file.scope,
        "path": str(file.path),
        "state": file.state,
        "servers": len(file.reading.entries),
        "reason": file.reason,
    }


def _report_value(
    files: Sequence[SourceFile], report: Report, connected: Sequence[ProbeResult], *, dry_run: bool
) -> dict[str, Any]:
    finished = {each.id for each in connected if each.state == "ready"}
    return {
        "dry_run": dry_run,
        "files": [_file_value(each) for each in files if each.state != "absent"],
        "drivers": [
            {
                "id": each.id,
                "name": each.name,
                "sources": list(each.sources),
                "status": each.status,
                "draft": each.draft and each.id not in finished,
                "command": list(each.command),
                "files": list(each.files),
                "changed": list(each.changed),
                "conflicts": list(each.conflicts),
                "secrets": [
                    {"place": secret.place, "slug": secret.slug, "state": secret.state} for secret in each.secrets
                ],
                "left_in": list(each.left_in),
                "notes": [{"code": note.code, "text": note.text} for note in each.notes],
            }
            for each in report.drivers
        ],
        "connected": [
            {"id": each.id, "state": each.state, "reason": each.reason, "files": list(each.files)} for each in connected
        ],
        "skipped": [
            {"name": each.name, "source": each.told, "code": each.note.code, "text": each.note.text}
            for each in report.skipped
        ],
    }


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
