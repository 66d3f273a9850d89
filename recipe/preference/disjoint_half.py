"""Half of the pairs, by prompt: for a preference model and another that shares no prompt with it."""

from __future__ import annotations

from typing import Literal

import chz

from mint.seeds import derive_seed
from recipe.preference.types import PreferenceDatasetBuilder, PreferenceSplit, prompt_key


@chz.chz(typecheck=True)
class DisjointHalfBuilder(PreferenceDatasetBuilder):
    """The training pairs of one half of the prompts. Which half a prompt is in follows from its text alone; the pairs
    held out are the same for both halves. `examples` should be the source's."""

    # All the pairs.
    source: PreferenceDatasetBuilder
    half: Literal[0, 1]

    def __call__(self) -> PreferenceSplit:
        """See PreferenceDatasetBuilder."""
        split = self.source()
        kept = [pair for pair in split.train if derive_seed("half of", prompt_key(pair.prompt)) % 2 == self.half]
        return PreferenceSplit(train=kept, held_out=split.held_out)
