"""Networks that can be cut: a process reaches the brokers over its own lane, and the lane can be taken away while all else goes on.

A broker tells clients where it is, so a client that is sent through a proxy once would go past it the next time. Therefore each lane is a
listener of its own at every broker, which advertises the proxy's port:

    processor-1 ──► 21531 (proxy) ──► 18271 (listener LANE1 of node 1, advertised as 21531)
                    21532         ──► 18272 (of node 2)

Cut as networks are: connections stay open and nothing comes through, then all of it comes late (`Cut.BOTH`); or what is asked arrives and
the answers do not, so that nobody knows what was done (`Cut.ANSWERS`); or connections break and are refused (`Cut.REFUSED`).

All proxies live in one thread, in one asyncio loop. What goes through costs about 50 µs a piece of up to 64 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

HOST: Final = "127.0.0.1"
_PIECE_BYTES: Final = 65_536
_CALL_S: Final = 10.0
# Ports are a prefix and the node's number: 2153 and 1 are 21531. Below those that outgoing connections take theirs from.
_PREFIX_MIN, _PREFIX_MAX = 1_000, 3_200

T = TypeVar("T")


class Cut(Enum):
    """How a lane is cut."""

    BOTH = "both ways"
    ANSWERS = "answers"
    REFUSED = "refused"


@dataclass
class Lane:
    """One process's way to the brokers.

    Attributes:
        name: of the listener, in capitals.
        prefix: of the proxies' ports.
        upstream: of the listeners' ports.
    """

    name: str
    prefix: int
    upstream: int
    refuses: bool = False
    requests: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def bootstrap_servers(self, nodes: Sequence[int]) -> str:
        return ",".join(f"{HOST}:{self.prefix}{node}" for node in nodes)


def listeners(lanes: Sequence[Lane]) -> Mapping[str, str]:
    """Settings of brokers that have these lanes (`DevCluster(settings=…)`)."""
    own = "".join(f",{lane.name}://{HOST}:{lane.upstream}$node_id" for lane in lanes)
    advertised = "".join(f",{lane.name}://{HOST}:{lane.prefix}$node_id" for lane in lanes)
    protocols = "".join(f",{lane.name}:PLAINTEXT" for lane in lanes)
    return {
        "listeners": f"PLAINTEXT://{HOST}:$port,CONTROLLER://{HOST}:$controller_port{own}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:$port{advertised}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}",
    }


class Lanes:
    """Proxies for a number of lanes, for as long as a `with` block.

    Args:
        count: how many lanes.
        nodes: the brokers' numbers, of one digit each.
    """

    def __init__(self, count: int, nodes: Sequence[int]) -> None:
        self._nodes = nodes
        prefixes = free_prefixes(2 * count, nodes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lanes", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._pipes: set[asyncio.Task[None]] = set()
        self.lanes = [Lane(f"LANE{n + 1}", prefixes[2 * n], prefixes[2 * n + 1]) for n in range(count)]

    def cut(self, lane: Lane, how: Cut) -> None:
        self._call(self._cut(lane, how))

    def mend(self, lane: Lane) -> None:
        self._call(self._mend(lane))

    def __enter__(self) -> Self:
        self._thread.start()
        for lane in self.lanes:
            self._call(self._open(lane))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- inside the loop ---

    async def _open(self, lane: Lane) -> None:
        await self._mend(lane)
        for node in self._nodes:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int = node) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._pipes.add(task)
                try:
                    await self._connect(lane, node, reader, writer)
                except asyncio.CancelledError:  # asyncio's streams would print it
                    pass
                finally:
                    self._pipes.discard(task)

            self._servers.append(await asyncio.start_server(accept, HOST, int(f"{lane.prefix}{node}")))

    async def _connect(self, lane: Lane, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until either side ends it."""
        with _counted(lane, writer):
            if lane.refuses:
                return
            await lane.requests.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(HOST, int(f"{lane.upstream}{node}"))
            except OSError:
                return  # the broker is down; so is this connection
            with _counted(lane, far_writer):
                pumps = [
                    asyncio.ensure_future(_pump(reader, far_writer, lane.requests)),
                    asyncio.ensure_future(_pump(far_reader, writer, lane.answers)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)

    async def _cut(self, lane: Lane, how: Cut) -> None:
        lane.answers.clear()
        if how is not Cut.ANSWERS:
            lane.requests.clear()
        if how is Cut.REFUSED:
            lane.refuses = True
            for writer in list(lane.writers):
                writer.transport.abort()

    async def _mend(self, lane: Lane) -> None:
        lane.refuses = False
        lane.requests.set()
        lane.answers.set()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._pipes):
            task.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_S)


@contextlib.contextmanager
def _counted(lane: Lane, writer: asyncio.StreamWriter) -> Any:
    lane.writers.add(writer)
    try:
        yield
    finally:
        lane.writers.discard(writer)
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passable: asyncio.Event) -> None:
    """Carries bytes one way, while the way is passable."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            await passable.wait()
            writer.write(data)
            await writer.drain()


def free_prefixes(count: int, nodes: Sequence[int]) -> list[int]:
    """Numbers that make, with each of the nodes' digits behind them, a port that nobody listens on."""
    found: set[int] = set()
    while len(found) < count:
        prefix = random.randrange(_PREFIX_MIN, _PREFIX_MAX)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for node in nodes:
                probes.enter_context(socket.socket()).bind((HOST, int(f"{prefix}{node}")))
            found.add(prefix)
    return list(found)
