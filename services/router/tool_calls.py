"""Tool calls in an answer's text, found as it is written: text in, what is content and what belongs to calls out.

Promises, whatever the split of the text: the same content and the same calls. Arguments that follow the name, as formats have
it, are to the character what the model wrote. What only looked like a call is content. Whitespace around calls is nobody's.
"""

import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

import orjson

from .tool_format import ToolFormat

LONGEST_HEAD = 512  # an object that has not named itself by then is read when it is whole


@dataclass(frozen=True, slots=True)
class CallPart:
    """`name` and `id` come once, with a call's first part; the `arguments` of its parts follow each other."""

    index: int
    arguments: str
    name: str = ""
    id: str = ""


class _State(Enum):
    TEXT = auto()  # content, which may hold the begin of a call
    BEGUN = auto()  # an object must follow
    OBJECT = auto()
    AFTER = auto()  # an object is whole: its end, or another one
    PLAIN = auto()  # content to the end


class ToolCalls:
    """`names`: the functions there are. Where calls have no mark of their own, only these are calls."""

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self.count = 0
        self.whole = 0  # calls that are complete
        self._form = form
        self._names = None if form.begin else names
        self._state = _State.TEXT if form.begin else _State.BEGUN
        self._elsewhere = _State.TEXT if form.begin else _State.PLAIN
        self._listing = False
        self._rest = ""  # not understood yet
        self._begun = ""  # what became content if no call came of it
        self._object = _Object(form.arguments, self._names)
        self._content: list[str] = []
        self._parts: list[CallPart] = []
        self._steps: dict[_State, Callable[[], bool]] = {
            _State.TEXT: self._text,
            _State.BEGUN: self._begin,
            _State.OBJECT: self._read,
            _State.AFTER: self._after,
            _State.PLAIN: self._plain,
        }

    def push(self, text: str) -> tuple[str, list[CallPart]]:
        """What is certain now."""
        self._rest += text
        while self._rest and self._steps[self._state]():
            continue
        return self._taken()

    def flush(self) -> tuple[str, list[CallPart]]:
        """At the end: what was held back. A call that was cut short keeps the arguments it has."""
        if self._state is _State.OBJECT and not self._object.named:
            self._content.append(self._begun + self._object.raw)
        elif self._state is _State.BEGUN:
            self._content.append(self._begun + self._rest)
        elif self._state in (_State.TEXT, _State.PLAIN) and not (self.count and self._rest.isspace()):
            self._content.append(self._rest)
        self._rest = ""
        return self._taken()

    def _taken(self) -> tuple[str, list[CallPart]]:
        content, self._content = "".join(self._content), []
        parts, self._parts = self._parts, []
        return content, parts

    # -- one step each; false: more text is needed --------------------------------------------------------------------

    def _text(self) -> bool:
        begin, rest = self._form.begin, self._rest
        at = rest.find(begin)
        if at >= 0:
            certain = rest[:at].rstrip()
            self._content.append(certain)
            self._begun, self._rest = rest[len(certain) : at] + begin, rest[at + len(begin) :]
            self._state = _State.BEGUN
            self._listing = False
            return True
        held = next(size for size in range(min(len(begin) - 1, len(rest)), -1, -1) if rest.endswith(begin[:size]))
        certain = rest[: len(rest) - held].rstrip()
        self._content.append(certain)
        self._rest = rest[len(certain) :]
        return False

    def _begin(self) -> bool:
        fresh = self._rest.lstrip()
        if not fresh:
            return False
        if self._form.listed and not self._listing and fresh[0] == "[":
            self._pass(fresh[1:])
            self._listing = True
        elif fresh[0] == "{":
            self._pass(fresh)
            self._object, self._state = _Object(self._form.arguments, self._names), _State.OBJECT
        else:
            self._give_up()
        return True

    def _read(self) -> bool:
        used = self._object.push(self._rest)
        self._rest = self._rest[used:]
        if self._form.begin or self._object.whole:  # without a mark, only a whole object shows that it is a call
            self._take_parts()
        if not self._object.whole:
            return False
        if self._object.named:
            self.whole += 1
            self._begun, self._state = "", _State.AFTER
        else:
            self._rest = self._object.raw + self._rest
            self._give_up()
        return True

    def _after(self) -> bool:
        fresh, end = self._rest.lstrip(), self._form.end
        if end and fresh.startswith(end):
            self._rest, self._state = fresh[len(end) :], _State.TEXT
            return True
        if not fresh or (end and end.startswith(fresh)):
            return False
        if fresh[0] in ",;":
            self._rest, self._state = fresh[1:], _State.BEGUN
        elif fresh[0] == "{":
            self._rest, self._state = fresh, _State.BEGUN
        elif self._form.listed and fresh[0] == "]":
            self._rest, self._state = fresh[1:], _State.TEXT
        else:
            self._rest, self._state = fresh, self._elsewhere
        return True

    def _plain(self) -> bool:
        self._content.append(self._rest)
        self._rest = ""
        return False

    def _pass(self, rest: str) -> None:
        self._begun += self._rest[: len(self._rest) - len(rest)]
        self._rest = rest

    def _give_up(self) -> None:
        """No call after all."""
        self._content.append(self._begun)
        self._begun, self._state = "", self._elsewhere

    def _take_parts(self) -> None:
        for name, arguments in self._object.take():
            if name:
                self._parts.append(CallPart(self.count, arguments, name, f"call_{secrets.token_hex(12)}"))
                self.count += 1
            elif arguments:
                self._parts.append(CallPart(self.count - 1, arguments))


