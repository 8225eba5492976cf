"""The demo's play: two short conversations of one on-call agent, which share a system prompt and grow by tool results.

The words are plain enough for a very small model, and long enough that a prompt's KV takes seconds on a slow line.
"""

from dataclasses import dataclass

MAX_TOKENS = 56

SYSTEM = """\
You are Harbour, the on-call assistant of a small web shop. You help one engineer at a time. You answer in one or
two short sentences, in plain English, and you never invent a number: every number you give stands in a tool result.

The shop has four services. `gateway` takes requests from browsers and passes them on. `catalog` answers questions
about products and prices, and keeps them in a database called `pg-main`. `checkout` takes orders and payments.
`mailer` sends a letter to the customer when an order is paid. Each service runs on three machines, named after the
service and a number, for example `checkout-2`. Logs older than fourteen days are deleted each night at three
o'clock by a job called `log-sweep`.

You have these tools. You ask for one by name; the engineer runs it and gives you the result as a message.

disk_usage(machine): how full each file system of the machine is, in percent, and which folder is the largest. Use
it first when somebody says that a machine is slow, that a write failed, or that a deployment did not start.

search_logs(service, words, minutes): the lines of the service's logs of the last minutes that have all of the
words, newest first, at most twenty lines. Use it when somebody says that customers see an error. Ask for few words.

service_status(service): for each of the three machines whether the service is up, since when, how many requests it
answered in the last minute, and how many of them failed.

recent_changes(service): the last five deployments of the service, each with its time, its version, the engineer's
name, and one line that says what was changed. Use it when something worked yesterday and fails today.

restart(machine): stops and starts the service on one machine. Ask the engineer before you use it, say why, and
never restart two machines of one service at the same time.

How you work: read the question, name the most likely cause, say which tool you want next, and why. When a tool
result answers the question, say so and stop. When two causes are possible, take the one that is cheaper to check. A
full disk, an expired certificate and a changed setting are the three causes seen most often here, in this order. If
a customer's money may be lost, say at once that the payment team has to be called, and give the order numbers that
stand in the logs.
"""

DISK_RESULT = """\
Result of disk_usage(catalog-3):
/ is 41 percent full. /var is 98 percent full. /data is 63 percent full.
The largest folder of /var is /var/log/catalog with 37 gigabytes. The oldest file in it is 52 days old.
"""

SWEEP_RESULT = """\
Result of search_logs(catalog, log-sweep, 1440):
03:00:01 catalog-3 log-sweep: start, keep 14 days
03:00:01 catalog-3 log-sweep: cannot read /etc/log-sweep/catalog.conf: permission denied
03:00:01 catalog-3 log-sweep: nothing deleted, stop with status 2
03:00:02 catalog-1 log-sweep: start, keep 14 days
03:00:09 catalog-1 log-sweep: 212 files deleted, 9 gigabytes free again, stop with status 0
03:00:02 catalog-2 log-sweep: start, keep 14 days
03:00:11 catalog-2 log-sweep: 208 files deleted, 8 gigabytes free again, stop with status 0
Result of recent_changes(catalog):
version 118, 39 days ago, by Ines: the owner of /etc/log-sweep is now the user `sweep`
version 117, 44 days ago, by Tomas: prices are rounded to two digits
version 116, 51 days ago, by Ines: a faster search by product name
version 115, 60 days ago, by Maja: the database pool has 20 connections
version 114, 66 days ago, by Tomas: pictures are loaded later
"""

CHECKOUT_RESULT = """\
Result of service_status(checkout):
checkout-1 is up since 12 days, 311 requests in the last minute, 0 failed.
checkout-2 is up since 4 minutes, 298 requests in the last minute, 287 failed.
checkout-3 is up since 12 days, 305 requests in the last minute, 0 failed.
"""

WARM_UP = "Tell me what a harbour is. " * 40  # shares no prefix with the conversations


@dataclass(frozen=True, slots=True)
class Turn:
    """The client's messages of one turn; the answer is appended to the history as it came."""

    conversation: str
    said: tuple[tuple[str, str], ...]  # (role, content)

    @property
    def whole(self) -> tuple[tuple[str, str], ...]:
        """The messages of a conversation that begins with this turn."""
        return (("system", SYSTEM), *self.said)


# Both conversations begin with SYSTEM. They alternate as two engineers' would.
TURNS = (
    Turn("disk", (("user", "The machine catalog-3 is slow and writes fail on it. What should we check first?"),)),
    Turn("disk", (("user", DISK_RESULT + "Is this the cause?"),)),
    Turn(
        "checkout", (("user", "Customers see an error when they pay. It began a few minutes ago. What do you need?"),)
    ),
    Turn("disk", (("user", SWEEP_RESULT + "Why is the disk of catalog-3 full?"),)),
    Turn("checkout", (("user", CHECKOUT_RESULT + "Which machine is broken?"),)),
)
