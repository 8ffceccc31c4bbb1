"""Files of the checkout for a run's source lines: a run names a file by the end of its path."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

MOST_FILES: Final = 200_000
"""Files looked through; in a larger tree names stay as the run has them."""
_OTHERS: Final = ("node_modules", "site-packages", "__pycache__")


def in_checkout(root: str, files: Iterable[str]) -> dict[str, str]:
    """Return of each file the path from the folder `root`, if exactly one file there ends in that name.

    If no file or several files there do, the file is not in the result.
    """
    wanted = {file: file.replace(os.sep, "/").lstrip("/") for file in files}
    by_name: dict[str, list[str]] = {}
    for file, end in wanted.items():
        if os.path.isabs(file):
            near = os.path.relpath(file, root)
            if not near.startswith(".."):
                wanted[file] = near.replace(os.sep, "/")
        by_name.setdefault(end.rpartition("/")[2], []).append(file)
    matches: dict[str, list[str]] = {}
    seen = 0
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _OTHERS)
        seen += len(names)
        if seen > MOST_FILES:
            return {}
        for name in by_name.keys() & set(names):
            path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            for file in by_name[name]:
                if f"/{path}".endswith(f"/{wanted[file]}"):
                    matches.setdefault(file, []).append(path)
    return {file: paths[0] for file, paths in matches.items() if len(paths) == 1}
