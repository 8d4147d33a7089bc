"""A queue of requests for a thread that does the work, several similar ones in a batch.

The queue is bounded. Cancelled requests are removed from it, so the thread never starts work that nobody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from regard.explorer.http.metrics import SECONDS, SIZES, ServiceMetrics

T = TypeVar("T")
BatchWork = Callable[[Hashable, list[Any]], Sequence[object]]
"""From requests with the same key to an answer each; an answer that is an exception is raised where it was asked."""

logger = logging.getLogger("regard.explorer")


class Busy(Exception):
    """The line is full; try again after so many seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Late(Exception):
    """No answer in time; ``begun`` says whether the work had started."""

    def __init__(self, seconds: float, begun: bool) -> None:
        what = "it took" if begun else "the request waited"
        super().__init__(f"{what} more than {seconds:g} s; try again, or ask for less")
        self.begun = begun


class Closing(Exception):
    """The service is being stopped."""

    def __init__(self) -> None:
        super().__init__("the service is being stopped; try again")


@dataclass(eq=False)
class _Pending:
    key: Hashable
    item: object
    weight: int
    answer: asyncio.Future[object]
    arrived: float = field(default_factory=time.monotonic)
    begun: bool = False


class _Thread:
    """A thread that does one call after the other. The process can end while it is stuck in one: it is a daemon."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._forever, name=name, daemon=True)
        self._since: float | None = None  # start time of the running call

    @property
    def seconds(self) -> float:
        """How long the call has been running; 0 where none is."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """After the call that runs it ends."""
        self._calls.put(None)

    async def run(self, call: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._calls.put(lambda: self._answer(future, call))
        return await asyncio.wrap_future(future)

    def _forever(self) -> None:
        while (job := self._calls.get()) is not None:
            job()
            del job  # what it holds is not kept until the next comes

    def _answer(self, future: Future[T], call: Callable[[], T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._since = time.monotonic()
        try:
            answer = call()
        except BaseException as error:
            self._since = None
            future.set_exception(error)
        else:
            self._since = None
            future.set_result(answer)


class Queue:
    """Runs ``work`` in one thread, on up to ``batch`` requests of one key and of ``weight`` together at most.

    The first of a batch waits up to ``gather`` seconds for others; while the thread is busy they gather anyway.
    """

    def __init__(
        self,
        work: BatchWork,
        *,
        name: str,
        limit: int,
        metrics: ServiceMetrics,
        batch: int = 1,
        weight: int = 1,
        gather: float = 0.0,
    ) -> None:
        self.name, self._work, self._limit, self._metrics = name, work, limit, metrics
        self._batch, self._weight, self._gather = batch, weight, gather
        self._jobs: deque[_Pending] = deque()
        self._arrived, self._full = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._running: list[_Pending] = []
        self._seconds = 0.05  # that a request takes, a moving average
        self._thread = _Thread(f"regard-{name}")
        self._task: asyncio.Task[None] | None = None
        metrics.gauge(f"{name}_waiting", lambda: len(self._jobs))
        metrics.gauge(f"{name}_waiting_limit", lambda: limit)
        metrics.gauge(f"{name}_running", lambda: len(self._running))
        metrics.gauge(f"{name}_running_seconds", lambda: self.seconds)

    def open(self) -> None:
        """Begins to work; called in a running event loop."""
        self._thread.open()
        self._task = asyncio.get_running_loop().create_task(self._forever())

    async def close(self, seconds: float = 0.0) -> None:
        """Accepts no more requests, works on the queue for up to so many seconds, refuses the rest, and stops."""
        self._closing = True
        self._arrived.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
        for job in (*self._running, *self._jobs):
            if not job.answer.done():
                job.answer.set_exception(Closing())
        self._jobs.clear()
        self._thread.close()

    @property
    def seconds(self) -> float:
        """How long the thread has been at what it does; 0 where it does nothing."""
        return self._thread.seconds

    async def ask(self, key: Hashable, item: object, *, seconds: float, weight: int = 1) -> Any:
        """The answer to one request; raises :class:`Busy`, :class:`Late` or :class:`Closing`."""
        if self._closing:
            raise Closing
        if len(self._jobs) >= self._limit:
            raise Busy(max(1, min(30, round(self._seconds * len(self._jobs) + 0.5))))
        job = _Pending(key, item, weight, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrived.set()
        if len(self._jobs) >= self._batch:
            self._full.set()
        try:
            await asyncio.wait({job.answer}, timeout=seconds)
            if not job.answer.done():
                raise Late(seconds, job.begun)
            return job.answer.result()
        finally:  # also where the client has gone and this was cancelled
            job.answer.cancel()
            if not job.begun and job in self._jobs:
                self._jobs.remove(job)
                self._metrics.count(f"{self.name}_given_up")

    # --- the worker's side ---

    async def _forever(self) -> None:
        while self._jobs or not self._closing:
            await self._arrived.wait()
            await self._wait_for_others()
            jobs = self._take()
            if jobs:
                await self._run(jobs)
            if not self._jobs and not self._closing:
                self._arrived.clear()

    async def _wait_for_others(self) -> None:
        if not self._jobs or len(self._jobs) >= self._batch or self._closing:
            return
        left = self._jobs[0].arrived + self._gather - time.monotonic()
        if left > 0:
            self._full.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._full.wait(), left)

    def _take(self) -> list[_Pending]:
        """The first in the line, and those behind it that can be done with it."""
        taken: list[_Pending] = []
        weight = 0
        for job in self._jobs:
            if taken and (job.key != taken[0].key or weight + job.weight > self._weight):
                continue
            taken.append(job)
            weight += job.weight
            if len(taken) == self._batch:
                break
        for job in taken:
            self._jobs.remove(job)
            job.begun = True
        return taken

    async def _run(self, jobs: list[_Pending]) -> None:
        start, self._running = time.monotonic(), jobs
        answers = await self._answers(jobs)
        seconds, self._running = time.monotonic() - start, []
        self._seconds += 0.1 * (seconds / len(jobs) - self._seconds)
        self._metrics.observe(f"{self.name}_batch_requests", len(jobs), SIZES)
        self._metrics.observe(f"{self.name}_batch_seconds", seconds, SECONDS)
        for job, answer in zip(jobs, answers, strict=True):
            if job.answer.done():  # the request was cancelled
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)

    async def _answers(self, jobs: list[_Pending]) -> Sequence[object]:
        """A batch that fails as a whole is done again one by one, so that a request spoils none but itself."""
        key, items = jobs[0].key, [job.item for job in jobs]
        try:
            return await self._thread.run(lambda: self._work(key, items))
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            logger.warning("a batch of %d failed and is run one by one: %r", len(jobs), error)
            return [(await self._answers([job]))[0] for job in jobs]
