"""The conformance suite, files and training on a GPU."""

import copy

import pytest
import torch
from torch.nn.functional import mse_loss

import deepunfold as du
from deepunfold.core import _tree
from deepunfold.core.algorithms import ISTA
from deepunfold.nmf import DeepNMFLoss, MultiplicativeUpdate, SparseNMF, deep_nmf, infer, separate
from deepunfold.testing import CHECKS, Case
from tests.cases import all_cases, bases, dictionary, mixtures, nmf, signals

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CASES = {name: case for name, case in all_cases().items() if name != "functions"}


def on_gpu(case):
    x = _tree.map_tensors(lambda leaf: leaf.cuda(), case.x)
    return Case(copy.deepcopy(case.algorithm).cuda(), x, case.layers, case.converged)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", CASES)
def test_algorithm_conforms(name, check):
    if check.__name__ == "copies_are_faithful":
        pytest.skip("files are loaded to the CPU; see below")
    check(on_gpu(CASES[name]))


def test_a_file_is_loaded_to_the_device_that_is_named(tmp_path):
    net = du.unfold(ISTA(dictionary()), 3, tie="each").cuda()
    du.save(net, tmp_path / "net.safetensors")
    other = du.load(tmp_path / "net.safetensors", device="cuda")
    assert {p.device.type for p in other.parameters()} == {"cuda"}
    assert torch.equal(other(signals().cuda()), net(signals().cuda()))


def test_a_network_grown_on_the_device_stays_there():
    net = du.unfold(ISTA(dictionary()), 3).cuda().grow(2)
    assert {p.device.type for p in net.parameters()} == {"cuda"}


def test_training_resumes_on_the_device(tmp_path):
    x, z = signals().cuda(), signals(4, 5).cuda()

    def run(epochs, path=None):
        net = du.unfold(ISTA(dictionary()), 3, tie="each").cuda()
        return du.fit(net, [(x, z)], mse_loss, epochs=epochs, checkpoint=path), net

    run(2, tmp_path / "run.safetensors")
    resumed, first = run(4, tmp_path / "run.safetensors")
    whole, second = run(4)
    assert [epoch.loss for epoch in resumed.epochs] == [epoch.loss for epoch in whole.epochs]
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_non_negative_models_give_what_they_give_on_the_cpu():
    x = mixtures(40)
    target = torch.stack([0.3 * x, 0.7 * x], 1)
    results = []
    for device in ("cpu", "cuda"):
        net = deep_nmf(bases(), 4, 2, sparsity=0.1).to(device)
        data = [(x.to(device), target.to(device))]
        du.fit(net, data, DeepNMFLoss(2, block=16), epochs=3, optimizer=MultiplicativeUpdate)
        learnt = SparseNMF(3, sparsity=0.1).fit(x.to(device), steps=5)
        inferred = infer(nmf().to(device), x.to(device), 7)
        results.append([separate(net, x.to(device)), learnt.basis, learnt.activations, inferred])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(theirs.cpu(), ours)
