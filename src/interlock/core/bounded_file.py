"""Reading of regular files with a limit on their size."""

import stat
from pathlib import Path


def read_bounded(path: Path, limit: int) -> bytes | str | None:
    """Return the content of the file, a text that says why it cannot be read, or None if the file does not exist."""
    try:
        described = path.stat()
        if not stat.S_ISREG(described.st_mode):
            return "it is not a regular file"
        if described.st_size > limit:
            return f"it is larger than {limit // 1024} KiB"
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return f"it cannot be read ({getattr(error, 'strerror', None) or 'bad path'})"
    return data if len(data) <= limit else f"it is larger than {limit // 1024} KiB"
