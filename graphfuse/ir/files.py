"""Files read, and written in one step: beside their place first, then renamed. A reader sees the old file or the new one, never a part."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from graphfuse.ir.errors import GraphfuseError


def write_text(path: Path, text: str) -> None:
    """Writes a file in UTF-8. Raises GraphfuseError when that cannot be."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """As ``write_text``. A link stays one; what is no file (``/dev/null``, a pipe) is written to, never replaced."""
    temporary = None
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as stream:
                stream.write(data)
            return
        path = path.resolve() if path.is_symlink() else path
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
        raise GraphfuseError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_bytes(path: Path) -> bytes:
    """All of a file. Raises GraphfuseError when that cannot be."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise GraphfuseError(f"{path}: cannot be read: {error.strerror or error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
