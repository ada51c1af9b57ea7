"""JSON files of other systems: read with an error that names the file, written the same for the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError if the file is missing or holds something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a JSON object")
    return values


def as_json(values: Any) -> str:
    """A JSON file's text: the same for the same values."""
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
