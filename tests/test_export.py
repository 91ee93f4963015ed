"""torch.compile, torch.export and ONNX at fixed depth: the same numbers, for every shipped algorithm."""

import shutil

import pytest
import torch

import deepunfold as du
from deepunfold.core import _tree
from tests.cases import Babylonian, all_cases, shipped
from tests.test_unfold import perturbed

SHIPPED = shipped()
# Warnings of torch about itself.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not:DeprecationWarning"),
]


def single(case):
    """The case in float32, untied and with a readout of each layer of its own."""
    net = perturbed(case.net(tie="each")).float()
    x = _tree.map_tensors(lambda leaf: leaf.float(), case.x)
    return net.eval(), x


def close(one, other, tolerance=1e-5):
    for a, b in zip(_tree.leaves(one), _tree.leaves(other), strict=True):
        assert torch.allclose(torch.as_tensor(a), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", all_cases())
def test_compile_traces_the_whole_network(name):
    case = all_cases()[name]
    net = perturbed(case.net(tie="each"))
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    close(compiled(case.x), net(case.x), 1e-12)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's own backend needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compile_with_code_generation_gives_the_same_gradients():
    net, x = single(SHIPPED["ista"])
    other, _ = single(SHIPPED["ista"])
    other.load_state_dict(net.state_dict())
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True)
    compiled(x).square().sum().backward()
    other(x).square().sum().backward()
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train_last", [None, 2])
def test_compile_works_with_train_last(train_last):
    net = du.unfold(Babylonian(), 4, tie="each", train_last=train_last)
    x = torch.rand(3, 2, dtype=torch.float64) + 1
    torch.compiler.reset()
    close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x), 1e-12)


@pytest.mark.parametrize("name", SHIPPED)
def test_export_gives_a_program_with_the_same_outputs(name):
    net, x = single(SHIPPED[name])
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch}, None)[:1])
    close(program.module()(x), net(x))
    more = torch.cat([x, 2 * x])
    close(program.module()(more), net(more))


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_gives_the_same_outputs(name, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    net, x = single(SHIPPED[name])
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        close(output, net(x), 1e-4)
