"""Finds the app that MODULE:APP names, for workers and for their child processes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from duewheel.core.errors import BadConfiguration
from duewheel.worker.app import App


def load(app_path: str) -> App:
    """Imports the app that MODULE:APP names.

    Raises:
        BadConfiguration: there is no such module, no such app in it, or the app has no tasks.
    """
    module_name, colon, attribute = app_path.partition(":")
    if not module_name or not colon or not attribute:
        raise BadConfiguration(f"{app_path!r} does not name an app; write MODULE:APP, as in shop.jobs:app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # found, but it imports something that is missing: the traceback says what
        raise BadConfiguration(f"module {module_name!r} was not found from {Path.cwd()} or where Python looks for modules") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        found = "has no such name" if app is None else f"has a {type(app).__name__} there"
        others = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has an App called {others[0]}" if others else "; write: app = duewheel.App()"
        raise BadConfiguration(f"{app_path} is not a duewheel.App: module {module_name} {found}{hint}")
    if not app.tasks:
        raise BadConfiguration(
            f"{app_path} has no tasks; decorate functions with @{attribute}.task, and import their modules in {module_name}"
        )
    return app
