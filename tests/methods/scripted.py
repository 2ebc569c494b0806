# SPDX-License-Identifier: Apache-2.0
"""A batch that answers what a script says, and an objective that does not matter."""

import numpy as np
import torch

from armijo.data.query import BoundedQuery


class ScriptedBatch:
    """Returns one given sum and one given answer, and keeps what was asked."""

    def __init__(self, noisy_sum, answer, expected_size):
        self._noisy_sum, self._answer = noisy_sum, answer
        self.expected_size = expected_size
        self.gradient_bound, self.search_bounds, self.used = None, [], []

    def noisy_vector(self, query, mechanism):
        self.gradient_bound = query.bound
        self.used.append(mechanism)
        return torch.tensor(self._noisy_sum, dtype=torch.float64)

    def first_above(self, queries, mechanism):
        self.used.append(mechanism)
        self.search_bounds = [query.bound for query in queries]
        return self._answer

    def noisy_argmax(self, query, mechanism):
        self.used.append(mechanism)
        assert query.bound == mechanism.sensitivity
        return self._answer


class FlatObjective:
    """A constant gradient for each row, and a penalty gradient that is constant too."""

    def __init__(self, size=2, per_row=None, penalty=0.0):
        self.size = size
        self._per_row = np.zeros(size) if per_row is None else per_row
        self.l2 = self._penalty = penalty

    def gradient_sum(self, w, *, clip):
        return BoundedQuery(
            contributions=lambda rows: np.tile(self._per_row, (rows.size, 1)),
            bound=clip,
        )

    def loss_drop_sum(self, w, step, step_size, *, form, clip):
        return BoundedQuery(contributions=lambda rows: np.zeros(rows.size), bound=clip)

    def step_scores(self, w, step, step_sizes, *, clip):
        return BoundedQuery(contributions=lambda rows: None, bound=clip / 2)

    def penalty_drop(self, w, step):
        return lambda eta: 0.0

    def penalty_gradient(self, w):
        return torch.full((self.size,), self._penalty, dtype=torch.float64)
