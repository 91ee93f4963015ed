"""Deep NMF: the layers of Section 5.4, the parameter counts of Table 2, separation in blocks."""

import pytest
import torch

import deepunfold as du
from deepunfold.nmf import NMFInference, SparseNMF, context, count, deep_nmf, infer, separate, wiener
from tests.cases import bases

T, F = 3, 5


def wide_bases(sizes=(3, 2)):
    columns = [torch.rand(T * F, size, dtype=torch.float64) + 0.01 for size in sizes]
    return [own / own.norm(dim=0) for own in columns]


def mixture(frames=9):
    return context(torch.rand(frames, F, dtype=torch.float64), T)


# Table 2 of the paper (``tab:chime_dev``): R_l, K, C, P_D and P, with F = 200, T = 9 and two sources.
TABLE = [
    *((100, 4, c, 40_000 * c, 360_000 + 40_000 * c) for c in range(5)),
    *((100, 25, c, 40_000 * c, 360_000 + 40_000 * c) for c in range(5)),
    *((1000, 4, c, 400_000 * c, 3_600_000 + 400_000 * c) for c in range(5)),
    *((1000, 25, c, 400_000 * c, 3_600_000 + 400_000 * c) for c in range(4)),
]


@pytest.mark.parametrize(("components", "layers", "train_last", "trained", "total"), TABLE)
def test_parameter_counts_of_table_2(components, layers, train_last, trained, total):
    wide = [torch.ones(9 * 200, components), torch.ones(9 * 200, components)]
    assert count(deep_nmf(wide, layers, train_last, context=9)) == (trained, total)


def test_context_puts_the_present_frame_last():
    frames = torch.arange(8.0).reshape(4, 2)
    expected = [[0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]]
    assert context(frames, 3).tolist() == expected
    assert torch.equal(context(frames, 1), frames)
    batch = torch.rand(2, 4, 2)
    assert torch.equal(context(batch, 3)[1], context(batch[1], 3))
    assert context(torch.rand(20, 3), 4).shape == (20, 12)


def test_no_trained_layer_is_sparse_nmf_bit_for_bit():
    parts, x = wide_bases(), mixture()
    whole = torch.cat(parts, 1)
    net = deep_nmf(parts, 7, 0, context=T, sparsity=0.2)
    algorithm = NMFInference(whole, (3, 2), sparsity=0.2, features=F)
    assert torch.equal(net(x), du.unfold(algorithm, 7)(x))
    assert torch.equal(net(x), du.iterate(algorithm, x, until=None, max_steps=7).value)
    activations = infer(algorithm, x, 7)
    models = torch.stack([activations[:, :3] @ parts[0][-F:].mT, activations[:, 3:] @ parts[1][-F:].mT], 1)
    assert torch.equal(separate(net, x), wiener(x[:, -F:], models))


def test_one_trained_layer_is_dnmf():
    """DNMF infers as sparse NMF does, and has bases of its own for the reconstruction alone."""
    parts, x = wide_bases(), mixture()
    net = deep_nmf(parts, 7, 1, context=T, sparsity=0.2)
    assert torch.equal(net(x), deep_nmf(parts, 7, 0, context=T, sparsity=0.2)(x))
    with torch.no_grad():
        net.layers[7].basis.mul_(torch.rand(F, 5, dtype=torch.float64))
    before, after = (network.states(x, [7])[0] for network in (deep_nmf(parts, 7, 0, context=T, sparsity=0.2), net))
    assert torch.equal(before, after)
    assert [name for name, own in net.named_parameters() if own.requires_grad] == ["layers.7.basis"]


def test_layers_see_what_section_5_says():
    net = deep_nmf(wide_bases(), 6, 3, context=T)
    assert [tuple(layer.basis.shape) for layer in net.layers] == [(T * F, 5)] * 4 + [(F, 5)] * 3
    assert [layer.basis.requires_grad for layer in net.layers] == [False] * 4 + [True] * 3
    assert len({id(layer.basis) for layer in net.layers}) == 4
    for k in (4, 5, 6):
        assert torch.equal(net.layers[k].basis, net.layers[0].basis[-F:])


def test_single_frame_layers_use_the_last_frame():
    parts, x = wide_bases(), mixture()
    net = deep_nmf(parts, 2, 2, context=T, sparsity=0.2)
    whole = torch.cat(parts, 1)
    first = NMFInference(whole, (3, 2), sparsity=0.2, features=F)
    second = NMFInference(whole[-F:], (3, 2), sparsity=0.2)
    state = first.step(x, first.init(x))
    state = second.step(x[:, -F:], state)
    torch.testing.assert_close(net(x), second.readout(x[:, -F:], state), rtol=1e-14, atol=0)


