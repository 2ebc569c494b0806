# SPDX-License-Identifier: Apache-2.0
"""Deliberate mistakes in the gate, each a few lines that a hurried change might make.

Every function takes pytest's ``monkeypatch`` and breaks the gate for one test.
"""

import numpy as np

from armijo._noise import vectors
from armijo.accounting.accountants import Accountant, PlannedAccountant
from armijo.data import certified, fixed_point, gate, integer_rows
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.methods import additive
from armijo.objectives.ghost import grads, strategy
from tests.noise_doubles import each_box_muller


def noise_halved(monkeypatch, module=gate):
    """Of sums and searches."""
    for name in ("rounded_laplace", "rounded_gaussian", "add_gaussian"):
        drawn = getattr(module, name, None)

        def halved(scale, *given, drawn=drawn, **more):
            return drawn(scale // 2, *given, **more)

        monkeypatch.setattr(module, name, halved, raising=False)


def vector_noise_halved(monkeypatch):
    """Of objective and output perturbation, whose noise the gate does not draw."""
    noise_halved(monkeypatch, vectors)


def charge_skipped(monkeypatch):
    def skipped(self, mechanism, **more):
        return self.n_charges

    for kind in (Accountant, PlannedAccountant):
        monkeypatch.setattr(kind, "charge", skipped)
    # The charges count the batches, of which each has noise of its own.
    monkeypatch.setattr(Accountant, "n_charges", property(_opened))


def _opened(accountant):
    accountant.opened = getattr(accountant, "opened", 0) + 1
    return accountant.opened


def divided_by_actual_size(monkeypatch):
    """The mean of the rows that were drawn, instead of the public divisor."""
    opened = PrivateDataset.open

    def counted(self, *settings, **more):
        batch = opened(self, *settings, **more)
        batch.expected_size = max(batch._rows.size, 1)
        return batch

    monkeypatch.setattr(PrivateDataset, "open", counted)


def batch_amplified_again(monkeypatch):
    """Every batch of a run is the first one, each charged as if it were drawn anew."""
    sampled = PrivateDataset._sample

    def kept(self, *settings):
        if not hasattr(self, "kept_rows"):
            self.kept_rows = sampled(self, *settings)
        return Rows(self.kept_rows.X, self.kept_rows.y)

    monkeypatch.setattr(PrivateDataset, "_sample", kept)


def noise_reused(monkeypatch):
    """One draw for all gradients of a run."""
    built, drawn, kept = PrivateDataset.__init__, gate.rounded_gaussian, {}

    def forgetful(self, *rows, **settings):
        kept.clear()
        built(self, *rows, **settings)

    def reused(scale, size, bits, use, *, threads):
        if (scale, size) not in kept:
            kept[scale, size] = drawn(scale, size, bits)
        use(slice(0, size), kept[scale, size])

    monkeypatch.setattr(PrivateDataset, "__init__", forgetful)
    monkeypatch.setattr(gate, "add_gaussian", reused)


def angles_in_single_precision(monkeypatch):
    """Noise by Box and Muller: right in law, number by number."""
    monkeypatch.setattr(gate, "add_gaussian", each_box_muller)


def ghost_norms_decide(monkeypatch):
    """Weights from products in single precision, and no look at what is added."""
    monkeypatch.setattr(strategy, "_KEPT_NUMBERS", 0)
    monkeypatch.setattr(certified, "keep_certified", lambda integers, most: None)


def raw_terms_added(monkeypatch):
    """An example's terms go to the batch sum before they meet each other."""

    def added(self, share, out):
        scaled = self.gradients * share.scale.float()[:, None, None]
        total = out.float().index_add_(0, self.places.flatten(), scaled.flatten(0, 1))
        out.copy_(total.round())

    monkeypatch.setattr(grads, "_MOST_MASS", float("inf"))
    monkeypatch.setattr(grads.EmbeddingGrad, "add_integers", added)


def batch_decides(monkeypatch):
    """A batch with a large gradient is computed in another way."""
    original = grads.OuterProduct.squared_norms

    def branching(self, keep):
        squares = original(self, keep)
        return squares * (9.0 if (squares > 1e12).any() else 1.0)

    monkeypatch.setattr(grads.OuterProduct, "squared_norms", branching)


def clip_after_sum(monkeypatch):
    """The sum is as long as the clip at most, whatever a row contributed to it."""

    def clipped_once(contributions, bound):
        total = fixed_point._formed(contributions).sum(axis=0)
        factor = min(1.0, bound / max(float(np.linalg.norm(total)), 1e-300))
        return np.rint(total * factor * (fixed_point.STEPS / bound)).astype(np.int64)

    monkeypatch.setattr(fixed_point, "vector_sum", clipped_once)


def persons_unweighted(monkeypatch):
    """Each of a person's rows counts as a whole one."""
    monkeypatch.setattr(additive, "weights", lambda rows: np.ones(rows.size))


def choice_sharpened(monkeypatch):
    """A private choice with an eighth of its randomness."""
    drawn = gate.exponential_choice

    def sharp(gaps, scale, bits):
        return drawn(gaps, scale // 8, bits)

    monkeypatch.setattr(gate, "exponential_choice", sharp)


def coefficients_unclipped(monkeypatch):
    """What multiplies a row of features is taken as it comes."""

    def unclipped(coefficients, lengths, bound):
        return np.array(coefficients, dtype=float)

    monkeypatch.setattr(integer_rows, "_clipped", unclipped)
    monkeypatch.setattr(integer_rows, "_MOST", 2.0**60)
