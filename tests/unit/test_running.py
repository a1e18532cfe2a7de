"""Commands that run until they are told to stop."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from duewheel.cli.running import Stop, connected
from duewheel.core.errors import BrokerUnavailable

PROGRAM = """
import signal, time
from duewheel.cli.running import Stop
stop = Stop()
print("ready", flush=True)
while not stop:
    time.sleep(0.01)
print("stopping", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_the_second_ends_the_process(second: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "stopping\n"
        child.send_signal(second)
        assert child.wait(10) == -second


class Never(Stop):
    def __init__(self) -> None:
        self._asked = False


def away() -> None:
    raise BrokerUnavailable("nobody answers")


def test_a_cluster_that_is_away_is_waited_for_as_long_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, told = [0.0], [0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))

    def delayed(error: BrokerUnavailable) -> None:
        told[0] += 1

    with pytest.raises(BrokerUnavailable, match="nobody answers"):
        connected(away, delayed, 60, Never())
    assert 40 < now_s[0] <= 60
    assert told[0] == 8


def test_nothing_is_waited_for_when_told_to_stop() -> None:
    stop = Never()

    def delayed(error: BrokerUnavailable) -> None:
        stop._asked = True

    assert connected(away, delayed, 60, stop) is None
