"""Memory does not grow with the number of frames beyond the data and the result."""

import pytest
import torch

from benchmarks._memory import peak_bytes
from deepunfold.nmf import DeepNMFLoss, NMFInference, SparseNMF, deep_nmf, infer, separate

CPU = torch.device("cpu")


def networks(frames):
    basis, mixture = torch.rand(30, 8), torch.rand(frames, 30)
    net = deep_nmf([basis[:, :4], basis[:, 4:]], 6, 3)
    sources = torch.stack([0.4 * mixture, 0.6 * mixture], 1)
    return basis, mixture, net, sources


def peak(call):
    call()
    return peak_bytes(call, CPU)


@pytest.mark.slow
def test_peaks():
    frames, used = (2048, 8192), []
    for count in frames:
        basis, mixture, net, sources = networks(count)
        loss, algorithm = DeepNMFLoss(2), NMFInference(basis)

        def train(net=net, mixture=mixture, sources=sources, loss=loss):
            loss(net, mixture, sources).backward()
            for each in net.parameters():
                each.grad = each.split_grad = None

        used.append(
            {
                "train": peak(train),
                "infer": peak(lambda a=algorithm, m=mixture: infer(a, m, 5)) - 4 * count * 8,
                "separate": peak(lambda n=net, m=mixture: separate(n, m)) - 4 * count * 2 * 30,
                "learn": peak(lambda m=mixture: SparseNMF(8).fit(m, steps=2)) - 4 * count * 8,
            }
        )
    for name, few in used[0].items():
        assert used[1][name] <= 1.02 * few + 1024, (
            f"{name}: {few} bytes for {frames[0]} frames, {used[1][name]} for more"
        )
