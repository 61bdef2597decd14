"""The program `interlock`, also `python -m interlock`."""

import sys


def main() -> int:
    from interlock.cli.app import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
