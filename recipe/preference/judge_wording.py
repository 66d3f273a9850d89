"""The judge's question in other words: how much of a score hangs on how the question is put."""

from __future__ import annotations

from collections.abc import Sequence

import chz

from recipe.preference.readouts import JUDGE_QUESTION, Readout, Verdict

NO_WORDING = "this readout asks no question"

_OTHER_WORDINGS = (
    "Was that a helpful reply? Answer Yes or No.",
    "Did the reply above help? Say Yes or No.",
    "Look at the last reply. Is it helpful, Yes or No?",
)
# Around a question of the user's own, whose meaning is not known here.
_FRAMES = ("Please answer this: {question}", "Consider the last reply. {question}", "{question} One word is enough.")


def reworded(readout: Readout, wordings: Sequence[str] = ()) -> dict[str, Readout]:
    """The readout with other words for its question: question -> readout; {} for a readout that asks none.

    wordings: the questions to use. Without any: three that mean what JUDGE_QUESTION means, and for a question of the
    user's own that question within three sentences.
    """
    if not isinstance(readout, Verdict):
        return {}
    if not wordings and readout.judge_question == JUDGE_QUESTION:
        wordings = _OTHER_WORDINGS
    elif not wordings:
        wordings = [frame.format(question=readout.judge_question) for frame in _FRAMES]
    return {
        question: chz.replace(readout, judge_question=question)
        for question in wordings
        if question != readout.judge_question
    }
