"""Plays sessions against a client: closed loop (so many at once) or open loop (each at its time, whatever else is under way)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from pdd.sim.report import Record, Run
from pdd.sim.workload import Load, Session, Turn


class Asks(Protocol):
    def now(self) -> float: ...

    async def ask(self, turn: Turn, record: Record) -> tuple[int, ...]: ...


class Player:
    """`began` and `ended` are told of each request, for whoever watches."""

    def __init__(self, client: Asks, load: Load, run: Run, ended: Callable[[Record], None]) -> None:
        self._client, self._load, self._run, self._ended = client, load, run, ended
        self.under_way = 0

    async def play(self, sessions: Iterator[tuple[float, Session]]) -> None:
        """Returns when every session that began has ended."""
        if self._load.closed:
            waiting = iter(session for _, session in sessions)
            async with asyncio.TaskGroup() as group:
                for _ in range(self._load.at_once):
                    group.create_task(self._in_turn(waiting))
            return
        async with asyncio.TaskGroup() as group:
            async for intended, session in self._in_time(sessions):
                group.create_task(self._session(session, intended))

    async def _in_turn(self, waiting: Iterator[Session]) -> None:
        for session in waiting:
            if self._over:
                return
            await self._session(session, self._client.now())

    async def _in_time(self, sessions: Iterator[tuple[float, Session]]) -> AsyncIterator[tuple[float, Session]]:
        for when, session in sessions:
            await asyncio.sleep(max(0.0, when - self._client.now()))
            yield when, session

    @property
    def _over(self) -> bool:
        return bool(self._load.duration_s) and self._client.now() >= self._load.duration_s

    async def _session(self, session: Session, intended: float) -> None:
        begin, thought, number = intended, 0.0, 0
        turn = session.next(())
        while turn is not None:
            record = Record(session.name, number, intended, intended)
            self._run.records.append(record)
            self.under_way += 1
            answer = await self._client.ask(turn, record)
            self.under_way -= 1
            self._ended(record)
            await self._children(turn)
            number += 1
            turn = None if record.error or self._over else session.next(answer)
            if turn is not None:
                await asyncio.sleep(session.think_s)
                thought += session.think_s
                intended = self._client.now()
        self._run.sessions.append((session.name, begin, self._client.now(), thought))

    async def _children(self, turn: Turn) -> None:
        if turn.children and not self._over:
            async with asyncio.TaskGroup() as group:
                for child in turn.children:
                    group.create_task(self._session(child, self._client.now()))
