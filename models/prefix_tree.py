"""The prefix tree of a batch of N-best lists: each distinct history is a node, scored once.

Hypotheses of a list share most of their prefixes, so a 100-best list of 1,500 words holds only some 600
distinct histories. Lists that start from the same history share one root, hence also share prefixes with one
another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from models.vocabulary import EOS_ID

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Distinct histories (nodes) and distinct (history, next word) pairs (events) of a batch of sentences.

    Nodes are numbered roots first, then depth by depth, so a parent stands before its children.

    roots:         R, the number of roots; node r < R is the empty history that start state r begins
    parents:       (nodes,) the node one word shorter; a root is its own parent
    node_words:    (nodes,) id of a history's last word; EOS_ID for a root, whose last token is the sentence boundary
    levels:        node ranges: nodes levels[d] to levels[d + 1] have depth d
    histories:     (events,) the node an event continues
    event_words:   (events,) the id of the word that follows; EOS_ID where the sentence ends
    sentences:     per sentence, (T + 1,) the events in order, the last one </s>
    """

    roots: int
    parents: IntArray
    node_words: IntArray
    levels: tuple[int, ...]
    histories: IntArray
    event_words: IntArray
    sentences: tuple[IntArray, ...]

    @classmethod
    def build(cls, sentences: Sequence[Sequence[int]], roots: Sequence[int] | None = None) -> "PrefixTree":
        """Merge the shared prefixes of sentences of word ids.

        sentences: word ids without </s>; may be empty
        roots:     per sentence, the root it starts from; all from root 0 when left out
        """
        count = len(sentences)
        lengths = np.fromiter(map(len, sentences), np.int64, count)
        start = np.zeros(count, np.int64) if roots is None else np.asarray(roots, np.int64)
        root_count = int(start.max(initial=0)) + 1
        order, rows = _sorted_rows(sentences, lengths, start)
        depths = len(rows) - 1

        # An event of depth d is a root and d + 1 words. In sorted rows equal ones are neighbours: a row begins one
        # where it differs from the row before in any of them.
        begins = np.arange(depths)[:, None] <= lengths[order]
        begins[:, 1:] &= ~np.logical_and.accumulate(rows[:, 1:] == rows[:, :-1])[1:]
        depth, row = np.nonzero(begins)
        event_words = rows[depth + 1, row].astype(np.int64)
        numbers = np.cumsum(begins).reshape(begins.shape) - 1

        # Every event but </s> leads to a node of the next level.
        inner = event_words != EOS_ID
        node_after = np.cumsum(inner) - 1 + root_count
        histories = np.where(depth > 0, node_after[numbers[depth - 1, row]], rows[0, row])
        sizes = np.bincount(depth[inner], minlength=depths)[: depths - 1]
        events = np.empty((count, depths), np.int64)
        events[order] = numbers.T
        return cls(
            roots=root_count,
            parents=np.concatenate([np.arange(root_count), histories[inner]]),
            node_words=np.concatenate([np.full(root_count, EOS_ID), event_words[inner]]),
            levels=(0, *np.cumsum([root_count, *sizes]).tolist()),
            histories=histories,
            event_words=event_words,
            sentences=tuple(row[: length + 1] for row, length in zip(events, lengths.tolist(), strict=True)),
        )

    @property
    def nodes(self) -> int:
        """The number of distinct histories."""
        return len(self.parents)

    @property
    def events(self) -> int:
        """The number of distinct (history, word) pairs."""
        return len(self.histories)

    def root_of_nodes(self) -> IntArray:
        """(nodes,) the root that each node descends from; inside a level they ascend."""
        roots = np.arange(self.nodes)
        for first, last in pairwise(self.levels[1:]):
            roots[first:last] = roots[self.parents[first:last]]
        return roots

    def part(self, first: int, last: int) -> tuple["PrefixTree", IntArray]:
        """The trees of the roots from `first` to before `last`, without sentences; and the numbers of their events."""
        roots = self.root_of_nodes()
        chosen = (first <= roots) & (roots < last)
        number = np.cumsum(chosen) - 1
        events = np.flatnonzero(chosen[self.histories])
        sizes = np.add.reduceat(chosen, self.levels[:-1])
        levels = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
        tree = PrefixTree(
            roots=last - first,
            parents=number[self.parents[chosen]],
            node_words=self.node_words[chosen],
            levels=tuple(levels.tolist()),
            histories=number[self.histories[events]],
            event_words=self.event_words[events],
            sentences=(),
        )
        return tree, events

    def last_nodes(self) -> IntArray:
        """(sentences,) the node of each whole sentence: the history before its </s>."""
        return self.histories[np.fromiter((row[-1] for row in self.sentences), np.int64, len(self.sentences))]


def _sorted_rows(
    sentences: Sequence[Sequence[int]], lengths: IntArray, roots: IntArray
) -> tuple[IntArray, NDArray[np.uint32]]:
    """The order of the sentences by root, then word by word; and they in that order, one a column.

    returns: (sentences,) the order, and (1 + longest + 1, sentences): the root, the words, then EOS_ID to the end
    """
    # With the most significant byte first, a row sorts as a string of bytes.
    rows = np.full((len(sentences), int(lengths.max(initial=0)) + 2), EOS_ID, ">u4")
    rows[:, 0] = roots
    words = rows[:, 1:]
    words[np.arange(words.shape[1]) < lengths[:, None]] = np.fromiter(chain.from_iterable(sentences), ">u4")
    order = np.argsort(rows.view(f"S{rows.itemsize * rows.shape[1]}")[:, 0], kind="stable")
    return order, rows[order].T.astype(np.uint32, order="C")
