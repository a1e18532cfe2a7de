"""Finds the files that ship beside the code: schemas, topic declarations, the broker's settings.

In a wheel they lie inside the package; in a checkout they lie at the top, where people look for them.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """The folder `name` ("schemas", "topics", "infra/broker") of the installed package or of the checkout.

    Raises:
        FileNotFoundError: the installation is not whole.
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is missing from this installation of duewheel; install it again")
