"""The lines of the program that a run of tests executes, its nodes and servers included.

Every Python process of a copied tree loads this while it starts (see `tree.py`). While the copy has a file to write
to, each line of a function of the program is appended to it when it is first executed. A process that is
killed has written what it did. The file is opened for every line, because a process may close what it inherited.
"""

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any


def install(sources: str, output: str) -> None:
    """Follows the functions of the modules under `sources` in this process and its copies."""
    unseen: dict[CodeType, set[int]] = {}

    def note(line: bytes) -> None:
        try:
            out = os.open(output, os.O_WRONLY | os.O_APPEND)
        except OSError:
            return  # a sandbox, or the run is over
        os.write(out, line)
        os.close(out)

    def lines_of(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            left = unseen[frame.f_code]
            if frame.f_lineno in left:
                left.discard(frame.f_lineno)
                note(f"{frame.f_code.co_filename}:{frame.f_lineno}\n".encode())
            if not left:
                frame.f_trace_lines = False
        return lines_of

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        left = unseen.get(code)
        if left is None:
            is_ours = code.co_filename.startswith(sources) and code.co_flags & 0x2  # a function, not a module or class
            left = unseen[code] = {line for *_, line in code.co_lines() if line} if is_ours else set()
        return lines_of if left else None

    sys.settrace(calls)
    threading.settrace(calls)
