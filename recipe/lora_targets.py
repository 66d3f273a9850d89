"""Which matrices of the model a new LoRA adapter is on."""

from __future__ import annotations

import chz

from mint.errors import InvalidRequest


@chz.chz(typecheck=True)
class LoraTargets:
    """Of a new adapter only: weights that are loaded keep the shape they have."""

    # The two projections of each MLP and its gate.
    train_mlp: bool = True
    # Queries, keys, values and output of each attention layer.
    train_attn: bool = True
    # The projection to the vocabulary.
    train_unembed: bool = True

    # typecheck=True checks types last; the rule below looks at values.
    _types_come_first = chz.validate(chz.validators.for_all_fields(chz.validators.typecheck))

    @chz.validate
    def _check(self) -> None:
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise InvalidRequest(
                "train_mlp, train_attn and train_unembed are all False: nothing would be trained; set one of them."
            )
