"""The clients of a simulated fleet: they play a load's sessions and note what they see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..core.effects import Complete, Deliver, Reject, RequestReport
from ..core.events import RequestSubmitted
from ..core.ids import RequestId, Role
from ..core.sampling import Sampling
from .engine import END, Lengths
from .report import Record, Run
from .workload import Load, Session, Turn
from .world import World


@dataclass(slots=True, eq=False)
class _Playing:
    """One session, and the request it waits for."""

    session: Session
    begin: float
    ended: Callable[[], None]
    turns: int = 0
    thought: float = 0.0
    waiting: int = 0  # children that have not ended
    answer: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Open:
    playing: _Playing
    turn: Turn
    record: Record
    last_s: float = 0.0


class SimClients:
    """The text port of a simulated router. `even`: outputs of MD that come together were written one after the other since its last."""

    def __init__(
        self,
        world: World,
        load: Load,
        run: Run,
        lengths: Lengths,
        submit: Callable[[RequestSubmitted], None],
        *,
        even: bool,
        grain: int = 1,
    ) -> None:
        self._world, self._load, self._run, self._lengths, self._submit, self._even = (
            world,
            load,
            run,
            lengths,
            submit,
            even,
        )
        self._grain = grain
        self._open: dict[RequestId, _Open] = {}
        self._at_once = 0
        self._start_s = 0.0
        self._more = True
        self._sessions: Iterator[tuple[float, Session]] = iter(())

    def play(self, sessions: Iterator[tuple[float, Session]]) -> None:
        """From now on."""
        self._start_s = self._world.now()
        self._sessions = iter(sessions)
        for _ in range(self._load.at_once or 1):
            self._next_session()

    def stop(self, report_of: Callable[[RequestId], RequestReport | None]) -> None:
        """The run is over: whoever has had two outputs counts with what came, the others have failed."""
        for request, one in self._open.items():
            one.record.last_s = one.last_s if one.record.second_s is not None else self.now
            if one.record.second_s is None:
                one.record.error = "unfinished"
            if report := report_of(request):
                self._note(one.record, report)
        self._open.clear()

    @property
    def now(self) -> float:
        return self._world.now() - self._start_s

    @property
    def done(self) -> bool:
        return not (self._more or self._open or self._at_once)

    @property
    def under_way(self) -> int:
        return len(self._open)

    @property
    def _over(self) -> bool:
        return bool(self._load.duration_s) and self.now >= self._load.duration_s

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _next_session(self) -> None:
        """Closed loop: at once. Open loop: at its time, and then the one after it."""
        found = None if self._over else next(self._sessions, None)
        if found is None:
            self._more = False
            return
        when, session = found
        if self._load.closed:
            self._begin(session, self._next_session)
        else:
            self._at_once += 1
            self._world.call_later(max(0.0, when - self.now), lambda: self._on_time(session))

    def _on_time(self, session: Session) -> None:
        self._at_once -= 1
        self._begin(session, lambda: None)
        self._next_session()

    def _begin(self, session: Session, ended: Callable[[], None]) -> None:
        playing = _Playing(session, self.now, ended)
        self._at_once += 1
        self._take_turn(playing)

    def _take_turn(self, playing: _Playing) -> None:
        turn = None if playing.turns and self._over else playing.session.next(playing.answer)
        if turn is None:
            return self._end(playing)
        playing.turns += 1
        if playing.turns > 1:
            think_s = playing.session.think_s
            playing.thought += think_s
            self._world.call_later(think_s, lambda: self._ask(playing, turn))
        else:
            self._ask(playing, turn)

    def _end(self, playing: _Playing) -> None:
        self._at_once -= 1
        self._run.sessions.append((playing.session.name, playing.begin, self.now, playing.thought))
        playing.ended()

    def _ask(self, playing: _Playing, turn: Turn) -> None:
        name = RequestId(f"{playing.session.name}/{playing.turns}")
        record = Record(playing.session.name, playing.turns - 1, self.now, self.now, prompt=len(turn.ids) * self._grain)
        self._run.records.append(record)
        self._open[name] = _Open(playing, turn, record)
        self._lengths.set(name, turn.outputs)
        limit = max(self._load.max_tokens, turn.outputs)
        self._submit(RequestSubmitted(name, turn.ids, Sampling(limit, stop_token_ids=(END,))))

    # -- the text port ------------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver) -> None:
        one, now, count = self._open[effect.request], self.now, len(effect.written.ids)
        record = one.record
        if record.first_s is None:
            record.first_s = now
        elif count:
            self._gaps(one, now, count, even=self._even and effect.speaker is Role.MAIN)
        if record.second_s is None and record.outputs + count > 1:
            record.second_s = now
        record.outputs += count
        one.last_s = now

    def _gaps(self, one: _Open, now: float, count: int, *, even: bool) -> None:
        passed = now - one.last_s
        gap, times = (passed / count, count) if even else (passed, 1)
        one.record.gap_s = max(one.record.gap_s, gap)
        self._run.gaps.add(gap, times)

    def complete(self, effect: Complete) -> None:
        one = self._open.pop(effect.request)
        one.record.last_s = one.last_s
        self._note(one.record, effect.report)
        self._answered(effect.request, one, tuple(effect.report.ids))

    def _note(self, record: Record, report: RequestReport) -> None:
        record.route, record.epochs = report.route, report.epochs
        record.hit = {role: tokens * self._grain for role, tokens in report.hit.items()}
        for role, start, stop in report.spoke:
            record.shares[role] = record.shares.get(role, 0) + stop - start
        for transfer in report.transfers:
            if transfer["way"] == "wan":
                record.wan_bytes += int(transfer["bytes"])
                record.wan_s = max(record.wan_s, float(transfer["seconds"]))
            else:
                record.near_bytes += int(transfer["bytes"])

    def reject(self, effect: Reject) -> None:
        one = self._open.pop(effect.request)
        one.record.error = effect.code
        one.record.last_s = self.now
        self._answered(effect.request, one, ())

    def _answered(self, request: RequestId, one: _Open, answer: tuple[int, ...]) -> None:
        self._lengths.forget(request)
        playing = one.playing
        playing.answer = answer
        if one.record.error:
            return self._end(playing)
        if not one.turn.children or self._over:
            return self._take_turn(playing)
        playing.waiting = len(one.turn.children)
        for child in one.turn.children:
            self._begin(child, lambda: self._child_ended(playing))

    def _child_ended(self, playing: _Playing) -> None:
        playing.waiting -= 1
        if not playing.waiting:
            self._take_turn(playing)
