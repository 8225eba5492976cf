"""Can this grammar be compiled, and cheaply? Asked in a process of its own: some small texts take for ever, and only that can be ended.

Reads the text from standard input; says nothing where all is well, else why not. Compiles it as a speaker does, but for a tokenizer of
single bytes, which is there at once: what takes long is the text's own states, whatever the tokens.
"""

import resource
import subprocess
import sys
import time

from llguidance import LLMatcher, LLTokenizer

from .grammar import SILENT, limits

MOST_CPU_S = 0.25  # every speaker compiles it again, between two steps of its batch
PATIENCE_S = (
    20.0  # for a machine that has other things to do: what never ends has used up its processor time long before
)
MOST_BYTES = 1 << 30
TOO_LARGE = "it takes too long to compile; ask for less"


def probe(text: str) -> str:
    """Blocks; for a thread. Why the text cannot be used, empty if it can."""
    command = [sys.executable, "-m", "pdd.adapters.grammar_probe"]
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return TOO_LARGE
    return TOO_LARGE if done.returncode else done.stdout.decode()


def first_line(error: str) -> str:
    """The library's error without the place in the text, which is ours and not the client's."""
    line = error.partition("\n")[0]
    place, _, said = line.partition(": ")
    return said if place.startswith("at ") and said else line


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    text = sys.stdin.buffer.read().decode()
    began = time.process_time()
    matcher = LLMatcher(LLTokenizer("byte"), text, log_level=SILENT, limits=limits())
    if matcher.is_error():
        print(first_line(matcher.get_error()), end="")
    elif time.process_time() - began > MOST_CPU_S:
        print(TOO_LARGE, end="")


if __name__ == "__main__":
    main()
