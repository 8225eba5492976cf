"""An answer bound to a grammar fits it, and is the same whoever writes it: the place in the grammar is rebuilt from ids at each speaker."""

import json
from functools import cache

import msgspec
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from pdd.adapters.engine_torch.grammar import Masks
from pdd.adapters.grammar import grammars_of
from pdd.core.events import SequenceOpened, SequenceRefused
from pdd.core.grammar import any_object, grammar, json_value, literal, matching, one_of
from pdd.core.sampling import Finish, Sampling
from pdd.core.steps import Sequence
from tests.contract.engines import ENGINES, Desk, Rig, key
from tests.models import END, tiny_model

NUMBERS = matching(r"\[([1-9][0-9]{0,4}, ){30,40}1\]")
RECORD = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "sun": {"type": "boolean"},
        "kind": {"enum": ["é", "東京", 'a"b']},
    },
    "required": ["city", "sun", "kind"],
    "additionalProperties": False,
}
FENCES = [1, 2, 15, 16, 17, 63, 64, 65]


def bound(text: str, **more: object) -> Sampling:
    return replace(Sampling(max_tokens=400, stop_token_ids=(END,), grammar=text), **more)  # type: ignore[arg-type]


GREEDY = bound(grammar(NUMBERS))
SEEDED = bound(grammar(NUMBERS), temperature=1.5, seed=7, repetition_penalty=1.1, top_k=50)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model() / "tokenizer.json"))


@pytest.fixture
def rig() -> Rig:
    return Rig(ENGINES["torch"])


def spoken(rig: Rig, sampling: Sampling, seed: int = 0) -> Desk:
    desk = rig.desk()
    desk.open("a", rig.prompt(20, seed), sampling)
    desk.speak("a")
    rig.settle()
    return desk


def alone(ids: list[int], sampling: Sampling, outputs: tuple[int, ...] = ()) -> list[int]:
    """What one engine writes after the prompt and its first outputs."""
    return _alone(tuple(ids), msgspec.json.encode(sampling), outputs)


