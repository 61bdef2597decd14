"""The process that runs the hooks of one driver. It is started by path and uses only Python's standard library.

The node writes one JSON object per line to standard input. The process answers each with one line on standard output,
{"id", "value"} or {"id", "error", "code"?}. The first line has id 0; the process sends it after loading driver.py, to
describe its hooks. Everything that driver.py prints goes to standard error.

The sandbox around this process confines driver.py. The guard in this module only reports violations earlier and more
clearly: it raises PermissionError, while in the sandbox the network is unreachable and files are missing.
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
_REFUSED: Final = (
    *("socket.", "ssl.", "urllib.", "http.", "ftplib.", "smtplib.", "imaplib.", "poplib.", "nntplib.", "telnetlib."),
    *("subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "pty."),
    *("os.kill", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink"),
    *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "os.chdir", "shutil.", "tempfile.", "sqlite3."),
    *("ctypes.", "mmap.", "syslog.", "webbrowser.", "signal.pthread_kill", "resource."),
)


def main(package: str, folder: str) -> None:
    """Load driver.py from `folder` and answer the node's requests to run its hooks.

    `package` is the folder that contains this file.
    """
    lines, answer = _open_exchange()
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),  # no further process or thread
    ):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))
    hooks = _import_hooks(package)
    sys.path.append(folder)
    # Formatting an error reads files and imports modules. Once the guard is set, it could not.
    traceback.format_exception(ValueError())
    sys.addaudithook(_make_guard(folder, package))
    try:
        module = _load("driver", f"{folder}/{ENTRY}")
        if len(hooks.handles) != 1:
            message = f"it calls define_driver {len(hooks.handles)} times; call it once"
            raise hooks.DriverRefused("entry_invalid", message)
    except BaseException as error:
        code = error.code if isinstance(error, hooks.DriverRefused) else None
        answer({"id": 0, "error": _describe(error), "code": code})
        return
    handle = hooks.handles[0]
    # Every public function that driver.py has, except define_driver, is a transform.
    transforms = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType)
        and not name.startswith("_")
        and not value.__module__.startswith("interlock.")
    }
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
            answer({"id": request["id"], "value": _run_hook(request, handle, transforms, hooks)})
        except BaseException as error:
            answer({"id": request["id"], "error": _describe(error)})


def _open_exchange() -> tuple[Iterator[bytes], Callable[[dict[str, Any]], None]]:
    """Return an iterator of the node's requests, one line each, and a function that writes an answer.

    Both use new file descriptors, so a `print` in driver.py cannot corrupt the answers.
    """
    lines = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        while data:
            data = data[out.write(data) :]

    return iter(lines), answer


def _load(name: str, path: str, folders: list[str] | None = None) -> types.ModuleType:
    """Import a file as a module with the given name. `folders` is its search path if the file is a package."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None  # noqa: S101  (a path that ends with .py)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_hooks(package: str) -> types.ModuleType:
    """Load the module that contains define_driver, and register it as `interlock`. A driver.py can then import
    define_driver without the rest of Interlock.
    """
    interlock = types.ModuleType("interlock")
    interlock.__path__ = []
    sys.modules["interlock"] = interlock
    hooks = _load("interlock.drivers.hooks", f"{package}/__init__.py", [package])
    for name in hooks.__all__:
        setattr(interlock, name, getattr(hooks, name))
    interlock.hooks = hooks  # type: ignore[attr-defined]
    return hooks


def _make_guard(folder: str, package: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook for Python that raises PermissionError if driver.py does something forbidden, for example
    opens a socket.
    """
    stdlib = os.path.realpath(os.__file__).rpartition(os.sep)[0]
    library = (stdlib, *(path for path in sys.path if path.endswith("lib-dynload")))
    roots = tuple(os.path.realpath(root) + os.sep for root in (folder, package, *library))

    def may_read(path: Any) -> bool:
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(roots)

    def guard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            is_writing = bool(flags & _WRITING)
        elif event in ("os.listdir", "os.scandir"):
            path, is_writing = args[0] if args and args[0] is not None else ".", False
        elif event.startswith(_REFUSED):
            raise PermissionError(errno.EPERM, f"driver.py reaches nothing beyond its arguments ({event})")
        else:
            return
        # An int is a file descriptor: the check was made when it was opened.
        if not isinstance(path, int) and (is_writing or not may_read(path)):
            raise PermissionError(errno.EACCES, PATH_REFUSED, os.fsdecode(path))

    return guard


def _run_hook(request: dict[str, Any], handle: Any, transforms: dict[str, Any], hooks: types.ModuleType) -> Any:
    """Run the requested hook and return its result.

    Every exception of the hook is raised unchanged. Raise TypeError or ValueError if build_arguments or
    parse_tool_result returns something other than a dict that JSON can represent. Results of transforms are not checked
    here. Raise ValueError for an unknown hook.
    """
    match request["do"]:
        case "transform":
            return {name: transforms[function](value) for name, (function, value) in request["values"].items()}
        case "build_arguments":
            value = handle.build_arguments(hooks.BuildArgumentsArgs(**request["args"]))
        case "parse_tool_result":
            value = handle.parse_tool_result(hooks.ParseToolResultArgs(**request["args"]))
        case _:
            raise ValueError("no such hook")
    if not isinstance(value, dict):
        raise TypeError(f"{request['do']} returns a dict, not {type(value).__name__}")
    # Written once here, so that a value that is no JSON is reported as the hook's error.
    json.dumps(value, allow_nan=False)
    return value


def _describe(error: BaseException) -> str:
    """Print the error with its traceback to standard error, and return a one-line description for the node."""
    try:
        traceback.print_exception(error)
        return f"{type(error).__name__}: {error}"[:ERROR_CHARS]
    except BaseException:
        return type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
