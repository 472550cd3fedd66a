"""The class-factored output layer in training: a batch's cross-entropy and its gradients, computed together.

The cross-entropy of a word is that of its group among the groups plus that of its class among the group's members. Each
is a softmax, with the gradients that models/softmax_gradients.py gives; only the members of groups that the batch holds
are looked at.
"""

from itertools import pairwise

import torch
from torch import Tensor

from models.class_factored import ClassGroups, GroupOrder
from models.softmax_gradients import SoftmaxGradients, softmax_gradients


class FactoredGradients:
    """The layer with its matrix laid out for training: classes group by group, so that a group is a range of rows.

    groups: which group each class belongs to
    """

    def __init__(self, groups: ClassGroups, device: torch.device) -> None:
        order = GroupOrder(groups)
        self.groups = groups
        self._order = torch.from_numpy(order.order).to(device)
        self._of_class = torch.from_numpy(groups.of_class).to(device)
        self._rank = torch.from_numpy(order.rank).to(device)
        self._sizes = torch.from_numpy(order.sizes).to(device)
        self._members = list(pairwise(order.starts))

    def begun(self, log_unigram: Tensor) -> Tensor:
        """(C,) ln P of each class alone -> (C + groups,) the biases c that give it."""
        mass = log_unigram.new_zeros(self.groups.count).index_add_(0, self._of_class, log_unigram.exp())
        return torch.cat([log_unigram[self._order], mass.log()])

    def by_class(self, rows: Tensor) -> Tensor:
        """(C + groups, ...) rows as laid out, group rows below -> the same with classes in their order."""
        out = rows.clone()
        out[self._order] = rows[: len(self._order)]
        return out

    def __call__(self, hidden: Tensor, O: Tensor, c: Tensor, wanted: Tensor, words: int) -> SoftmaxGradients:  # noqa: E741 - the output matrix
        """Cross-entropy of the classes wanted; see softmax_gradients.

        hidden: (N, H)
        O, c:   (C + groups, H) and (C + groups,) classes as laid out, groups below them
        wanted: (N,) the class that is right for each word
        words:  what the gradients are divided by
        """
        C = len(self._order)
        group, order = torch.sort(self._of_class[wanted], stable=True)
        h = hidden[order]
        among_groups = softmax_gradients(h, O[C:], c[C:], group, words)
        gradient_O, gradient_c, back = torch.zeros_like(O), torch.zeros_like(c), among_groups.hidden
        gradient_O[C:], gradient_c[C:] = among_groups.O, among_groups.c
        found, counts = torch.unique_consecutive(group, return_counts=True)
        widths = self._sizes[group]
        ends = widths.cumsum(0)
        logits = h.new_empty(int(ends[-1]))
        blocks, row, used = [], 0, 0
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            members, rows = slice(*self._members[number]), slice(row, row + count)
            width = members.stop - members.start
            block = logits[used : used + count * width].view(count, width)
            torch.addmm(c[members], h[rows], O[members].T, out=block)
            blocks.append((block, members, rows))
            row, used = row + count, used + count * width
        # All the blocks' rows lie end to end in one tensor: a softmax of each.
        peaks = torch.segment_reduce(logits, "max", lengths=widths, unsafe=True)
        logits.sub_(peaks.repeat_interleave(widths)).exp_()
        sums = torch.segment_reduce(logits, "sum", lengths=widths, unsafe=True)
        logits.div_(sums.repeat_interleave(widths))
        places = ends - widths + self._rank[wanted[order]]
        right = logits[places]
        loss = among_groups.loss - right.clamp(min=torch.finfo(h.dtype).tiny).log().sum()
        logits[places] = right - 1.0
        logits.div_(words)
        for errors, members, rows in blocks:
            torch.mm(errors.T, h[rows], out=gradient_O[members])
            torch.sum(errors, dim=0, out=gradient_c[members])
            back[rows].addmm_(errors, O[members])
        return SoftmaxGradients(loss, torch.empty_like(back).index_copy_(0, order, back), gradient_O, gradient_c)