@cache
def _alone(ids: tuple[int, ...], sampling: bytes, outputs: tuple[int, ...]) -> list[int]:
    rig = Rig(ENGINES["torch"])
    desk = rig.desk()
    desk.open("alone", [*ids, *outputs], msgspec.json.decode(sampling, type=Sampling), prompt_len=len(ids))
    desk.speak("alone")
    rig.settle()
    return desk.outputs("alone")


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Without the end token, which must be the last."""
    assert ids[-1] == END and END not in ids[:-1]
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "more", [{}, {"temperature": 1.8, "seed": 3}, {"logprobs": 2}], ids=["greedy", "hot", "logprobs"]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_knows_nothing_writes_what_the_schema_admits(
    rig: Rig, tokenizer: Tokenizer, seed: int, more: dict
) -> None:
    desk = spoken(rig, bound(grammar(json_value(RECORD)), **more), seed)
    record = json.loads(text_of(tokenizer, desk.outputs("a")))
    assert list(record) == ["city", "sun", "kind"]
    assert len(record["city"]) <= 12 and record["sun"] in (True, False) and record["kind"] in ("é", "東京", 'a"b')
    assert desk.written("a")[-1].finish == Finish("stop", END)


@pytest.mark.parametrize(
    ("start", "fits"),
    [
        (one_of(["yes/no", "naïve café"]), ["yes/no", "naïve café"]),
        (matching(r"[a-c]/\/x{2}"), [f"{letter}//xx" for letter in "abc"]),
        (f'{literal("<a>")} {one_of(["1", "2"])}', ["<a>1", "2"]),
    ],
)  # fmt: skip
def test_choices_and_patterns_are_spelled_whole(rig: Rig, tokenizer: Tokenizer, start: str, fits: list[str]) -> None:
    assert text_of(tokenizer, spoken(rig, bound(grammar(start))).outputs("a")) in fits


def test_the_end_token_is_forced_where_nothing_else_may_be_written_whatever_min_tokens_says(rig: Rig) -> None:
    desk = spoken(rig, bound(grammar(literal("no")), min_tokens=50, logit_bias={END: -100.0}))
    assert desk.outputs("a")[-1] == END and len(desk.outputs("a")) <= 3


def test_min_tokens_puts_the_end_off_where_more_may_be_written(rig: Rig, tokenizer: Tokenizer) -> None:
    desk = spoken(rig, bound(grammar(matching("[a-z]*")), min_tokens=40, logit_bias={END: 100.0}))
    assert len(desk.outputs("a")) == 41
    assert text_of(tokenizer, desk.outputs("a")).isalpha()


def test_any_stop_id_ends_the_answer_where_the_grammar_may_end_and_nowhere_else(rig: Rig) -> None:
    stops = (7, 9, END)
    ids = spoken(rig, bound(grammar(json_value(RECORD)), stop_token_ids=stops, logit_bias={7: 100.0})).outputs("a")
    assert ids[-1] == 7 and len(ids) > 10


def test_max_tokens_ends_an_answer_in_the_middle(rig: Rig) -> None:
    desk = spoken(rig, replace(GREEDY, max_tokens=12))
    assert len(desk.outputs("a")) == 12 and desk.written("a")[-1].finish == Finish("length")


# -- hand-over and recovery -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("fence", FENCES)
def test_a_hand_over_changes_no_id_of_a_bound_answer(
    rig: Rig, fence: int, sampling: Sampling, tokenizer: Tokenizer
) -> None:
    ids = rig.prompt(50)
    first = rig.desk()
    first.open("a", ids, sampling)
    first.speak("a", fence)
    rig.settle()
    eager = first.outputs("a")
    assert len(eager) == fence
    second = rig.desk(page_size=32, pages=64, chunk_tokens=8)
    second.open("a", ids, sampling, compute_last=False)
    second.take("a", first.export("a", 0, len(ids)))
    rig.settle()
    second.append("a", 0, eager[: fence // 2])  # some arrive as they are written, the rest with the yield
    rig.settle()
    second.append("a", 0, eager)
    second.speak("a")
    rig.settle()
    whole = alone(ids, sampling)
    assert eager + second.outputs("a") == whole
    numbers = json.loads(text_of(tokenizer, whole))
    assert 31 <= len(numbers) <= 41 and len(whole) > max(FENCES)


@pytest.mark.parametrize("known", [1, 16, 64, 65])
def test_a_recovery_goes_on_within_the_grammar(rig: Rig, known: int) -> None:
    ids = rig.prompt(50)
    whole = alone(ids, SEEDED)
    assert alone(ids, SEEDED, tuple(whole[:known])) == whole[known:]


def test_bound_and_free_answers_share_a_batch_and_change_nothing_of_each_other(rig: Rig) -> None:
    desk = rig.desk()
    wanted = {f"q{i}": (Sampling(max_tokens=30), GREEDY, SEEDED)[i % 3] for i in range(6)}
    for i, (name, sampling) in enumerate(wanted.items()):
        desk.open(name, rig.prompt(20, i), sampling)
        desk.speak(name)
    rig.settle()
    for i, (name, sampling) in enumerate(wanted.items()):
        assert desk.outputs(name) == alone(rig.prompt(20, i), sampling)


def test_an_answer_that_is_hushed_and_resumed_stays_in_its_grammar(rig: Rig) -> None:
    desk = rig.desk()
    desk.open("a", rig.prompt(30), GREEDY)
    for stop in (5, 9, 40, None):
        desk.speak("a", stop)
        rig.settle()
    assert desk.outputs("a") == alone(rig.prompt(30), GREEDY)


def test_a_place_that_was_let_go_is_rebuilt_from_the_ids(tokenizer: Tokenizer) -> None:
    grammars = grammars_of(tiny_model())
    assert grammars is not None
    few, many = Masks(grammars, most=1), Masks(grammars, most=9)
    said = tokenizer.encode("[12345, 6, ").ids
    sequences = [Sequence(key(name), [9, 9, 9], 3, GREEDY) for name in "ab"]
    for index, token in enumerate(said):
        for sequence in sequences:
            mask = few.allowed(sequence, index, 420)
            assert mask.equal(many.allowed(sequence, index, 420)) and mask[token]
            sequence.ids.append(token)
    again = Sequence(key("a"), [9, 9, 9, *said[:2]], 3, GREEDY)  # the same name, opened again with less
    assert many.allowed(again, 2, 420).equal(Masks(grammars, most=9).allowed(again, 2, 420))
    assert not many.allowed(again, 2, 420)[END]


# -- what cannot be bound ---------------------------------------------------------------------------------------------


def test_a_text_that_is_no_grammar_is_refused_when_the_sequence_opens(rig: Rig) -> None:
    desk = rig.desk()
    assert desk.open("a", rig.prompt(20), bound("start: (")) == SequenceRefused(key("a"), "unfit_grammar")
    assert isinstance(desk.open("a", rig.prompt(20), bound(grammar(any_object()))), SequenceOpened)


def test_an_engine_without_grammars_says_so_on_its_card_and_refuses() -> None:
    scripted, torch = (Rig(ENGINES[name]).desk() for name in ("scripted", "torch"))
    assert (scripted.engine.features, torch.engine.features) == ((), ("grammar",))
    assert scripted.open("a", [1, 2, 3], GREEDY) == SequenceRefused(key("a"), "no_grammar")