class _Object:
    """One JSON object, read up to its last brace. Arguments stream where they follow the name."""

    def __init__(self, arguments: str, names: Collection[str] | None) -> None:
        self.raw = ""
        self.whole = False
        self.named = False
        self._head = re.compile(rf'\{{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"{arguments}"\s*:\s*(?=\{{)')
        self._keys = (arguments, "arguments", "parameters")
        self._names = names  # None: any
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._inner: int | None = None  # where the first object or list inside ends
        self._from = 0  # arguments before this place were taken
        self._found: list[tuple[str, str]] = []

    def push(self, text: str) -> int:
        """How much of the text belongs to the object."""
        start = len(self.raw)
        for i, char in enumerate(text):
            self._step(char, start + i + 1)
            if self.whole:
                text = text[: i + 1]
                break
        self.raw += text
        if not self.named and start <= LONGEST_HEAD:
            self._find_name()
        if self.named:
            self._take_arguments()
        elif self.whole:
            self._parse()
        return len(text)

    def take(self) -> list[tuple[str, str]]:
        """(name, "") once, and then ("", arguments) as they come."""
        found, self._found = self._found, []
        return found

    def _step(self, char: str, stop: int) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped, self._quoted = char == "\\", char != '"'
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.whole = self._depth <= 0
            if self._depth == 1 and self._inner is None:
                self._inner = stop

    def _find_name(self) -> None:
        head = self._head.match(self.raw)
        name = _loads(head[1]) if head and head.end() <= LONGEST_HEAD else None
        if head and isinstance(name, str) and self._fits(name):
            self.named, self._from = True, head.end()
            self._found.append((name, ""))

    def _take_arguments(self) -> None:
        stop = len(self.raw) if self._inner is None else self._inner
        if stop > self._from:
            self._found.append(("", self.raw[self._from : stop]))
            self._from = stop

    def _parse(self) -> None:
        """Keys in another order, or none of a call's."""
        call = _loads(self.raw)
        if isinstance(call, dict) and isinstance(call.get("name"), str) and self._fits(call["name"]):
            given: object = next((call[key] for key in self._keys if key in call), {})
            arguments = given if isinstance(given, str) else orjson.dumps(given).decode()
            self.named = True
            self._found += [(call["name"], ""), ("", arguments)]

    def _fits(self, name: str) -> bool:
        return self._names is None or name in self._names


def _loads(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
