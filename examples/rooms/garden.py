""".venv/bin/python examples/rooms/garden.py [--config FILE]: a node with the room "garden" and two agents.

It ends with Ctrl-C. A person comes in from another terminal:
  ./interlock rooms join garden --config examples/rooms/interlock.toml
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
AGENTS = {"planner": "restricted", "sensors": "full"}


def interlock(*words: str, config: str) -> list[str]:
    return [sys.executable, "-m", "interlock", *words, "--config", config]


def token(participant: str, privilege: str, config: str) -> str:
    asked = ("--for", "room", "--name", participant, "--topic", "garden", "--participant", participant)
    command = interlock("access", "token", *asked, "--privilege", privilege, "--json", config=config)
    return str(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["token"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default=str(HERE / "interlock.toml"))
    config = parser.parse_args().config
    with contextlib.ExitStack() as stack:
        # In sessions of their own: Ctrl-C ends this program, which ends them.
        serve = interlock("serve", "--json", config=config)
        node = subprocess.Popen(serve, stdout=subprocess.PIPE, start_new_session=True)
        stack.callback(node.wait)
        stack.callback(node.terminate)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        text = ""
        while True:  # it tells where it is, in JSON, when it takes connections
            line = node.stdout.readline() if node.stdout is not None else b""
            text += line.decode() or sys.exit("the node did not start")
            with contextlib.suppress(json.JSONDecodeError):
                said = json.loads(text)
                address = said["node"]["url"] if "node" in said else sys.exit(f"the node did not start: {said}")
                break
        for name, privilege in AGENTS.items():
            environment = {**os.environ, "ROOM_ADDRESS": address, "ROOM_TOKEN": token(name, privilege, config)}
            agent = subprocess.Popen(
                [sys.executable, str(HERE / f"{name}.py")], env=environment, start_new_session=True
            )
            stack.callback(agent.wait)
            stack.callback(agent.terminate)
        print(f"the garden is open at {address}; come in with", flush=True)
        print(f"  ./interlock rooms join garden --config {os.path.relpath(config)}", flush=True)
        node.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
