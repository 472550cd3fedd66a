from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.prefix_tree import PrefixTree
from models.vocabulary import EOS_ID

WORDS = st.sampled_from([0, 2, 3, 4])
SENTENCES = st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=8)
ROOTED = st.lists(st.tuples(st.integers(0, 3), st.lists(WORDS, max_size=5)), min_size=1, max_size=8)

Node = tuple[int, tuple[int, ...]]


def path_of(tree: PrefixTree, node: int) -> Node:
    """The root and the words that a node stands for, read off its parents."""
    words: list[int] = []
    while node >= tree.roots:
        words.insert(0, int(tree.node_words[node]))
        node = int(tree.parents[node])
    return node, tuple(words)


def naive_events(rooted: list[tuple[int, list[int]]]) -> list[list[tuple[Node, int]]]:
    """Per sentence, its events as (history, word), spelt out."""
    return [[((root, tuple(words[:t])), word) for t, word in enumerate([*words, EOS_ID])] for root, words in rooted]


def build(rooted: list[tuple[int, list[int]]]) -> PrefixTree:
    return PrefixTree.build([words for _, words in rooted], [root for root, _ in rooted])


@given(ROOTED)
def test_every_sentence_is_told_by_its_events_in_order(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    told = [
        [(path_of(tree, int(tree.histories[event])), int(tree.event_words[event])) for event in events]
        for events in tree.sentences
    ]
    assert told == naive_events(rooted)


@given(ROOTED)
def test_each_distinct_event_stands_once(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    assert tree.events == len({event for sentence in naive_events(rooted) for event in sentence})


@given(ROOTED)
def test_each_distinct_history_is_one_node(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    histories = {history for sentence in naive_events(rooted) for history, _ in sentence}
    # A root that no sentence starts from is a node all the same.
    histories |= {(root, ()) for root in range(max(root for root, _ in rooted) + 1)}
    assert sorted(path_of(tree, node) for node in range(tree.nodes)) == sorted(histories)


@given(ROOTED)
def test_levels_are_the_nodes_of_each_depth(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    depths = [len(path_of(tree, node)[1]) for node in range(tree.nodes)]
    by_level = [depth for depth, (first, last) in enumerate(pairwise(tree.levels)) for _ in range(first, last)]
    assert depths == by_level


@given(ROOTED)
def test_a_parent_stands_in_the_level_above_its_children(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    level = np.repeat(np.arange(len(tree.levels) - 1), np.diff(tree.levels))
    inner = np.arange(tree.roots, tree.nodes)
    assert np.all(level[tree.parents[inner]] == level[inner] - 1)


@given(ROOTED)
def test_a_root_is_its_own_parent_and_follows_the_boundary(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    roots = np.arange(tree.roots)
    assert np.array_equal(tree.parents[roots], roots)
    assert np.all(tree.node_words[roots] == EOS_ID)


@given(ROOTED)
def test_events_that_lead_on_stand_in_the_order_of_the_nodes_they_lead_to(
    rooted: list[tuple[int, list[int]]],
) -> None:
    tree = build(rooted)
    on = tree.event_words != EOS_ID
    inner = slice(tree.roots, tree.nodes)
    assert np.array_equal(tree.histories[on], tree.parents[inner])
    assert np.array_equal(tree.event_words[on], tree.node_words[inner])


@given(ROOTED)
def test_the_last_node_of_a_sentence_is_the_whole_of_it(rooted: list[tuple[int, list[int]]]) -> None:
    tree = build(rooted)
    assert [path_of(tree, int(node)) for node in tree.last_nodes()] == [(root, tuple(words)) for root, words in rooted]


@given(SENTENCES)
def test_sentences_start_from_root_0_unless_told_otherwise(sentences: list[list[int]]) -> None:
    alone, told = PrefixTree.build(sentences), PrefixTree.build(sentences, [0] * len(sentences))
    assert alone.roots == 1
    assert np.array_equal(alone.histories, told.histories)


@given(SENTENCES, st.randoms(use_true_random=False))
def test_the_tree_does_not_depend_on_the_order_of_the_sentences(sentences: list[list[int]], draw: object) -> None:
    order = list(range(len(sentences)))
    draw.shuffle(order)  # type: ignore[attr-defined] # hypothesis gives a Random
    tree, shuffled = PrefixTree.build(sentences), PrefixTree.build([sentences[i] for i in order])
    assert np.array_equal(tree.event_words, shuffled.event_words)
    assert [tree.sentences[i].tolist() for i in order] == [row.tolist() for row in shuffled.sentences]


def test_an_empty_sentence_is_one_event_after_the_boundary() -> None:
    tree = PrefixTree.build([[]])
    assert (tree.nodes, tree.histories.tolist(), tree.event_words.tolist()) == (1, [0], [EOS_ID])


def test_no_sentences_make_a_root_without_events() -> None:
    tree = PrefixTree.build([])
    assert (tree.nodes, tree.events, tree.sentences, tree.last_nodes().tolist()) == (1, 0, (), [])


def test_shared_prefixes_are_counted_once() -> None:
    # a b c, a b d, a: histories (), a, a b, a b c, a b d; events a, a->b, a-></s>, c, d, c-></s>, d-></s>
    tree = PrefixTree.build([[2, 3, 4], [2, 3, 5], [2]])
    assert (tree.nodes, tree.events) == (5, 7)


@given(ROOTED, st.data())
def test_a_part_has_the_histories_and_events_of_its_roots(
    rooted: list[tuple[int, list[int]]], drawn: st.DataObject
) -> None:
    tree = build(rooted)
    first, last = sorted(drawn.draw(st.lists(st.integers(0, tree.roots), min_size=2, max_size=2, unique=True)))
    part, events = tree.part(first, last)

    def told(tree: PrefixTree, event: int, first: int = 0) -> tuple[Node, int]:
        root, words = path_of(tree, int(tree.histories[event]))
        return (root + first, words), int(tree.event_words[event])

    inside = [event for event in range(tree.events) if first <= told(tree, event)[0][0] < last]
    assert events.tolist() == inside
    assert [told(part, event, first) for event in range(part.events)] == [told(tree, event) for event in inside]
    assert part.levels[-1] == part.nodes
    for depth, (begin, end) in enumerate(pairwise(part.levels)):
        assert begin < end
        assert {len(path_of(part, node)[1]) for node in range(begin, end)} == {depth}
