"""Files with what was measured on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import write_text

ELSEWHERE = "set GRAPHFUSE_DATA_DIR to another folder"


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
    except OSError as error:
        raise GraphfuseError(f"{path}: cannot be written: {error.strerror or error}; {ELSEWHERE}") from error
    try:
        write_text(path, json.dumps(document, indent=1) + "\n")
    except GraphfuseError as error:
        raise GraphfuseError(f"{error}; {ELSEWHERE}") from error
    return path
