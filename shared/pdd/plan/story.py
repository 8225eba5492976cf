"""One request's life as text: a line per event that somebody would tell, `time  who  what happened -> what it made them do`.

Outputs that follow each other are told as ranges. Counters, beats, chunks and repeats of what stands already are not told.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core import effects as fx
from ..core import events as ev
from ..core import messages as msg
from ..core.ids import RequestId
from ..sim.world import Node

REPEATED = (msg.Assignment, msg.Ticket, msg.MainReady, msg.Ask, msg.Release)


@dataclass(slots=True)
class Run:
    """Outputs [start, stop) that one node wrote, followed or delivered, one after the other."""

    at: float
    who: str
    what: str
    then: str
    start: int
    stop: int

    def line(self) -> str:
        return _line(self.at, self.who, f"{self.what} {_range(self.start, self.stop)}", self.then)


@dataclass(slots=True)
class Story:
    """`check` is for a House, or for who watches one."""

    request: RequestId
    lines: list[str] = field(default_factory=list)
    _runs: list[Run] = field(default_factory=list)
    _told: dict[object, None] = field(default_factory=dict)

    def check(self, node: Node, event: ev.Event, effects: list[fx.Effect]) -> None:
        at, who = node.world.now(), _name(node)
        mine = [effect for effect in effects if _request_of(effect) == self.request]
        for what, then, start, stop in _outputs(event, mine):
            self._run(Run(at, who, what, then, start, stop))
        done = [word for effect in mine if (word := _done(event, effect)) and self._is_new(who, effect)]
        said = _said(event) if request_in(event) == self.request else ""
        if done or said:
            self._flush()
            self.lines.append(_line(at, who, (said or _cause(event)) + _plan(mine), ", ".join(done)))

    def tell(self, at: float, what: str) -> None:
        """Something that was done to the house."""
        self._flush()
        self.lines.append(_line(at, "*", what, ""))

    def text(self) -> str:
        self._flush()
        return "".join(f"{line}\n" for line in self.lines)

    def _is_new(self, who: str, effect: fx.Effect) -> bool:
        """What is repeated until it is answered is told once; but a Yield, each time."""
        if not isinstance(effect, fx.Send) or not isinstance(effect.message, REPEATED):
            return True
        message = effect.message
        key = (
            who,
            effect.to.name,
            type(message),
            message.epoch,
            getattr(message, "serial", getattr(message, "start", 0)),
        )
        new = key not in self._told
        self._told[key] = None
        return new

    def _run(self, run: Run) -> None:
        for known in self._runs:
            if (known.who, known.what, known.then, known.stop) == (run.who, run.what, run.then, run.start):
                known.stop = run.stop
                return
        self._runs.append(run)

    def _flush(self) -> None:
        self.lines += [run.line() for run in self._runs]
        self._runs.clear()


def _line(at: float, who: str, what: str, then: str) -> str:
    return f"{at:7.2f}  {who:<6}  {what}" + (f" -> {then}" if then else "")


def _range(start: int, stop: int) -> str:
    return f"{start}" if stop <= start + 1 else f"{start}..{stop - 1}"


def _name(node: Node) -> str:
    return str(node.machine.me.name)  # type: ignore[attr-defined]


# -- whose it is ------------------------------------------------------------------------------------------------------


def request_in(event: ev.Event) -> RequestId | None:
    """Whose event it is; of a step, the first request that it wrote for."""
    if isinstance(event, ev.Heard):
        return _request_of_message(event.message)
    if isinstance(event, ev.StepDone):
        return event.written[0].request if event.written else None
    transfer = getattr(event, "transfer", None)
    if transfer is not None:
        return RequestId(transfer.rsplit(".", 3)[0])
    key = getattr(event, "key", None)
    return key.request if key is not None else getattr(event, "request", None)


def _request_of(effect: fx.Effect) -> RequestId | None:
    if isinstance(effect, fx.Send):
        return _request_of_message(effect.message)
    transfer = getattr(effect, "transfer", None)
    if transfer is not None:
        return RequestId(transfer.rsplit(".", 3)[0])
    key = getattr(effect, "key", None)
    return key.request if key is not None else getattr(effect, "request", None)


def _request_of_message(message: msg.Message) -> RequestId | None:
    if isinstance(message, msg.Tokens):
        return message.written[0].request if message.written else None
    return getattr(message, "request", None) or getattr(message, "query", None)


# -- what is told -----------------------------------------------------------------------------------------------------


def _outputs(event: ev.Event, effects: list[fx.Effect]) -> Iterator[tuple[str, str, int, int]]:
    """(what, then, start, stop) of outputs that were written, followed or delivered."""
    receivers: dict[tuple[int, int], list[str]] = {}
    for effect in effects:
        match effect:
            case fx.Send(to, msg.Tokens(parts)) if isinstance(event, ev.StepDone):
                for part in parts:
                    receivers.setdefault((part.start, part.stop), []).append(to.name)
            case fx.Deliver(_, written, speaker):
                yield "delivers", f"client, by {speaker}", written.start, written.stop
            case fx.AppendIds(_, start, ids):
                yield "follows", "", start, start + len(ids)
    for (start, stop), names in receivers.items():
        yield "writes", ", ".join(names), start, stop


def _said(event: ev.Event) -> str:
    """What is told even if nothing follows from it."""
    match event:
        case ev.RequestSubmitted(_, ids, sampling):
            return f"asked for {sampling.max_tokens} after {len(ids)} ids"
        case ev.RequestEnded(_, reason):
            return f"client is {reason}"
        case ev.Heard(sender, _, msg.Refused(_, _, reason)):
            return f"{sender.name} refuses: {reason}"
        case ev.Heard(sender, _, msg.CutAnswer(_, _, promised)):
            return f"{sender.name} {'promises to stay' if promised else 'has yielded already'}"
        case ev.TransferFailed(_, reason):
            return f"transfer failed: {reason}"
        case ev.KvDamaged(_, reason):
            return f"damaged: {reason}"
    return ""


def _cause(event: ev.Event) -> str:
    match event:
        case ev.Heard(sender, _, message):
            return f"{type(message).__name__} of {sender.name}"
        case ev.TimerFired():
            return "tick"
        case ev.StepDone():
            return "step"
        case ev.SequenceOpened(_, have):
            return f"opened, has {have}"
    return type(event).__name__


def _plan(effects: list[fx.Effect]) -> str:
    """Which epoch begins, if one does."""
    for effect in effects:
        if isinstance(effect, fx.Send) and isinstance(effect.message, msg.Assignment):
            return f", epoch {effect.message.epoch} from {effect.message.base}"
    return ""


def _done(event: ev.Event, effect: fx.Effect) -> str:
    match effect:
        case fx.Send(to, message):
            return _sent(event, to.name, message)
        case fx.Speak(_, stop):
            return "Speak" if stop is None else f"Speak before {stop}"
        case fx.Complete(_, finish):
            return f"Complete: {finish.reason}"
        case fx.Reject(_, status, code):
            return f"Reject: {status} {code}"
        case fx.OpenTransfer(receiver=receiver):
            return f"OpenTransfer {receiver.name}"
        case fx.CloseSequence() | fx.Hush() | fx.ImportKv():
            return type(effect).__name__
    return ""


def _sent(event: ev.Event, to: str, message: msg.Message) -> str:
    kind = type(message).__name__
    match message:
        case msg.Tokens(parts):
            told = ", ".join(_range(part.start, part.stop) for part in parts)
            return "" if isinstance(event, ev.StepDone) else f"Tokens {told} to {to}"
        case msg.Yield(_, _, fence):
            return f"Yield at {fence} to {to}"
        case msg.Ask(_, _, start):
            return f"Ask {to} from {start}"
        case msg.Ticket(_, _, _, serial):
            return f"Ticket {to}" + (f" again, serial {serial}" if serial else "")
        case msg.KvDelivered() | msg.Lookup() | msg.Found():
            return ""
    return f"{kind} {to}"
