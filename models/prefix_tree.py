"""The prefix tree of a batch of N-best lists: each distinct history is a node, scored once.

Hypotheses of a list share most of their prefixes, so a 100-best list of 1,500 words holds only some 600
distinct histories. Lists that start from the same history share one root, hence also share prefixes with one
another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
        longest = int(lengths.max(initial=0))
        words = np.full((count, longest + 1), EOS_ID, np.int64)
        for row, sentence in zip(words, sentences, strict=True):
            row[: len(sentence)] = sentence
        stride = int(words.max(initial=EOS_ID)) + 1

        parents, node_words = [np.arange(root_count)], [np.full(root_count, EOS_ID)]
        histories: list[IntArray] = []
        event_words: list[IntArray] = []
        levels = [0, root_count]
        events = np.empty((count, longest + 1), np.int64)
        event_count = 0
        alive, node = np.arange(count), start
        for depth in range(longest + 1):
            # An event is a pair (history, word): one integer names it, and equal integers are one event.
            keys, event = np.unique(node * stride + words[alive, depth], return_inverse=True)
            history, word = np.divmod(keys, stride)
            histories.append(history)
            event_words.append(word)
            events[alive, depth] = event_count + event
            event_count += len(keys)
            # Every event but </s> leads to a node of the next level.
            inner = word != EOS_ID
            numbers = np.cumsum(inner) - 1 + levels[-1]
            parents.append(history[inner])
            node_words.append(word[inner])
            goes_on = lengths[alive] > depth
            node, alive = numbers[event[goes_on]], alive[goes_on]
            if not len(alive):
                break
            levels.append(levels[-1] + int(inner.sum()))
        return cls(
            roots=root_count,
            parents=np.concatenate(parents),
            node_words=np.concatenate(node_words),
            levels=tuple(levels),
            histories=np.concatenate(histories),
            event_words=np.concatenate(event_words),
            sentences=tuple(row[: length + 1] for row, length in zip(events, lengths, strict=True)),
        )

    @property
    def nodes(self) -> int:
        """The number of distinct histories."""
        return len(self.parents)

    @property
    def events(self) -> int:
        """The number of distinct (history, word) pairs."""
        return len(self.histories)

    def last_nodes(self) -> IntArray:
        """(sentences,) the node of each whole sentence: the history before its </s>."""
        return self.histories[np.fromiter((row[-1] for row in self.sentences), np.int64, len(self.sentences))]
