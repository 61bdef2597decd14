"""docs/operator-api.json, the OpenAPI document of the operator endpoint, and docs/operator-api.md, a page of its paths.

Both come from the table of endpoints and the types that it names. `--check` compares and writes nothing.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from interlock.operator.openapi import document

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = Path("docs/operator-api.json")
PAGE = Path("docs/operator-api.md")

_HEAD = """\
# The operator API

What the commands use is open to other programs: JSON over HTTP at `node.operator_listen` (127.0.0.1:7412 unless
configured), with `Authorization: Bearer` and a token made by `interlock access token --for operator`. On the machine
itself `run/admin.sock` in the data folder answers the user who runs the node without a token.

```
curl -H "Authorization: Bearer $INTERLOCK_TOKEN" http://127.0.0.1:7412/admin/status
curl --unix-socket ~/.local/share/interlock/run/admin.sock http://localhost/admin/links
```

[operator-api.json](operator-api.json) is the whole API as an OpenAPI 3.1 document: every path, parameter, request body
and answer with its fields, and the errors. A running node serves the same document at `/admin/openapi.json`. Both are
generated from the types that the node builds its answers of; this page is too (`python tools/operator_api.py`).

- A refused request is answered with `{"error": ..., "message": ..., "details": {...}}`: a name for programs, a
  sentence for people, and what it is about.
- Answers may gain members; ignore those you do not know. Request bodies refuse members that are not known.
- Roles: *viewer* may look, *operator* may also decide on approvals, *admin* may also change things. To *anyone* a path
  is open that takes a secret of its own.

| request | role | what it does |
|---|---|---|
"""


def page(made: dict[str, Any]) -> str:
    rows = [
        f"| `{method.upper()} {path}` | {operation['x-interlock-role']} | {operation['summary']} |"
        for path, operations in made["paths"].items()
        for method, operation in operations.items()
    ]
    return _HEAD + "\n".join(rows) + "\n"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="tools/operator_api.py", description=f"Write {DOCUMENT} and {PAGE}.")
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date; write nothing")
    check = parser.parse_args(arguments).check
    made = document()
    texts = {DOCUMENT: json.dumps(made, indent=1, ensure_ascii=False) + "\n", PAGE: page(made)}
    for path, text in texts.items():
        if not check:
            (root / path).write_text(text, encoding="utf-8")
        elif not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text:
            print(f"{path} is out of date; run: python tools/operator_api.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
