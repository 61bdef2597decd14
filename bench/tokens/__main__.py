"""python -m bench.tokens [--collect] [--sizes N,..] [--write]: count, print, and keep in docs/benchmarks.md."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from bench.tokens import tokenizer
from bench.tokens.corpus import collect, corpus
from bench.tokens.page import keep
from bench.tokens.surfaces import Surface, surfaces
from bench.tokens.tasks import TASKS, TOOLS

SIZES = (10, 50, 100, 500)


class Conversation:
    """What a model read and wrote, in order. Each turn it reads everything before it once more, unless that is kept."""

    def __init__(self, opening: str) -> None:
        self.texts = [opening]
        self.written: list[int] = []
        self.turns = 0

    def read(self, text: str) -> None:
        self.texts.append(text)

    def write(self, text: str) -> None:
        self.written.append(len(self.texts))
        self.texts.append(text)
        self.turns += 1


def catalogue(size: int, found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The ten tools of the tasks, and others beside them in the order of the list, until there are enough."""
    wanted = {(name.partition(".")[0], name.partition(".")[2]) for name in TOOLS}
    chosen = {server: [one for one in tools if (server, one["name"]) in wanted] for server, tools in found.items()}
    left = size - sum(len(tools) for tools in chosen.values())
    for server, tools in found.items():
        more = [one for one in tools if (server, one["name"]) not in wanted][: max(left, 0)]
        chosen[server] += more
        left -= len(more)
    return {server: tools for server, tools in chosen.items() if tools}


def measured(surface: Surface) -> dict[str, Any]:
    conversations = []
    opening = surface.open()
    for task in TASKS:
        said = Conversation(opening)
        if hasattr(surface, "forget"):
            surface.forget()
        for step in task:
            surface.do(step, said)
        conversations.append(said)
    counts = iter(tokenizer.count([text for said in conversations for text in said.texts]))
    return {"listed_bytes": len(opening.encode()), **_summed(conversations, counts)}


def _summed(conversations: list[Conversation], counts: Iterator[int]) -> dict[str, Any]:
    """`context`: what stands in the context at the end of a task. `processed`: what is read over all its turns."""
    context = processed = turns = listed = 0
    for said in conversations:
        tokens = [next(counts) for _ in said.texts]
        listed = tokens[0]
        context += sum(tokens)
        processed += sum(sum(tokens[:place]) for place in said.written)
        turns += said.turns
    number = len(conversations)
    return {
        "listed": listed,
        "context": round(context / number),
        "processed": round(processed / number),
        "calls": turns / number,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", action="store_true", help="list the tools of real servers first (minutes)")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    if options.collect:
        collect()
    found = corpus()
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for size in map(int, options.sizes.split(",")):
        servers = catalogue(size, found)
        with surfaces(servers) as every:
            table[str(size)] = {surface.name: measured(surface) for surface in every}
        print(size, json.dumps(table[str(size)]))
    if options.write:
        keep(table, sum(len(tools) for tools in found.values()), len(found))


if __name__ == "__main__":
    main()
