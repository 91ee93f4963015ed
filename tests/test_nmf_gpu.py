"""The fused kernel of the benchmark gives what inference gives: on a GPU, or in Triton's interpreter."""

import os

import pytest
import torch

from deepunfold.nmf import NMFInference, infer

pytest.importorskip("triton", reason="comes with PyTorch where there is a GPU")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)


@pytest.mark.parametrize("components", [5, 40])
def test_fused_kernel(components):
    from benchmarks._nmf_gpu import fused

    device = "cuda" if torch.cuda.is_available() else "cpu"
    basis, mixture = torch.rand(70, components, device=device), torch.rand(45, 70, device=device)
    mixture[3] = 0
    basis = basis / basis.norm(dim=0)
    expected = infer(NMFInference(basis, sparsity=5.0), mixture, 6)
    torch.testing.assert_close(fused(basis, mixture, 5.0, 6), expected, rtol=2e-3, atol=1e-4)