def test_every_layer_can_be_trained_where_there_is_no_context():
    net = deep_nmf(bases(), 4, 5)
    assert all(layer.basis.requires_grad for layer in net.layers)
    assert count(net) == (5 * 21, 5 * 21)


def test_tying_of_the_trained_layers():
    net = deep_nmf(wide_bases(), 6, 4, context=T, tie=[0, 0, 0, 1, 1, 1, 1])
    assert len({id(layer.basis) for layer in net.layers[3:]}) == 1
    assert count(net).trained == F * 5


def test_sparsity_is_learnt_where_layers_update():
    net = deep_nmf(wide_bases(), 6, 3, context=T, sparsity=0.2, learn_sparsity=True)
    trained = [name for name, own in net.named_parameters() if own.requires_grad and "sparsity" in name]
    assert trained == ["layers.4.sparsity", "layers.5.sparsity"]
    assert count(net).trained == 3 * F * 5 + 2 * 5


def test_a_constraint_keeps_trained_bases_positive():
    net = deep_nmf(bases(), 3, 2, constraint=du.Positive())
    x = torch.rand(6, 7, dtype=torch.float64)
    torch.testing.assert_close(net(x), deep_nmf(bases(), 3, 2)(x))
    optimizer = torch.optim.SGD([own for own in net.parameters() if own.requires_grad], lr=100.0)
    net(x).square().sum().backward()
    optimizer.step()
    assert all(bool((layer.basis >= 0).all()) for layer in net.layers)


@pytest.mark.parametrize("train_last", [0, 1, 3])
@pytest.mark.parametrize("frames", [1, 700])
def test_separation_in_blocks_is_the_network(frames, train_last):
    net, x = deep_nmf(wide_bases(), 5, train_last, context=T, sparsity=0.1), mixture(frames)
    torch.testing.assert_close(separate(net, x), net(x).detach())
    torch.testing.assert_close(separate(net, x, block=64), net(x).detach())


def test_saved_and_loaded(tmp_path):
    net, x = deep_nmf(wide_bases(), 5, 3, context=T, sparsity=0.1, learn_sparsity=True), mixture()
    du.save(net, tmp_path / "net.safetensors")
    loaded = du.load(tmp_path / "net.safetensors")
    assert torch.equal(loaded(x), net(x))
    assert torch.equal(separate(loaded, x), separate(net, x))
    assert loaded.tying_table() == net.tying_table()


def test_sources_from_learnt_bases():
    sources = torch.rand(60, 2, F, dtype=torch.float64)
    learnt = [SparseNMF(3, seed=number).fit(context(sources[:, number], T), steps=5) for number in range(2)]
    net = deep_nmf([model.basis for model in learnt], 4, 1, context=T)
    x = context(sources.sum(1), T)
    torch.testing.assert_close(separate(net, x).sum(1), sources.sum(1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: deep_nmf([], 3), "needs a basis for each source, none was given"),
        (lambda: deep_nmf([torch.ones(4, 2), torch.ones(5, 2)], 3), "the bases have 4, 5 rows; give bases of equal"),
        (lambda: deep_nmf([torch.ones(4, 2)], 3, context=3), "context=3 frames do not fit bases of 4 rows"),
        (lambda: deep_nmf([torch.ones(4, 2)], 0), "layers=0 infers nothing"),
        (lambda: deep_nmf([torch.ones(4, 2)], 3, 4, context=2), "train_last=4 is out of range: .* allow 0 to 3"),
        (lambda: deep_nmf([torch.ones(4, 2)], 3, 5), "train_last=5 is out of range: .* allow 0 to 4"),
        (lambda: deep_nmf([-torch.ones(4, 2)], 3), "the basis of source 0 has negative values"),
        (lambda: context(torch.ones(4, 2), 0), "context of 0 frames"),
        (lambda: separate(deep_nmf(bases(), 2), torch.ones(3, 4)), "has 4 values per frame, but the basis has 7 rows"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_another_kind_of_network():
    net = du.unfold(du.algorithms.ISTA(torch.eye(3)), 2)
    with pytest.raises(TypeError, match="takes a network of NMFInference layers as deep_nmf makes it, not one of ISTA"):
        separate(net, torch.ones(2, 3))
