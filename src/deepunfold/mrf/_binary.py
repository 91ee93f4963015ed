"""Binary Markov random fields, whose mean field is the sigmoid network, and the ways between them and potentials.

The two directions of Appendix ``sec:binaryMRF`` (equation ``eq:mrf_to_sigmoid`` and its inverse) are
`BinaryMRF.from_potentials` and `BinaryMRF.potentials`; `from_sigmoid_network` and `to_sigmoid_network` go between
``nn.Sequential`` and unfolded networks.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepunfold.mrf._graph import Graph
from deepunfold.mrf._model import PairwiseMRF


class BinaryPotentials(NamedTuple):
    """A binary model as tables: that of the hidden nodes, and for each edge to a visible one its nodes and its table.

    Shapes: ``links`` (L, 2) pairs of a hidden and a visible node, ``tables`` (L, 2, 2) with the hidden states first.
    """

    model: PairwiseMRF
    links: Tensor
    tables: Tensor


class BinaryMRF(nn.Module):
    """Synchronous mean field of p(h | v), proportional to exp(1/2 h^T A h + h^T b + h^T C v), h in {0, 1}.

    mu <- logistic(A mu + b + C v), equations ``eq:binary-mrf`` and ``eq:sigmoidnet``. Untied, with a diagonal and
    without symmetry, it is the sigmoid network of the paper, whose input enters every layer.

    Shapes: x = v (batch, visible), or without C the field C v itself, (batch, hidden); state mu (batch, hidden).
    Parameters: ``coupling`` A (hidden, hidden), ``bias`` b (hidden), ``visible`` C (hidden, visible) or none.

    A layer may have fewer units than the state, as in networks of different widths: A is then (units, units before),
    b and C have as many rows, and what the state has beyond is held at 0. The output is the units of the last layer.
    A layer with a C without columns, (units, 0), does not see the input.

    Args:
        coupling: A. A model has a symmetric one with zeros on the diagonal; nothing here depends on it.
        bias: b; zeros unless told.
        visible: C; without it, x is the field.
        start: mu^0, one number or (hidden); the paper starts at 0.
        hidden: the number of units in the state; as many as A needs unless told.
    """

    start: Tensor
    readout_parameters = ()

    def __init__(
        self,
        coupling: Tensor,
        bias: Tensor | None = None,
        visible: Tensor | None = None,
        *,
        start: float | Tensor = 0.0,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        if coupling.dim() != 2 or not coupling.is_floating_point():
            raise ValueError(f"coupling must be a matrix of numbers, not {tuple(coupling.shape)} of {coupling.dtype}")
        units = coupling.shape[0]
        bias = coupling.new_zeros(units) if bias is None else bias
        if bias.shape != (units,):
            raise ValueError(f"bias has the shape {tuple(bias.shape)}; coupling has {units} rows, give as many numbers")
        if visible is not None and (visible.dim() != 2 or visible.shape[0] != units):
            raise ValueError(f"visible has the shape {tuple(visible.shape)}; give ({units}, visible units)")
        self.hidden = max(coupling.shape) if hidden is None else hidden
        if self.hidden < max(coupling.shape):
            raise ValueError(f"hidden={hidden}, but coupling is {tuple(coupling.shape)}; give {max(coupling.shape)}")
        begin = torch.as_tensor(start, dtype=coupling.dtype, device=coupling.device).detach()
        if begin.shape not in ((), (self.hidden,)) or not bool(((begin >= 0) & (begin <= 1)).all()):
            raise ValueError(f"start must be one number, or {self.hidden}, in [0, 1], not {start}")
        self.coupling, self.bias = nn.Parameter(_own(coupling)), nn.Parameter(_own(bias))
        self.visible = None if visible is None else nn.Parameter(_own(visible))
        self.register_buffer("start", begin.clone())

    @classmethod
    def from_potentials(
        cls, model: PairwiseMRF, links: Tensor | None = None, tables: Tensor | None = None, visible: int = 0
    ) -> "BinaryMRF":
        """A, b and C of a model of binary nodes, with the same posterior (equation ``eq:mrf_to_sigmoid``).

        Args:
            model: the hidden nodes with potentials of their own, pairwise and, optionally, unary.
            links: which hidden node touches which visible one, (L, 2); each pair once.
            tables: Psi(h_i, v_l) of each, (L, 2, 2), the hidden node's states first.
            visible: how many visible nodes there are. Without any, the result has no C and takes fields.
        """
        graph, pairwise = model.graph, _tables_of(model)
        links, tables = _check_links(graph.nodes, links, tables, visible, pairwise)
        coupling = pairwise.new_zeros(graph.nodes, graph.nodes)
        first, second = graph.edges.unbind(1)
        coupling[first, second] = coupling[second, first] = _interaction(pairwise)
        bias = pairwise.new_zeros(graph.nodes)
        bias.index_add_(0, first, pairwise[:, 1, 0] - pairwise[:, 0, 0])
        bias.index_add_(0, second, pairwise[:, 0, 1] - pairwise[:, 0, 0])
        bias.index_add_(0, links[:, 0], tables[:, 1, 0] - tables[:, 0, 0])
        if model.unary is not None:
            bias += model.unary.detach()[:, 1] - model.unary.detach()[:, 0]
        matrix = pairwise.new_zeros(graph.nodes, visible)
        matrix[links[:, 0], links[:, 1]] = _interaction(tables)
        return cls(coupling, bias, matrix if visible else None)

    def potentials(self, spread_bias: bool = True) -> BinaryPotentials:
        """Tables with the same posterior; edges are where A and C are not zero.

        With ``spread_bias``, as in the paper, each node's bias lies in equal shares on its edges to hidden nodes; a
        node without any, and without ``spread_bias`` every node, has it as a unary potential.
        """
        a, b = self.coupling.detach(), self.bias.detach()
        if a.shape[0] != a.shape[1] or not torch.equal(a, a.mT) or bool(a.diagonal().any()):
            raise ValueError(
                f"coupling {tuple(a.shape)} is not that of a model: A must be symmetric with zeros on its diagonal; "
                "an untied or trained network need not have potentials"
            )
        edges = a.triu().nonzero()
        graph = Graph(edges, 2, len(a)).to(a.device)
        pairwise = _table(a[edges[:, 0], edges[:, 1]])
        unary = torch.stack([torch.zeros_like(b), b], 1)
        if spread_bias:
            degrees = graph.degrees
            shares = torch.where(degrees > 0, b / degrees.clamp(min=1), 0.0)
            pairwise[:, 1, :] += shares[edges[:, 0], None]
            pairwise[:, :, 1] += shares[edges[:, 1], None]
            unary[degrees > 0] = 0
        model = PairwiseMRF(graph, pairwise, unary)
        matrix = a.new_zeros(len(a), 0) if self.visible is None else self.visible.detach()
        links = matrix.nonzero()
        return BinaryPotentials(model, links, _table(matrix[links[:, 0], links[:, 1]]))

    def init(self, x: Tensor) -> Tensor:
        """mu^0."""
        needed = self.hidden if self.visible is None else self.visible.shape[1]
        if x.dim() != 2 or (x.shape[1] != needed and needed > 0):
            raise ValueError(f"x has the shape {tuple(x.shape)}; give (batch, {needed})")
        return self.start.to(x).expand(len(x), self.hidden)

    def step(self, x: Tensor, beliefs: Tensor) -> Tensor:
        """mu <- logistic(A mu + b + C v) (equation ``eq:sigmoidnet``)."""
        units, before = self.coupling.shape
        field = beliefs[:, :before] @ self.coupling.mT + self.bias
        if self.visible is None:
            field = field + x[:, :units]
        elif self.visible.shape[1] > 0:
            field = field + x @ self.visible.mT
        return nn.functional.pad(torch.sigmoid(field), (0, self.hidden - units))

    def readout(self, x: Tensor, beliefs: Tensor) -> Tensor:
        """The units of the last layer; of a layer that has as many as the state, all."""
        return beliefs[:, : self.coupling.shape[0]]

    def extra_repr(self) -> str:
        seen = "a field" if self.visible is None else f"{self.visible.shape[1]} visible"
        return f"{self.coupling.shape[0]} of {self.hidden} hidden, {seen}"


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _interaction(tables: Tensor) -> Tensor:
    """psi_11 - psi_01 - psi_10 + psi_00."""
    return tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0] + tables[:, 0, 0]


def _table(corner: Tensor) -> Tensor:
    """Tables (L, 2, 2) that are zero but for both states being 1."""
    tables = corner.new_zeros(len(corner), 2, 2)
    tables[:, 1, 1] = corner
    return tables


def _tables_of(model: PairwiseMRF) -> Tensor:
    """The pairwise potentials of a model that is finite, binary and complete in itself."""
    if model.graph.counts != [2] * model.graph.nodes:
        node = next(i for i, count in enumerate(model.graph.counts) if count != 2)
        raise ValueError(f"node {node} has {model.graph.counts[node]} states; a binary model has 2 at every node")
    if model.pairwise is None or model.evidence is not None:
        raise ValueError(
            "potentials that come with each input have no A, b and C; give a model with pairwise potentials and "
            "without evidence, and what hangs on visible nodes as links and tables"
        )
    pairwise = (model.pairwise if model.groups is None else model.pairwise[model.groups]).detach()
    for name, values in (("pairwise", pairwise), ("unary", model.unary)):
        if values is not None and not bool(values.isfinite().all()):
            raise ValueError(f"the {name} potentials have entries of -inf, which A, b and C cannot hold")
    return pairwise


def _check_links(
    nodes: int, links: Tensor | None, tables: Tensor | None, visible: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Links and tables, empty ones where there are none."""
    if links is None and tables is None:
        return torch.zeros(0, 2, dtype=torch.int64, device=like.device), like.new_zeros(0, 2, 2)
    if links is None or tables is None:
        raise ValueError("links and tables belong together; give both, or neither")
    if links.dim() != 2 or links.shape[1] != 2 or links.is_floating_point() or tables.shape != (len(links), 2, 2):
        raise ValueError(
            f"links {tuple(links.shape)} must be pairs (L, 2) of a hidden and a visible node, and tables "
            f"{tuple(tables.shape)} be (L, 2, 2)"
        )
    for column, count, kind in ((0, nodes, "hidden"), (1, visible, "visible")):
        if len(links) and not 0 <= int(links[:, column].min()) <= int(links[:, column].max()) < count:
            raise ValueError(f"a link leads to a {kind} node that does not exist; there are {count}, from 0")
    if len(links.unique(dim=0)) < len(links):
        raise ValueError("a pair of a hidden and a visible node is linked twice; give each once")
    if not bool(tables.isfinite().all()):
        raise ValueError("tables have entries that are not finite, which A, b and C cannot hold")
    return links, tables.detach().to(like)
