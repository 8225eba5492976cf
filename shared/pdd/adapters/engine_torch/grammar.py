"""Which tokens a constrained sequence may write next. A sequence's place in its grammar is rebuilt from its ids, never moved:
a new speaker replays the outputs once and then follows them, whoever wrote them.
"""

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor

from ...core.ids import Key
from ...core.steps import Sequence
from ..grammar import Constraint, GrammarError, Grammars


class Masks:
    """Keeps the places of the last `most` sequences; one that was let go is rebuilt when it is asked for."""

    def __init__(self, grammars: Grammars, most: int) -> None:
        self._grammars = grammars
        self._most = most
        self._places: OrderedDict[Key, tuple[Sequence, Constraint]] = OrderedDict()

    def refuses(self, text: str) -> str:
        try:
            self._grammars.constraint(text)
        except GrammarError:
            return "unfit_grammar"
        return ""

    def allowed(self, sequence: Sequence, index: int, vocabulary: int) -> Tensor:
        """[vocabulary], true where a token may be output `index`: a stop token exactly where the answer may end.

        One token always is allowed: where there is none (the grammar's limits were reached), the answer ends.
        """
        constraint = self._place(sequence, index)
        first = sequence.prompt_len
        constraint.follow(sequence.ids[first + constraint.taken : first + index], constraint.taken)
        mask = _unpacked(constraint.allowed(), vocabulary)
        stops = [token for token in sequence.sampling.stop_token_ids if token < vocabulary]
        mask[stops] = constraint.complete
        if not mask.any():
            mask[stops or [self._grammars.end]] = True
        return mask

    def _place(self, sequence: Sequence, index: int) -> Constraint:
        """Ids of an open sequence only grow, so the outputs taken stay true for as long as it is the same object."""
        key = sequence.key
        known, constraint = self._places.get(key, (None, None))
        if known is not sequence or constraint is None or constraint.taken > index:
            constraint = self._grammars.constraint(sequence.sampling.grammar)
        self._places[key] = sequence, constraint
        self._places.move_to_end(key)
        while len(self._places) > self._most:
            self._places.popitem(last=False)
        return constraint


def _unpacked(bits: bytearray, vocabulary: int) -> Tensor:
    """Tokens that the tokenizer does not know (a padded embedding) are not allowed."""
    known = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:vocabulary]
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[: len(known)] = torch.from_numpy(known.view(np.bool_))
    return mask
