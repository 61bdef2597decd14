"""The process that runs the hooks of one driver. Started by path, with Python's own library and nothing else.

In: the folder of the driver; then one JSON object a line. Out: one line for each, the first when driver.py is loaded:
{"id", "value"} or {"id", "error", "code"?}. What driver.py prints goes to standard error.

The sandbox around this process is what keeps driver.py in. The guard here only says so earlier and in plainer words:
PermissionError where the sandbox would show an empty network and missing files.
"""

import errno
import importlib.util
import json
import os
import resource
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

ENTRY: Final = "driver.py"
MEMORY_BYTES: Final = 1 << 30
ERROR_CHARS: Final = 500
PATH_REFUSED: Final = "driver.py reads no file outside of its folder and writes none"

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOOKING: Final = ("os.listdir", "os.scandir")
_REFUSED: Final = (
    *("socket.", "ssl.", "urllib.", "http.", "ftplib.", "smtplib.", "imaplib.", "poplib.", "nntplib.", "telnetlib."),
    *("subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "pty."),
    *("os.kill", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink"),
    *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "os.chdir", "shutil.", "tempfile.", "sqlite3."),
    *("ctypes.", "mmap.", "syslog.", "webbrowser.", "signal.pthread_kill", "resource."),
)


def main(package: str, folder: str) -> None:
    """Load driver.py from `folder` and answer the node's requests to run its hooks.

    `package`: the folder of this file.
    """
    lines, answer = _wires()
    _limit()
    define = _importable(package)
    sys.path.append(folder)
    # What an error needs to be told is read before nothing can be.
    traceback.format_exception(ValueError())
    sys.addaudithook(_guard(os.path.realpath(folder), os.path.realpath(package), _library()))
    try:
        module, handle = _load(folder, define)
    except BaseException as failed:
        code = failed.code if isinstance(failed, define.DriverRefused) else None
        answer({"id": 0, "error": _describe(failed), "code": code})
        return
    transforms = _transforms(module)
    description = {
        "manifest": handle.manifest,
        "builds": handle.build_arguments is not None,
        "parses": handle.parse_tool_result is not None,
        "execute": handle.execute,
        "transforms": sorted(transforms),
    }
    answer({"id": 0, "value": description})
    for line in lines:
        request = json.loads(line)
        try:
            answer({"id": request["id"], "value": _run(request, handle, transforms, define)})
        except BaseException as failed:
            answer({"id": request["id"], "error": _describe(failed)})


def _wires() -> tuple[Iterator[bytes], Callable[[dict[str, Any]], None]]:
    """Return the request lines and the function that writes an answer.

    Both use new file descriptors, so that a `print` in driver.py cannot disturb the exchange.
    """
    lines = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        while data:
            data = data[out.write(data) :]

    return iter(lines), answer


def _limit() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),  # no further process or thread
    ):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))


def _importable(package: str) -> types.ModuleType:
    """Make `from interlock import define_driver` work without the rest of the package."""
    around = types.ModuleType("interlock")
    around.__path__ = []
    sys.modules["interlock"] = around
    spec = importlib.util.spec_from_file_location(
        "interlock.drivers.hooks", f"{package}/__init__.py", submodule_search_locations=[package]
    )
    assert spec is not None and spec.loader is not None  # noqa: S101  (a path that ends with .py)
    hooks = importlib.util.module_from_spec(spec)
    sys.modules["interlock.drivers.hooks"] = hooks
    spec.loader.exec_module(hooks)
    for name in hooks.__all__:
        setattr(around, name, getattr(hooks, name))
    around.hooks = hooks  # type: ignore[attr-defined]
    return sys.modules["interlock.drivers.hooks.define"]


def _library() -> tuple[str, ...]:
    """Return the folders of Python's standard library."""
    stdlib = os.path.realpath(os.__file__).rpartition(os.sep)[0]
    return (stdlib, *(os.path.realpath(path) for path in sys.path if path.endswith("lib-dynload")))


def _guard(folder: str, package: str, library: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    roots = tuple(root + os.sep for root in (folder, package, *library))

    def may_read(path: Any) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return (real + os.sep).startswith(roots)

    def guard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if not isinstance(path, int) and (flags & _WRITING or not may_read(path)):
                raise PermissionError(errno.EACCES, PATH_REFUSED, os.fsdecode(path))
        elif event in _LOOKING:
            path = args[0] if args and args[0] is not None else "."
            if not isinstance(path, int) and not may_read(path):
                raise PermissionError(errno.EACCES, PATH_REFUSED, os.fsdecode(path))
        elif event.startswith(_REFUSED):
            raise PermissionError(errno.EPERM, f"driver.py reaches nothing beyond its arguments ({event})")

    return guard


def _load(folder: str, define: types.ModuleType) -> tuple[types.ModuleType, Any]:
    spec = importlib.util.spec_from_file_location("driver", f"{folder}/{ENTRY}")
    assert spec is not None and spec.loader is not None  # noqa: S101  (a path that ends with .py)
    module = importlib.util.module_from_spec(spec)
    sys.modules["driver"] = module
    spec.loader.exec_module(module)
    if len(define.made) != 1:
        calls = len(define.made)
        raise define.DriverRefused("entry_invalid", f"it calls define_driver {calls} times; call it once")
    return module, define.made[0]


def _transforms(module: types.ModuleType) -> dict[str, Callable[[Any], Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and not name.startswith("_")
        and not value.__module__.startswith("interlock.")
    }


def _run(request: dict[str, Any], handle: Any, transforms: dict[str, Any], define: types.ModuleType) -> Any:
    match request["do"]:
        case "transform":
            return {name: transforms[function](value) for name, (function, value) in request["values"].items()}
        case "build_arguments":
            value = handle.build_arguments(define.BuildArgumentsArgs(**request["args"]))
        case "parse_tool_result":
            value = handle.parse_tool_result(define.ParseToolResultArgs(**request["args"]))
        case _:
            raise ValueError("no such hook")
    if not isinstance(value, dict):
        raise TypeError(f"{request['do']} returns a dict, not {type(value).__name__}")
    json.dumps(value, allow_nan=False)  # here, so that what is none is told as the hook's error
    return value


def _describe(failed: BaseException) -> str:
    try:
        traceback.print_exception(failed)
        return f"{type(failed).__name__}: {failed}"[:ERROR_CHARS]
    except BaseException:
        return type(failed).__name__


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
