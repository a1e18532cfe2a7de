"""Waiting for jobs to end.

    handle = client.schedule("render", {"film": 7})
    result = handle.wait(timeout=60)       result.phase, result.value
    result = await handle                  the same in asyncio; bound it with asyncio.timeout

Nobody is asked: what becomes of jobs is read where their owners write it, on the state topic, by one thread and one consumer for all that
a client waits for. The thread begins with the first wait and ends a while after the last. It reads the partitions of the jobs that are
waited for, and no others, and wakes whoever it finds an answer for (`reading` says how). A wait that is answered by what was read before
costs some 30 µs and no thread. A first one begins with two questions to the broker; from then on each record of its partition costs 1 µs,
and what the Kafka client takes.

Meanwhile the broker may be away: waits go on until their own timeout. What they cannot survive is the end of the client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from typing import Final, cast

import structlog

from duewheel.client.reading import Answer, Asks, Decision, Done, JobResult, JobStatus, Reading, Sought, StateCodec, Waiter
from duewheel.core.errors import BrokenInvariant, CallerError, DuewheelError, EnvironmentFailure, TopicMissing, UndecodableRecord
from duewheel.ports import Clock, Record, StateLog

log = structlog.get_logger(__name__)

# A poll cannot be interrupted, so this is how long somebody who waits for a partition that is not read yet waits for the others.
_POLL_S: Final = 0.02
_BATCH_RECORDS_MAX: Final = 1_000  # a few milliseconds, in which nobody else can begin to wait

_REST_MS: Final = 10_000  # a partition that nobody waits for any more is read for so long: whoever waits for one job, waits for the next
_BACKOFF_S: Final = 0.2
_BACKOFF_MAX_S: Final = 5.0
_CLOSING_S: Final = 15.0  # two questions to a broker that is away, and a little


class Results:
    """What a client's handles wait with. Safe to use from several threads.

    Args:
        open_log: makes a reader of the state topic; it connects when first used.
        codec: decodes what is read.
        clock: measures rests.
    """

    def __init__(self, open_log: Callable[[], StateLog], codec: StateCodec, clock: Clock) -> None:
        self._open_log = open_log
        self._codec = codec
        self._clock = clock
        self._changed = threading.Condition()  # guards all that follows
        self._readings: dict[int, Reading] = {}
        self._homeless: list[Waiter] = []  # whose partition is not known
        self._thread: threading.Thread | None = None
        self._trouble: EnvironmentFailure | None = None
        self._closed = False

    def wait(self, sought: Sought, timeout: timedelta | float | None) -> JobResult:
        """See `JobHandle.wait`."""
        answer = self._wait(sought, timeout, "had not ended")
        assert isinstance(answer, JobResult)
        return answer

    def decision(self, sought: Sought, timeout: timedelta | float | None) -> Decision:
        """See `JobHandle.decision`."""
        answer = self._wait(sought._replace(asks=Asks.DECISION), timeout, "was not decided about")
        assert isinstance(answer, Decision)
        return answer

    def status(self, sought: Sought, timeout: timedelta | float | None) -> JobStatus:
        """See `ChangeHandle.wait`."""
        answer = self._wait(sought._replace(asks=Asks.STATUS), timeout, "had not been changed")
        assert isinstance(answer, JobStatus)
        return answer

    def _wait(self, sought: Sought, timeout: timedelta | float | None, how_it_stands: str) -> JobResult | Decision | JobStatus:
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        waiter = self._begin(sought)
        try:
            return waiter.future.result(timeout_s)
        except TimeoutError:
            if not waiter.future.cancel():  # the answer came just now
                return waiter.future.result()
            raise TimeoutError(f"job {sought.job_id} {how_it_stands} after {timeout_s:g} s: {self._describe(waiter)}") from None
        finally:
            waiter.future.cancel()  # also where Ctrl-C ended the wait
            self._leave(waiter)

    def future(self, sought: Sought) -> Future[JobResult]:
        """Its result is the job's. Cancelling it ends the wait."""
        waiter = self._begin(sought)
        waiter.future.add_done_callback(lambda _: self._leave(waiter))
        return cast("Future[JobResult]", waiter.future)

    def close(self) -> None:
        """Ends all waits. Closing twice is fine."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(_CLOSING_S)

    # --- in the threads of those who wait ---

    def _begin(self, sought: Sought) -> Waiter:
        waiter = Waiter(sought)
        with self._changed:
            if self._closed:
                raise _closed(sought)
            if sought.partition < 0:
                self._homeless.append(waiter)
                judgement = None
            else:
                judgement = self._reading(sought.partition).add(waiter)
            if not isinstance(judgement, Answer):
                self._rouse()
                return waiter
        _answer([(waiter, judgement)])
        return waiter

    def _reading(self, partition: int) -> Reading:
        reading = self._readings.get(partition)
        if reading is None:
            reading = self._readings[partition] = Reading(partition, self._codec)
        return reading

    def _rouse(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="duewheel-results", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _leave(self, waiter: Waiter) -> None:
        with self._changed:
            reading = self._readings.get(waiter.sought.partition)
            if reading is not None:
                reading.drop(waiter)
            elif waiter in self._homeless:
                self._homeless.remove(waiter)

    def _describe(self, waiter: Waiter) -> str:
        with self._changed:
            reading = self._readings.get(waiter.sought.partition)
            try:
                known = "nothing is known of it" if reading is None else reading.describe(waiter)
            except UndecodableRecord as error:
                known = str(error)
            return known if self._trouble is None else f"{known} ({self._trouble})"

    # --- in the thread that reads ---

    def _run(self) -> None:
        """Until nobody has waited for a while."""
        watch = _Watch(self._open_log)
        failure: DuewheelError | None = None
        backoff_s = _BACKOFF_S
        try:
            while self._goes_on():
                try:
                    self._turn(watch)
                    self._trouble, backoff_s = None, _BACKOFF_S
                except TopicMissing as error:
                    failure = error
                    return
                except EnvironmentFailure as error:
                    log.warning("results.unavailable", error=str(error))
                    watch.close()
                    with self._changed:
                        self._trouble = error
                        self._changed.wait_for(lambda: self._closed, backoff_s)
                    backoff_s = min(_BACKOFF_MAX_S, 2 * backoff_s)
        except Exception as error:
            log.exception("results.failed", error=str(error))
            failure = BrokenInvariant(f"waiting for jobs failed: {type(error).__name__}: {error}; please report it")
        finally:
            self._end(failure)
            watch.close()

    def _goes_on(self) -> bool:
        """Whether there is anything to read for. If not, whoever waits next begins another thread."""
        with self._changed:
            if self._closed or not (self._homeless or self._readings):
                self._thread = None
                return False
            return True

    def _end(self, failure: DuewheelError | None) -> None:
        """Tells everybody that there will be no answer."""
        with self._changed:
            if self._thread is not threading.current_thread() and not self._closed:
                return  # it ended since nobody waits
            self._thread = None
            waiters = [*self._homeless, *(waiter for reading in self._readings.values() for waiter in reading.waiters)]
            self._homeless.clear()
            self._readings.clear()
        _answer([(waiter, failure or _closed(waiter.sought)) for waiter in waiters])

    def _turn(self, watch: _Watch) -> None:
        self._settle_homeless(watch)
        with self._changed:
            for partition in self._rested():
                del self._readings[partition]
                watch.release(partition)
            readings = list(self._readings.values())
        if any(reading.wanted_ms is not None and watch.reads(reading.partition) for reading in readings):
            # Another consumer: one that is put back might still hand out what it had fetched, and nothing would tell that from the rest.
            watch.close()
        for reading in readings:
            if not watch.reads(reading.partition):
                self._start(watch, reading)
        records = watch.poll()
        done: Done = []
        with self._changed:
            for reading in readings:
                done += reading.fold(records.get(reading.partition, ()))
                done += reading.reach(watch.log.reached(reading.partition))
        _answer(done)

    def _rested(self) -> list[int]:
        """The partitions for which nobody has waited for a while."""
        now_ms = self._clock.steady_ms()
        for reading in self._readings.values():
            if not reading.is_idle:
                reading.idle_since_ms = now_ms
        return [number for number, reading in self._readings.items() if now_ms - reading.idle_since_ms >= _REST_MS]

    def _settle_homeless(self, watch: _Watch) -> None:
        with self._changed:
            homeless = self._homeless[:]
        for waiter in homeless:
            partition = watch.log.partition_of(waiter.key)
            with self._changed:
                if waiter not in self._homeless:
                    continue
                self._homeless.remove(waiter)
                waiter.sought = waiter.sought._replace(partition=partition)
                judgement = self._reading(partition).add(waiter)
            if isinstance(judgement, Answer):
                _answer([(waiter, judgement)])

    def _start(self, watch: _Watch, reading: Reading) -> None:
        """Reads a partition from where it is wanted, or goes on where reading was interrupted."""
        with self._changed:
            since_ms = reading.wanted_ms
        if since_ms is None:
            watch.assign(reading.partition, reading.next_offset)
            return
        found = watch.log.find(reading.partition, since_ms)
        with self._changed:
            reading.begin(found.since_ms, found.offset, found.end)
        watch.assign(reading.partition, found.offset)


class _Watch:
    """The reader of the state topic, made when it is needed, and what it reads."""

    def __init__(self, open_log: Callable[[], StateLog]) -> None:
        self._open_log = open_log
        self._log: StateLog | None = None
        self._assigned: set[int] = set()

    @property
    def log(self) -> StateLog:
        if self._log is None:
            self._log = self._open_log()
        return self._log

    def reads(self, partition: int) -> bool:
        return partition in self._assigned

    def assign(self, partition: int, offset: int) -> None:
        self.log.assign(partition, offset)
        self._assigned.add(partition)

    def release(self, partition: int) -> None:
        if partition in self._assigned:
            self._assigned.remove(partition)
            self.log.release(partition)

    def poll(self) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {}
        for record in self.log.poll(_POLL_S, _BATCH_RECORDS_MAX):
            found.setdefault(record.partition(), []).append(record)
        return found

    def close(self) -> None:
        log, self._log = self._log, None
        self._assigned.clear()
        if log is not None:
            log.close()


def _answer(done: Done) -> None:
    """Outside the lock, since it wakes threads and calls back."""
    for waiter, answer in done:
        try:
            if isinstance(answer, DuewheelError):
                waiter.future.set_exception(answer)
            else:
                waiter.future.set_result(answer)
        except InvalidStateError:
            pass  # they went away meanwhile


def _closed(sought: Sought) -> CallerError:
    return CallerError(f"the client was closed while it waited for job {sought.job_id}, or before; wait first, or with another client")
