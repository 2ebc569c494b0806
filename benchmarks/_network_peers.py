# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised steps of others, on the same module and batch.

Each maker returns a step; ``clipped_total`` of an Opacus step says what it would add
without noise, so that a mode that does not clip right can be left out of a comparison.
"""

import importlib.util
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

CLIP, NOISE, STEP_SIZE = 1.0, 1.0, 0.01
OPACUS_MODES = ("hooks", "functorch", "ghost")
Step = Callable[[], object]


def installed(package: str) -> bool:
    """Say whether a peer can be imported."""
    return importlib.util.find_spec(package) is not None


class OpacusStep:
    """A step of Opacus with one of its ways to get gradients of examples."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor, mode: str) -> None:
        from opacus import PrivacyEngine

        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=len(x)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = PrivacyEngine().make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=STEP_SIZE),
                criterion=nn.CrossEntropyLoss(),
                data_loader=loader,
                noise_multiplier=NOISE,
                max_grad_norm=CLIP,
                poisson_sampling=False,
                grad_sample_mode=mode,
            )
        self.module, self.optimizer = made[:2]
        self.loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        self.batch = x, y

    def __call__(self) -> None:
        """Take a step."""
        x, y = self.batch
        self.optimizer.zero_grad()
        self.loss(self.module(x), y).backward()
        self.optimizer.step()

    def clipped_total(self) -> Tensor:
        """Return the sum that a step without noise adds, from the step it takes."""
        noise, self.optimizer.noise_multiplier = self.optimizer.noise_multiplier, 0.0
        before = nn.utils.parameters_to_vector(self.module.parameters()).detach()
        self()
        after = nn.utils.parameters_to_vector(self.module.parameters()).detach()
        self.optimizer.noise_multiplier = noise
        nn.utils.vector_to_parameters(before, self.module.parameters())
        return (before - after) * len(self.batch[0]) / STEP_SIZE


def vmap_step(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a step that forms all gradients of examples with torch.func."""
    parameters = dict(module.named_parameters())

    def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(module, values, (one[None],))
        return functional.cross_entropy(scores, label[None])

    def step() -> None:
        values = {name: p.detach() for name, p in parameters.items()}
        gradients = vmap(grad(loss), (None, 0, 0))(values, x, y)
        squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
        weights = (CLIP / torch.stack(squares).sum(0).sqrt()).clamp(max=1.0)
        with torch.no_grad():
            for name, p in parameters.items():
                total = torch.einsum("b,b...->...", weights, gradients[name])
                total += CLIP * NOISE * torch.randn_like(total)
                p.sub_(total, alpha=STEP_SIZE / len(x))

    return step


def jax_step(module: nn.Sequential, x: Tensor, y: Tensor) -> Step:
    """Return the same step in JAX: vmap of the gradient, compiled."""
    import jax
    import jax.numpy as jnp

    weights = [
        (jnp.asarray(layer.weight.detach()), jnp.asarray(layer.bias.detach()))
        for layer in module
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]

    def loss(values, image, label):
        return -jax.nn.log_softmax(_jax_scores(module, values, image))[label]

    def clipped(gradients):
        leaves = jax.tree_util.tree_leaves(gradients)
        norm = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in leaves))
        scale = jnp.minimum(1.0, CLIP / norm)
        return jax.tree_util.tree_map(lambda leaf: leaf * scale, gradients)

    @jax.jit
    def update(values, images, labels, key):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(values, images, labels)
        leaves, tree = jax.tree_util.tree_flatten(values)
        sums = [
            g.sum(0) for g in jax.tree_util.tree_leaves(jax.vmap(clipped)(gradients))
        ]
        keys = jax.random.split(key, len(leaves))
        draws = [
            jax.random.normal(k, w.shape) for k, w in zip(keys, leaves, strict=True)
        ]
        factor = STEP_SIZE / len(x)
        moved = [
            w - factor * (total + CLIP * NOISE * draw)
            for w, total, draw in zip(leaves, sums, draws, strict=True)
        ]
        return jax.tree_util.tree_unflatten(tree, moved)

    images, labels = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    state = {"weights": weights, "key": jax.random.PRNGKey(0)}

    def step() -> None:
        state["key"], key = jax.random.split(state["key"])
        state["weights"] = jax.block_until_ready(
            update(state["weights"], images, labels, key)
        )

    return step


def _jax_scores(module: nn.Sequential, values, image):
    """Run a sequence of the layers that the paper's networks have on one image."""
    import jax
    import jax.numpy as jnp

    own = iter(values)
    for layer in module:
        if isinstance(layer, nn.Linear):
            weight, bias = next(own)
            image = weight @ image + bias
        elif isinstance(layer, nn.Conv2d):
            weight, bias = next(own)
            border = [(side, side) for side in layer.padding]
            image = jax.lax.conv_general_dilated(image[None], weight, (1, 1), border)
            image = image[0] + bias[:, None, None]
        elif isinstance(layer, nn.MaxPool2d):
            window = (1, layer.kernel_size, layer.kernel_size)
            image = jax.lax.reduce_window(
                image, -jnp.inf, jax.lax.max, window, window, "VALID"
            )
        elif isinstance(layer, nn.ReLU):
            image = jax.nn.relu(image)
        else:
            image = image.reshape(-1)
    return image
