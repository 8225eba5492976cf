"""Routers that route otherwise, for comparison: the published hit threshold, and the route that is forbidden."""

from dataclasses import replace
from typing import Any

from ..core.ids import Role
from ..core.roles.course import Course
from ..core.roles.router import Router


class HitThresholdRouter(Router):
    """As published: P-MD where MD's hit rate reaches a threshold, else P-RLD-MD."""

    def __init__(self, *args: Any, hit_threshold: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self.hit_threshold = hit_threshold

    def _plan(self, course: Course, why: str) -> None:
        if why == "new":
            route = "P-MD" if self._hit(course) >= self.hit_threshold else "P-RLD-MD"
            course.asked = replace(course.asked, route=route)
        super()._plan(course, why)

    def _hit(self, course: Course) -> float:
        best = max((hit for peer, hit in course.hits.items() if peer.role is Role.MAIN), default=0)
        return best / len(course.asked.ids)


class LowHitsEndOnRelay(HitThresholdRouter):
    """What must not be done: requests below the threshold get no MD at all, so MD never learns them."""

    def _plan(self, course: Course, why: str) -> None:
        if why == "new" and self._hit(course) < self.hit_threshold:
            course.skip |= {seen.peer.name: None for seen in self.fleet.live(Role.MAIN, self.now)}
        super()._plan(course, why)
