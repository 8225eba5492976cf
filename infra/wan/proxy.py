"""A slow line between two sites on one machine, without root: `python -m infra.wan.proxy --help`."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from .control import serve_control
from .line import Line
from .state import Change

Address = tuple[str, int]


def address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def mapping(text: str) -> tuple[Address, Address]:
    listen, equals, target = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not LISTEN=TARGET")
    return address(listen), address(target)


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m infra.wan.proxy", description=__doc__)
    parser.add_argument("--rate-mbit", type=float, default=0, help="each way, shared by all connections; 0: no limit")
    parser.add_argument("--delay-ms", type=float, default=0, help="one way")
    parser.add_argument(
        "--control", type=address, required=True, metavar="HOST:PORT", help="HTTP: GET shows, POST changes"
    )
    for option, site in (("--map", "a"), ("--map-from-b", "b")):
        parser.add_argument(
            option, type=mapping, action="append", default=[], metavar="LISTEN=TARGET",
            help=f"both HOST:PORT; connections come from site {site}",
        )  # fmt: skip
    told = parser.parse_args(words)
    try:
        Change(told.rate_mbit, told.delay_ms)
    except ValueError as error:
        parser.error(str(error))
    return told


async def run(told: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT. The control port opens last: when it answers, the line is there."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    line = Line(told.rate_mbit, told.delay_ms)
    try:
        for site, maps in (("a", told.map), ("b", told.map_from_b)):
            for (host, port), target in maps:
                await line.listen(host, port, target, site)
        control = await serve_control(line, *told.control)
        print(f"line: {told.rate_mbit:g} Mbit/s each way, {told.delay_ms:g} ms one way", flush=True)
        await ended.wait()
        control.close()
    finally:
        await line.close()


def main(words: Sequence[str] | None = None) -> int:
    told = arguments(sys.argv[1:] if words is None else words)
    try:
        asyncio.run(run(told))
    except OSError as error:
        print(f"the line cannot be opened: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
