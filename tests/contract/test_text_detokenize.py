"""Laws of the way from ids to text: no split of the ids may show."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from pdd.core.errors import SettingsError
from services.router.detokenize import Detokenizer, StopCut, token_bytes, without_special
from tests.contract.text_model import END, make_text_folder, sentence_piece

CUTS = st.lists(st.integers(0, 60), max_size=12)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    folder = make_text_folder(tmp_path_factory.mktemp("model"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer, without_special(token_bytes(tokenizer), tokenizer)


def split(whole, cuts):
    """`whole` in pieces, some of them empty."""
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    return [whole[start:stop] for start, stop in pairwise(places)]


@given(ids=st.lists(st.integers(0, 420), max_size=60), cuts=CUTS)
def test_any_ids_in_any_split_read_as_one_decode(byte_level, ids, cuts):
    tokenizer, table = byte_level
    detokenizer = Detokenizer(table)
    pieces = [detokenizer.push(part) for part in split(ids, cuts)]
    assert "".join([*pieces, detokenizer.flush()]) == tokenizer.decode(ids, skip_special_tokens=True)


@given(text=st.text(max_size=40), cuts=CUTS)
def test_a_character_shows_whole_or_not_at_all(byte_level, text, cuts):
    tokenizer, table = byte_level
    detokenizer = Detokenizer(table)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    shown = ""
    for part in split(ids, cuts):
        shown += detokenizer.push(part)
        assert text.startswith(shown)
    assert shown == text
    assert detokenizer.flush() == ""


def test_a_character_cut_short_by_the_end_is_not_lost_in_silence(byte_level):
    tokenizer, table = byte_level
    fire = tokenizer.encode("🔥", add_special_tokens=False).ids
    assert len(fire) > 1
    detokenizer = Detokenizer(table)
    assert detokenizer.push(fire[:-1]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_show_only_where_asked_for(byte_level):
    tokenizer, table = byte_level
    plain = tokenizer.token_to_id("<plain>")
    assert Detokenizer(table).push([END, plain]) == "<plain>"
    assert Detokenizer(token_bytes(tokenizer)).push([END, plain]) == "<|im_end|><plain>"


@given(text=st.text(alphabet="helo wrd éü🙂", max_size=30), cuts=CUTS)
def test_byte_fallback_reads_as_one_decode_behind_a_prompt(text, cuts):
    tokenizer = sentence_piece()
    detokenizer = Detokenizer(without_special(token_bytes(tokenizer), tokenizer))
    ids = tokenizer.encode(text.replace(" ", "▁")).ids
    shown = "".join([*(detokenizer.push(part) for part in split(ids, cuts)), detokenizer.flush()])
    assert "h" + shown == tokenizer.decode([tokenizer.token_to_id("h"), *ids])


def test_a_decoder_of_another_family_is_refused_at_the_start():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(SettingsError, match="WordPiece"):
        token_bytes(tokenizer)


def cut_at_once(text, stops):
    """The definition: the stop string that ends first; among those that end together, the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        return text, False
    end, length = min(ends)
    return text[: end + length], True


@given(
    text=st.text(alphabet="abc", max_size=40),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=CUTS,
)
@example(text="abc", stops=["bc", "c"], cuts=[])
@example(text="aabaaabaaac", stops=["aabaaac"], cuts=[4])
def test_any_split_of_the_text_is_cut_where_the_whole_is(text, stops, cuts):
    cut = StopCut(stops)
    shown = ""
    for part in split(text, cuts):
        shown += cut.push(part)
        assert cut_at_once(text, stops)[0].startswith(shown)
    shown += cut.flush()
    assert (shown, cut.found) == cut_at_once(text, stops)


def test_only_what_may_begin_a_stop_string_is_held_back():
    cut = StopCut(["STOP", "\n\n"])
    assert cut.push("go ST") == "go "
    assert cut.push("A\n") == "STA"
    assert cut.push("b") == "\nb"
    assert cut.push("c S") == "c "
    assert cut.flush() == "S"
