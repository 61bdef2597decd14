"""MCP servers on the bare standard library, honest or bad, of either era, as real processes.

python raw.py FEATURE[,FEATURE|FAULT...] [--era legacy|modern|both] [--stdio | --http PORT]

python raw.py all                                  every honest feature, stdio, both eras
python raw.py echo,asks --era legacy --http 0      the first line on stdout is the URL
python raw.py echo --http 0                        .../mcp, and HTTP+SSE at .../sse (legacy eras)
python raw.py many-tools --count 10000 --page 500
python raw.py wrong-id --era modern                a fault alone also offers `echo`
python raw.py --list                               every feature and fault with a line about it
"""

import argparse
import sys

if "--http" not in sys.argv:  # started hundreds of times in a test run: without TLS, asyncio is there a fifth sooner
    sys.modules.setdefault("ssl", None)

import asyncio

from rawserver import stdio
from rawserver.faults import faults
from rawserver.features import ALL, FEATURES, USUAL
from rawserver.guard import Guard, add_arguments
from rawserver.server import Server
from rawserver.text import reading_deeply


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("behaviour", nargs="?", default="echo", help="features and faults, separated by commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    pipe = parser.add_mutually_exclusive_group()
    pipe.add_argument("--stdio", action="store_true", help="the default")
    pipe.add_argument("--http", type=int, metavar="PORT", help="0: any free port")
    parser.add_argument("--speaks", default="2025-11-25", help="the newest legacy version it knows")
    parser.add_argument("--name", default="raw")
    parser.add_argument("--instructions")
    parser.add_argument("--page", type=int, help="items a page; without it lists come whole")
    parser.add_argument("--ttl-ms", type=int, default=0)
    parser.add_argument("--cache-scope", choices=("private", "public"), default="private")
    parser.add_argument("--count", type=int, default=10_000, help="tools of many-tools")
    parser.add_argument("--ms", type=int, default=200, help="delay of slow and slow-calls")
    parser.add_argument("--bytes", type=int, default=8 * 1024 * 1024, help="size of huge-answer")
    parser.add_argument("--depth", type=int, default=100_000, help="of deep-nesting")
    parser.add_argument("--token", help="HTTP: 401 unless this bearer token is sent")
    parser.add_argument("--forget-after", type=int, metavar="CALLS", help="HTTP: a legacy session dies after that many")
    parser.add_argument(
        "--stream", action="store_true", help="HTTP: answer with an event stream even when one is needless"
    )
    add_arguments(parser)
    return parser.parse_args()


def build(options: argparse.Namespace) -> Server:
    server = Server(
        options.era,
        name=options.name,
        instructions=options.instructions,
        page=options.page,
        ttl_ms=options.ttl_ms,
        cache_scope=options.cache_scope,
        newest=options.speaks,
    )
    bad = faults(options)
    named = options.behaviour.split(",")
    unknown = [name for name in named if name not in FEATURES and name not in bad and name != "all"]
    if unknown:
        sys.exit(f"no such behaviour: {', '.join(unknown)} (--list shows them)")
    features = [name for name in named if name in FEATURES] or ([] if "all" in named else list(USUAL))
    for name in dict.fromkeys([*(ALL if "all" in named else ()), *features]):
        FEATURES[name](server, options)
    server.faults = [bad[name]() for name in named if name in bad]
    return server


def describe(options: argparse.Namespace) -> None:
    made = {name: make() for name, make in faults(options).items()}
    for name, thing in [*FEATURES.items(), *made.items()]:
        print(f"{name:20}{(thing.__doc__ or '').strip().splitlines()[0]}")


async def run(options: argparse.Namespace) -> None:
    server = build(options)
    if options.http is None:
        await stdio.serve(server)
        if "stubborn" in options.behaviour:
            await asyncio.Event().wait()
        return
    from rawserver import http

    pipe = http.HttpPipe(server, token=options.token, always_stream=options.stream, forget_after=options.forget_after)
    if options.guard is not None:
        pipe.guard = Guard(options)
        pipe.guard.offer(server)
    await http.serve(pipe, options.http)


if __name__ == "__main__":
    given = arguments()
    if given.list:
        describe(given)
    else:
        try:
            with reading_deeply():
                asyncio.run(run(given))
        except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
            pass
