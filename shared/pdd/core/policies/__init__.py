"""When RLD yields to a ready MD. A policy is a pure question, asked after every event; one small file each."""

from .base import HandoverPolicy, Progress
from .catch_up import CatchUp
from .one_shot import OneShot

POLICIES: dict[str, HandoverPolicy] = {"one_shot": OneShot(), "catch_up": CatchUp()}

__all__ = ["POLICIES", "CatchUp", "HandoverPolicy", "OneShot", "Progress"]
