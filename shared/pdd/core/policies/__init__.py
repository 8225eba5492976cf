"""When RLD yields to a ready MD. A policy is a pure question, asked at each report of MD; one small file each."""

from .adaptive import Adaptive
from .base import HandoverPolicy, Progress
from .catch_up import CatchUp
from .one_shot import OneShot

POLICIES: dict[str, HandoverPolicy] = {"one_shot": OneShot(), "catch_up": CatchUp(), "adaptive": Adaptive()}

__all__ = ["POLICIES", "Adaptive", "CatchUp", "HandoverPolicy", "OneShot", "Progress"]
