"""A model's name that two sites compare, as named fields, so that a refusal can say which one differs.

Equal only where KV made by one means the same to the other. Page size and dtype are no fields: pairing converts them.
"""

from collections.abc import Mapping

UNNAMED = "model"  # the field of a name that has none


def fingerprint_of(fields: Mapping[str, str]) -> str:
    """`weights=9f3c...;kv=30x3x64;...`, in the order of the fields. Values hold neither ; nor =."""
    return ";".join(f"{name}={value}" for name, value in fields.items())


def differing(ours: str, theirs: str) -> tuple[str, ...]:
    """The fields in which two fingerprints differ, in our order; empty where they are equal."""
    if ours == theirs:
        return ()
    mine, others = _fields(ours), _fields(theirs)
    return tuple(name for name in {**mine, **others} if mine.get(name) != others.get(name))


def _fields(fingerprint: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in fingerprint.split(";"))
    return {name if equals else UNNAMED: value if equals else name for name, equals, value in pairs}
