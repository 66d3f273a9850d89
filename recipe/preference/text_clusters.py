"""Texts that are equal but for case and spaces, and texts that are nearly equal.

Nearly equal means that their sets of shingles have a Jaccard similarity of at least a threshold. A shingle is the 16
bytes that begin at a word, at a character outside ASCII, or at a place that the bytes themselves choose (so that text
without spaces has shingles too). Candidates are found by MinHash in bands (Broder 1997; Leskovec, Rajaraman and Ullman,
"Mining of Massive Datasets", chapter 3) and then compared exactly.

Axes: _R distinct text, _S shingle, _K hash function, _B band of hash functions.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

NEAR_SIMILARITY = 0.8
"""Jaccard similarity of the shingles from which two texts are called near duplicates."""

# A pair of similarity s shares a band with probability 1 − (1 − s³)¹⁰: 0.9992 at 0.8, 0.24 at 0.3.
_NUM_BANDS, _ROWS_PER_BAND = 10, 3
_NUM_HASHES = _NUM_BANDS * _ROWS_PER_BAND
# A text is compared with this many texts of a band at most, so that texts of one template stay cheap.
_MAX_COMPARED = 10
# Below the threshold by this much in the estimate from _NUM_HASHES hashes (σ <= 0.09), no exact comparison is made.
_ESTIMATE_SLACK = 0.3
_BLOCK_BYTES = 1 << 20
_WINDOW = 16


def normalised(text: str) -> str:
    """The text in NFKC, without case, with single spaces: what does not tell two texts apart is gone."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def near_duplicate_leaders(texts_R: Sequence[str], threshold: float = NEAR_SIMILARITY) -> list[int]:
    """leader_R: for each text the position of the first text that it nearly equals, its own where there is none.

    Every text is compared with leaders only, so a chain of small changes does not join two texts that differ.
    Of texts that reach the threshold, about one in a thousand is missed.
    """
    assert 0.0 < threshold <= 1.0, f"threshold={threshold}: a similarity is above 0 and at most 1"
    sketches_RK = _sketches(texts_R)
    bands_RB = _band_keys(sketches_RK)
    leader_R = list(range(len(texts_R)))
    leaders_of_band: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(_NUM_BANDS)]
    shared_RB = np.stack([_is_repeated(bands_RB[:, i]) for i in range(_NUM_BANDS)], axis=1)

    @lru_cache(maxsize=4096)
    def shingles(i_text: int) -> NDArray[np.uint64]:
        return np.unique(_shingles([texts_R[i_text]])[0])

    for i_text in np.flatnonzero(shared_RB.any(axis=1)).tolist():
        buckets = [leaders_of_band[b][int(bands_RB[i_text, b])] for b in np.flatnonzero(shared_RB[i_text])]
        candidates = sorted({leader for bucket in buckets for leader in bucket[:_MAX_COMPARED]})
        for leader in candidates:
            estimate = np.mean(sketches_RK[i_text] == sketches_RK[leader])
            if estimate < threshold - _ESTIMATE_SLACK:
                continue
            if _jaccard(shingles(i_text), shingles(leader)) >= threshold:
                leader_R[i_text] = leader
                break
        else:
            for bucket in buckets:
                bucket.append(i_text)
    return leader_R


def similarity(first: str, second: str) -> float:
    """Jaccard similarity of the shingles of two texts, between 0 and 1."""
    return _jaccard(np.unique(_shingles([first])[0]), np.unique(_shingles([second])[0]))


def _jaccard(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    num_shared = np.intersect1d(first, second, assume_unique=True).size
    return num_shared / (first.size + second.size - num_shared)


def _sketches(texts_R: Sequence[str]) -> NDArray[np.uint64]:
    """The smallest value of each hash function over the shingles of each text."""
    rng = np.random.default_rng(0)
    multipliers_K = rng.integers(0, 2**63, size=_NUM_HASHES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    sketches_RK = np.empty((len(texts_R), _NUM_HASHES), dtype=np.uint64)
    block: list[str] = []
    size, first = 0, 0
    for i_text, text in enumerate(texts_R):
        block.append(text)
        size += len(text)
        if size >= _BLOCK_BYTES or i_text == len(texts_R) - 1:
            hashes_S, starts = _shingles(block)
            for k, multiplier in enumerate(multipliers_K):
                sketches_RK[first : i_text + 1, k] = np.minimum.reduceat(hashes_S * multiplier, starts)
            block, size, first = [], 0, i_text + 1
    return sketches_RK


def _shingles(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """(hash of every shingle of all texts in order, where each text's shingles begin); each text has at least one."""
    # Each text begins with a byte that no text has, and ends with so many zeros that no window reaches the next one.
    parts = [b"\x01" + text.encode("utf-8", "surrogatepass") + bytes(_WINDOW) for text in texts]
    buffer = b"".join(parts)
    sizes = np.array([len(part) for part in parts], dtype=np.intp)
    begins = np.cumsum(sizes) - sizes
    bytes_ = np.frombuffer(buffer, dtype=np.uint8)
    num_windows = len(buffer) - _WINDOW + 1
    words = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
    is_alnum = _IS_WORD_BYTE[bytes_]
    is_start = np.zeros(len(buffer), dtype=bool)
    is_start[1:] = is_alnum[1:] & ~is_alnum[:-1]
    is_start |= bytes_ >= 0xC0
    is_start[: len(words)] |= ((words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(60) == 0) & (bytes_[:-7] != 0)
    is_start[begins] = True
    is_start[num_windows:] = False
    offsets_S = np.flatnonzero(is_start)
    hashes_S = _mixed(words[offsets_S] ^ _mixed(words[offsets_S + 8]))
    return hashes_S, np.searchsorted(offsets_S, begins)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of MurmurHash3 (Appleby): every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def _band_keys(sketches_RK: NDArray[np.uint64]) -> NDArray[np.uint64]:
    keys_RB = np.zeros((len(sketches_RK), _NUM_BANDS), dtype=np.uint64)
    for row in range(_ROWS_PER_BAND):
        keys_RB = _mixed(keys_RB ^ sketches_RK[:, row::_ROWS_PER_BAND]) + np.uint64(1)
    return keys_RB


def _is_repeated(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[inverse] > 1


_IS_WORD_BYTE = np.array([chr(byte).isalnum() and byte < 128 for byte in range(256)], dtype=np.bool_)
