"""What an operator asks of the router: who is alive at which site, how busy, and how the line looks from there."""

from typing import Any

from pdd.core.ids import Role
from pdd.core.roles.fleet import Seen
from pdd.core.roles.router import Router


def fleet_status(router: Router, now: float) -> dict[str, Any]:
    """Plain data for /status. Workers in the order of their names; seconds since the last beat tell a silent one."""
    seen = sorted(router.fleet.workers.values(), key=lambda one: one.peer.name)
    return {
        "router": {
            "name": router.me.name,
            "site": router.me.site,
            "requests": len(router.courses),
            "draining": router.draining,
        },
        "workers": [_worker(router, one, now) for one in seen],
        "lines": [
            {
                "from": one.peer.name,
                "to_site": line.site,
                "bytes_per_s": line.bytes_per_s,
                "rtt_s": line.rtt_s,
                "queued_bytes": line.queued_bytes,
            }
            for one in seen
            for line in one.lines.values()
        ],
    }


def longest_context(router: Router, now: float) -> int:
    """Of the speakers alive; 0 when there is none."""
    seen = router.fleet.workers.values()
    return max((one.card.max_context for one in seen if not router.fleet.lost(one.peer, now)), default=0)


def fleet_can(router: Router, now: float, feature: str) -> bool:
    """Whether a speaker alive has it; true when none is alive, for the machine then refuses for that."""
    speakers = [*router.fleet.live(Role.RELAY, now), *router.fleet.live(Role.MAIN, now)]
    return not speakers or any(feature in seen.card.features for seen in speakers)


def _worker(router: Router, seen: Seen, now: float) -> dict[str, Any]:
    load = seen.load
    return {
        "name": seen.peer.name,
        "site": seen.peer.site,
        "role": seen.peer.role,
        "alive": not router.fleet.lost(seen.peer, now),
        "draining": seen.draining,
        "refused_for": list(router.fleet.refuses(seen.peer, seen.card)),
        "beat_s_ago": round(now - seen.seen_at, 3),
        "running": load.running,
        "waiting_tokens": load.waiting_tokens,
        "pages_free": load.free_pages,
        "pages": load.total_pages,
        "prefill_tokens_per_s": round(load.prefill_tokens_per_s, 1),
        "step_s": round(load.step_s, 4),
        "kv_address": seen.card.kv_address,
    }
