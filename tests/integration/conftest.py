"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Installation
from tests.integration.desk import Desk


@pytest.fixture
def desk(installation: Installation, tmp_path: Path) -> Iterator[Desk]:
    """An installation of one's own, with everything to try it."""
    desk = Desk(installation.kafka, installation.topology, tmp_path)
    yield desk
    desk.close()
