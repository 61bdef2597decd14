"""A stand-in for the client of a container engine: records what it is told, keeps images in a file, and runs, for
`run`, a real stdio server with the environment a container would get. No engine is needed, so composition, digests and
the way of values can be seen where none runs. A container stays until it is removed, as one does whose client had to be
killed: running/ID beside it holds its labels.

    state.json beside it: {"registry": {"name:tag": "sha256:…"}, "images": {"sha256:…": ["name", …]}, "server": [argv]}
"""

import json
import os
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNNING = HERE / "running"


def main() -> int:
    words = sys.argv[1:]
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"argv": words, "env": dict(os.environ)}) + "\n")
    state = json.loads((HERE / "state.json").read_text())
    match words:
        case ["pull", "--quiet", image]:
            name, _, wanted = image.partition("@")
            digest = wanted if wanted in state["registry"].values() else state["registry"].get(name)
            if digest is None:
                print(f"Error response from daemon: manifest for {image} not found", file=sys.stderr)
                return 1
            state["images"][digest] = name
            (HERE / "state.json").write_text(json.dumps(state))
            print(image)
            return 0
        case ["image", "inspect", image]:
            for digest, name in reversed(state["images"].items()):
                repository = name.rpartition(":")[0] or name
                if image in {name, digest, f"{repository}@{digest}"}:
                    known = [] if name in state.get("local", []) else [f"{repository}@{digest}"]
                    print(json.dumps([{"Id": digest, "RepoDigests": known}]))
                    return 0
            print("Error: No such image", file=sys.stderr)
            return 1
        case ["ps", *rest]:
            label = next(word for word in rest if word.startswith("label=")).removeprefix("label=")
            kept = [each.name for each in RUNNING.glob("*") if label in each.read_text().splitlines()]
            print("\n".join([*state.get("containers", []), *kept]))
            return 0
        case ["rm", "--force", *ids]:
            for id in ids:
                (RUNNING / id).unlink(missing_ok=True)
            return 0
        case ["run", *rest]:
            names = [rest[place + 1] for place, word in enumerate(rest) if word == "-e"]
            inside = {name: os.environ[name] for name in names if name in os.environ}
            image = next(place for place, word in enumerate(rest) if "sha256:" in word)
            published = [rest[place + 1] for place, word in enumerate(rest) if word == "-p"]
            port = published[0].split(":")[1] if published else ""
            server = [word.replace("{port}", port) for word in state["server"]]
            RUNNING.mkdir(exist_ok=True)
            labels = [rest[place + 1] for place, word in enumerate(rest) if word == "--label"]
            (RUNNING / secrets.token_hex(32)).write_text("\n".join(labels))
            os.execve(server[0], [*server, *rest[image + 1 :]], {"PATH": os.defpath} | inside)
    print(f"unknown: {words}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
