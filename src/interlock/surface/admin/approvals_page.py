"""The inbox as a page: small, without script, and safe to show whatever a caller or a server wrote.

What stands on it is what the JSON says. Nothing on it comes from elsewhere, and its forms go nowhere else.
"""

from html import escape
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import HTMLResponse, Response

from interlock.protocol.approvals.showing import bounded, differences, laid_out, plain

LINES_MAX: Final = 2000  # shown of arguments or a definition

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>{refresh}
<style>
body{{font:1rem/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0}}
th{{font-weight:600;white-space:nowrap}}td{{overflow-wrap:anywhere}}
pre{{background:#8882;padding:.75rem;overflow-x:auto}}code{{background:#8882;padding:.1rem .3rem}}
form{{margin:1rem 0}}input,textarea,select,button{{font:inherit}}textarea{{width:100%}}
</style></head>
<body><h1>{title}</h1>{body}<p><a href="/approvals">All that waits</a></p></body></html>
"""
_EFFECTS: Final = {
    (True, False): "It changes something and cannot be undone.",
    (True, True): "It changes something that can be undone.",
}


def approvals_page(listed: dict[str, Any]) -> Response:
    found = listed["approvals"]
    if not found:
        return _page("Nothing waits for a decision", "", refresh=True)
    rows = "".join(
        f'<tr><td><a href="/approvals/{quote(one["id"], safe="")}"><code>{_text(one["id"][:8])}</code></a></td>'
        f"<td>{_text(one['kind'])}</td><td>{_text(one['tool'])}</td><td>{_text(one['requested_by'])}</td>"
        f"<td>{_text(_left(one))}</td></tr>"
        for one in reversed(found)
    )
    more = "" if len(found) == listed["total"] else f"<p>These are the newest of {listed['total']}.</p>"
    table = f"<table><tr><th>Id<th>Kind<th>Tool<th>Asked by<th>Left</tr>{rows}</table>{more}"
    return _page(f"{listed['total']} for you to decide", table, refresh=True)


def approval_page(one: dict[str, Any]) -> Response:
    facts = [
        ("Status", one["status"] + (f" ({one['outcome']})" if one["outcome"] else "")),
        ("Tool", one["tool"]),
        ("Asked by", one["requested_by"]),
        ("Agent", one["agent"]),
        ("Why you are asked", one["reason"]),
        ("Route", " / ".join(one["route"])),
        ("Effect", effect(one["capability"])),
        ("Capability", _capability(one["capability"])),
        ("Asked at", one["created_at"]),
        ("Left", _left(one)),
        ("May approve", ", ".join(one["approvers"]) or "nobody yet: interlock init makes a key"),
        ("Digest", one["digest"]),
        ("Decided", _decision(one["decision"])),
    ]
    table = "".join(f"<tr><th>{_text(name)}<td>{_text(value)}</tr>" for name, value in facts if value)
    body = f"<table>{table}</table>{_what(one)}{_forms(one) if one['status'] in ('pending', 'approved') else ''}"
    return _page(_title(one), body)


def effect(capability: dict[str, Any] | None) -> str:
    if not capability:
        return "Nobody has said what it does."
    if capability.get("mutable") is False:
        return "It changes nothing."
    return _EFFECTS[True, capability.get("reversible") is True]


def shown_params(params: bytes) -> list[str]:
    """The arguments of a call; of a changed definition, what changed."""
    try:
        change = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        change = {}
    if change.keys() == {"before", "after"}:
        return bounded(differences(bytes(change["before"]), bytes(change["after"])), LINES_MAX)
    return bounded(laid_out(params), LINES_MAX)


def _title(one: dict[str, Any]) -> str:
    return {"definition": f"What does {one['tool']} do?"}.get(one["kind"], f"A call of {one['tool']}")


def _what(one: dict[str, Any]) -> str:
    if one["params"] is None:
        gone = "The arguments are erased." if one["status"] not in ("pending", "approved") else "There are none."
        return f"<p>{gone}</p>"
    heads = {"call": "With these arguments", "definition": "As its server defines it"}
    text = "\n".join(shown_params(bytes(one["params"])))
    return f"<h2>{heads.get(one['kind'], 'With')}</h2><pre>{escape(text)}</pre>"


def _forms(one: dict[str, Any]) -> str:
    action = f"/approvals/{quote(one['id'], safe='')}"
    classes = "".join(f'<option value="{_text(answer)}">{_text(answer)}</option>' for answer in one["answers"])
    choice = f'<p><label>It is <select name="class">{classes}</select></label></p>' if len(one["answers"]) > 1 else ""
    approve = (
        f"<h2>Approve</h2><p>Sign it where your key is: <code>interlock approve {_text(one['id'])}</code></p>"
        f'<form method="post" action="{action}"><input type="hidden" name="decision" value="approve">{choice}'
        '<p><label>or paste a proof that was signed elsewhere<textarea name="proof" rows="3" required></textarea>'
        "</label></p><button>Approve with this proof</button></form>"
    )
    deny = (
        f'<h2>Deny</h2><form method="post" action="{action}"><input type="hidden" name="decision" value="deny">'
        '<p><label>Reason, told to whoever asked <input name="reason" maxlength="1000"></label></p>'
        "<button>Deny</button></form>"
    )
    return deny if one["status"] == "approved" else approve + deny


def _left(one: dict[str, Any]) -> str:
    if one["status"] not in ("pending", "approved"):
        return str(one["status"])
    return "no limit" if one["left_s"] is None else f"{one['left_s']} s"


def _capability(capability: dict[str, Any] | None) -> str:
    return ", ".join(f"{key} {msgspec.json.encode(value).decode()}" for key, value in (capability or {}).items())


def _decision(decision: dict[str, Any] | None) -> str | None:
    if decision is None:
        return None
    proof = decision["proof"]
    by = f"{decision['by']}, with a proof of {proof['anchor']}" if proof else decision["by"]
    return f"{decision['what']} at {decision['at']} by {by}" + (f": {decision['reason']}" if decision["reason"] else "")


def _text(value: object) -> str:
    return escape(plain(str(value)))


def _page(title: str, body: str, *, refresh: bool = False) -> Response:
    again = '<meta http-equiv="refresh" content="5">' if refresh else ""
    return HTMLResponse(_PAGE.format(title=_text(title), body=body, refresh=again), headers=_HEADERS)
