"""The composer, judged by its laws."""

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.schedule import NEAR, Due, compose, slice_tokens, undisturbed
from pdd.core.steps import Sequence

CHUNK = 64
TAIL = CHUNK // 4


def due(number: int, computed: int, tokens: int, outputs: int, speaks: bool) -> Due:
    """One sequence with `tokens` ids to compute; all it has are known, `outputs` of them after the prompt."""
    length = computed + tokens
    sequence = Sequence(Key(RequestId(str(number)), Epoch(1)), [0] * length, max(1, length - outputs), Sampling(9))
    sequence.computed = computed
    return Due(sequence, length, speaks)


dues = st.lists(
    st.builds(due, st.integers(), st.integers(0, 300), st.integers(1, 400), st.integers(0, 3), st.booleans()),
    max_size=8,
)


@given(dues)
def test_every_speaking_decode_is_in_the_step_and_comes_first(waiting: list[Due]) -> None:
    decodes = [one for one in waiting if one.decodes]
    slices = compose(waiting, CHUNK).slices
    assert [piece.sequence for piece in slices[: len(decodes)]] == [one.sequence for one in decodes]
    assert all(piece.sample for piece in slices[: len(decodes)])


@given(dues)
def test_a_step_is_empty_only_if_nothing_is_due_and_never_longer_than_a_chunk_and_a_quarter(waiting: list[Due]) -> None:
    slices = compose(waiting, CHUNK).slices
    assert bool(slices) == bool(waiting)
    decodes = sum(one.decodes for one in waiting)
    assert sum(piece.stop - piece.start for piece in slices[decodes:]) < CHUNK + TAIL


@given(dues)
def test_a_sequence_is_sampled_exactly_when_it_speaks_and_its_end_is_reached(waiting: list[Due]) -> None:
    by_sequence = {id(one.sequence): one for one in waiting}
    for piece in compose(waiting, CHUNK).slices:
        one = by_sequence[id(piece.sequence)]
        assert piece.start == one.sequence.computed < piece.stop <= one.target
        assert piece.sample == (one.speaks and piece.stop == one.target)


@given(st.integers(1, 2000), st.integers(4, 512))
def test_no_tail_is_smaller_than_a_quarter_chunk(tokens: int, chunk: int) -> None:
    sizes = []
    while tokens:
        sizes.append(slice_tokens(tokens, chunk, chunk))
        tokens -= sizes[-1]
    assert len(sizes) == 1 or min(sizes) >= chunk // 4
    assert sum(sizes) < chunk or len(sizes) <= sum(sizes) // chunk + 1


@given(st.integers(1, 500), st.integers(-64, CHUNK))
def test_a_slice_that_begins_late_in_a_step_is_no_sliver(tokens: int, budget: int) -> None:
    taken = slice_tokens(tokens, budget, CHUNK)
    assert taken == tokens or taken == 0 or taken >= CHUNK // 16
    assert taken == tokens or tokens - taken >= TAIL or taken == 0


def test_prefills_are_served_in_order_of_arrival_after_those_whose_client_reads_already() -> None:
    first, second, reading = due(1, 0, 50, 0, True), due(2, 0, 50, 0, True), due(3, 90, 10, 5, True)
    plan = compose([first, second, reading], CHUNK)
    assert [(piece.sequence.key.request, piece.stop - piece.start) for piece in plan.slices] == [
        ("3", 10),
        ("1", 50),
        ("2", 4),
    ]


def test_who_was_handed_over_is_caught_up_before_those_that_are_only_shadowed() -> None:
    """RLD still serves the clients of these; that one's client waits."""
    shadowed, handed_over = due(1, 90, 40, 20, False), due(2, 90, 40, 20, True)
    plan = compose([shadowed, handed_over], CHUNK)
    assert [(piece.sequence.key.request, piece.stop - piece.start) for piece in plan.slices] == [("2", 40), ("1", 24)]


def test_of_those_that_are_shadowed_the_nearest_to_their_hand_over_goes_first() -> None:
    """Each waits for a turn while RLD speaks for it: the shortest first makes the sum of waits least."""
    far, near = due(1, 90, 40, 50, False), due(2, 90, 20, 50, False)
    plan = compose([far, near], CHUNK)
    assert [(piece.sequence.key.request, piece.stop - piece.start) for piece in plan.slices] == [("2", 20), ("1", 40)]


def test_beside_a_hand_over_decodes_alone_have_a_place() -> None:
    decoding, near, far, new = (
        due(1, 90, 1, 5, True),
        due(2, 90, NEAR, 20, False),
        due(3, 90, NEAR + 1, 20, False),
        due(4, 0, 50, 0, True),
    )
    assert [one.at_handover for one in (decoding, near, far, new)] == [False, True, False, False]
    assert undisturbed([decoding, near, far, new]) == [decoding, near]
