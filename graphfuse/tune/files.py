"""Files with what was measured on this machine."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from graphfuse.ir.errors import GraphfuseError


def data_folder() -> Path:
    """Where measurements of this machine are kept: ``$GRAPHFUSE_DATA_DIR``, else the user's data folder."""
    chosen = os.environ.get("GRAPHFUSE_DATA_DIR")
    if chosen:
        return Path(chosen)
    try:
        import platformdirs
    except ImportError:
        return Path.home() / ".local" / "share" / "graphfuse"
    return Path(platformdirs.user_data_dir("graphfuse"))


def write_json(path: Path, document: Any) -> Path:
    """Writes a file in one step, its folder too where there is none. Raises GraphfuseError when that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
        Path(temporary).replace(path)
    except OSError as error:
        raise GraphfuseError(f"{path}: cannot be written: {error.strerror or error}; set GRAPHFUSE_DATA_DIR to another folder") from error
    return path
