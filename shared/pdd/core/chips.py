"""Chips as data: what one card can do at best. What is reached of it stands in `roofline.Reach`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """Dense peaks. `flops_8bit` counts fp8, or int8 where there is no fp8."""

    name: str
    flops_16bit: float
    flops_8bit: float
    memory_bytes: float
    memory_bytes_per_s: float
    source: str


CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            "H100",
            989e12,
            1979e12,
            80e9,
            3.35e12,
            "NVIDIA H100 SXM data sheet; the sheet's figures with sparsity, halved",
        ),
        Chip(
            "H200",
            989e12,
            1979e12,
            141e9,
            4.8e12,
            "NVIDIA H200 SXM data sheet; the sheet's figures with sparsity, halved",
        ),
        Chip(
            "H20",
            148e12,
            296e12,
            96e9,
            4.0e12,
            "as reported for the export variant of Hopper; NVIDIA publishes no sheet",
        ),
        Chip("A100", 312e12, 624e12, 80e9, 2.039e12, "NVIDIA A100 80GB SXM data sheet; 8 bit is int8"),
        Chip(
            "910B", 376e12, 752e12, 64e9, 1.6e12, "one die of an Ascend 910C, arXiv 2506.12708 section 3; 8 bit is int8"
        ),
    )
}
