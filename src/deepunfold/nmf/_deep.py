"""Deep NMF (Section 4 of the paper): unfolded inference whose last layers have bases of their own."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from deepunfold.core import Constraint, Unfolded, constrain, unfold
from deepunfold.core._tying import Tie
from deepunfold.nmf._blocks import run
from deepunfold.nmf._check import check_basis, check_frames
from deepunfold.nmf._inference import NMFInference


def context(frames: Tensor, size: int) -> Tensor:
    """Each frame with those before it, the present one last: (frames, features) to (frames, size * features).

    Before the first frame there are zeros. Further dimensions may come first.
    """
    if size < 1:
        raise ValueError(f"context of {size} frames: the present one counts, give at least 1")
    padded = torch.nn.functional.pad(frames, (0, 0, size - 1, 0))
    return padded.unfold(-2, size, 1).mT.flatten(-2)


def deep_nmf(
    bases: Sequence[Tensor],
    layers: int,
    train_last: int = 0,
    *,
    context: int = 1,
    sparsity: float = 0.0,
    beta: float = 1.0,
    filtered: bool = True,
    learn_sparsity: bool = False,
    constraint: Constraint | None = None,
    tie: Tie | None = None,
) -> Unfolded:
    """K updates of the activations and a reconstruction, of which the last C layers are trained (Section 5.4).

    The first K-C+1 updates use one basis that sees ``context`` frames and is not trained. The last C-1 updates and the
    reconstruction have each a basis of their own for the present frame, which starts as the last rows of that one.
    C = 0 is sparse NMF, C = 1 discriminative NMF, where the reconstruction alone is trained.

    The network takes a mixture (frames, context * features), such as `context` makes, and gives the sources (frames,
    sources, features).

    Args:
        bases: one for each source, (context * features, R_l), such as `SparseNMF` learns.
        layers: K, the number of updates.
        train_last: C, the reconstruction included.
        context: T, how many frames the bases see.
        sparsity: the weight of the L1 norm of the activations.
        beta: of the divergence that the updates minimise.
        filtered: read out through the Wiener filter; else as W^l H^l.
        learn_sparsity: train the sparsity in each of the trained layers that update, for each component.
        constraint: keep the trained bases in a set while a gradient method moves them, such as ``Positive()``.
        tie: another pattern than "the first together, the last each": K+1 labels or what else `unfold` takes.
    """
    rows = _check(bases, layers, train_last, context)
    basis, features = torch.cat([own.detach() for own in bases], dim=1), rows // context
    sizes = [own.shape[1] for own in bases]

    def part(columns: Tensor) -> NMFInference:
        algorithm = NMFInference(
            columns,
            sizes,
            sparsity=sparsity,
            beta=beta,
            features=features,
            filtered=filtered,
            learn_sparsity=learn_sparsity,
        )
        if constraint is None:
            return algorithm
        return constrain(algorithm, basis=constraint, **({"sparsity": constraint} if learn_sparsity else {}))

    wide, narrow = part(basis), part(basis[-features:])
    first = layers + 1 if train_last == 0 else layers + 1 - train_last  # the layers that share the first basis
    if first == 0:
        chain = [(narrow, layers)]
    elif train_last == 0:
        chain = [(wide, layers)]
    else:
        chain = [(wide, first), (narrow, train_last - 1)]
    labels = [0] * first + list(range(1, layers + 2 - first))
    return unfold(chain, tie=labels if tie is None else tie, train_last=train_last)


def _check(bases: Sequence[Tensor], layers: int, train_last: int, context: int) -> int:
    if len(bases) < 1:
        raise ValueError("deep NMF needs a basis for each source, none was given")
    for number, basis in enumerate(bases):
        check_basis(basis, f"the basis of source {number}")
    counts = {basis.shape[0] for basis in bases}
    if len(counts) > 1:
        raise ValueError(f"the bases have {', '.join(map(str, sorted(counts)))} rows; give bases of equal height")
    rows = counts.pop()
    if context < 1 or rows % context:
        raise ValueError(f"context={context} frames do not fit bases of {rows} rows; their rows are context * features")
    if layers < 1:
        raise ValueError(f"layers={layers} infers nothing; give at least one update")
    most = layers if context > 1 else layers + 1
    if not 0 <= train_last <= most:
        raise ValueError(
            f"train_last={train_last} is out of range: {layers} updates and the reconstruction, "
            f"{'the first of which sees the context, ' if context > 1 else ''}allow 0 to {most}"
        )
    return int(rows)


class Count(NamedTuple):
    """How many numbers a network holds: P_D that are trained, and P in all (Table 2 of the paper)."""

    trained: int
    total: int


def count(net: Unfolded) -> Count:
    """The distinct parameters of a network."""
    parameters = list(net.parameters())
    return Count(
        sum(each.numel() for each in parameters if each.requires_grad), sum(each.numel() for each in parameters)
    )


def inference_layers(net: Unfolded) -> list[NMFInference]:
    """The layers of a network of `NMFInference`; any other network is an error."""
    if net.gates or not all(isinstance(layer, NMFInference) for layer in net.layers):
        kinds = ", ".join(dict.fromkeys(type(layer).__name__ for layer in net.layers))
        raise TypeError(f"this takes a network of NMFInference layers as deep_nmf makes it, not one of {kinds}")
    return cast("list[NMFInference]", list(net.layers))


@torch.no_grad()
def separate(net: Unfolded, mixture: Tensor, activations: Tensor | None = None, block: int | None = None) -> Tensor:
    """What ``net(mixture)`` gives, without a graph, in blocks of frames and at the speed of the matrix products.

    Shapes: mixture (frames, rows), activations to start from (frames, components), result (frames, sources, features).
    """
    layers = inference_layers(net)
    check_frames("the mixture", mixture, layers[0].basis.shape[0])
    result: Tensor | None = None
    for place, found in run(layers, net.depth, mixture, activations, block):
        output = layers[-1].readout(mixture[place], found)
        result = output.new_empty(len(mixture), *output.shape[1:]) if result is None else result
        result[place] = output
    assert result is not None  # there is at least one frame
    return result
