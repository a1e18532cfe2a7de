"""What `make wheel` runs with the wheel installed in an empty environment: everything that ships is there and can be used."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import click

import duewheel
from duewheel import resources
from duewheel.adapters.avro import codec
from duewheel.core.model import Cancel


def main() -> None:
    package = Path(duewheel.__file__).parent
    if not package.is_relative_to(sys.prefix):
        sys.exit(f"this is not the installed wheel: {package}")
    for name in ("schemas", "topics", "infra/broker"):
        files = [path for path in resources.folder(name).iterdir() if path.is_file()]
        if not files:
            sys.exit(f"{name}/ is empty in the wheel")
        click.echo(f"  {name}: {len(files)} files")
    cancel = Cancel(job_id="a", created_ms=1, reach="DEFAULT")
    if codec.decode_command(codec.encode_cancel(cancel))[1] != cancel:
        sys.exit("a command does not come back as it went")
    click.echo(f"duewheel {version('duewheel')} works where nothing else is installed")


if __name__ == "__main__":
    main()
