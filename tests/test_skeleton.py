"""The skeleton that the documentation gives to authors of algorithms is one that passes the conformance suite."""

import importlib.util
import runpy
from pathlib import Path

import pytest

from deepunfold.testing import CHECKS, Case

SKELETON = Path(__file__).parent.parent / "docs" / "skeleton.py"


def _module():
    spec = importlib.util.spec_from_file_location("skeleton", SKELETON)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_skeleton_conforms(check):
    skeleton = _module()
    algorithm, x = skeleton.example()
    check(Case(algorithm, x, converged=skeleton.CONVERGED))


def test_skeleton_uses_each_parameter_where_it_says():
    skeleton = _module()
    algorithm, x = skeleton.example()
    names = {name for name, _ in algorithm.named_parameters()}
    assert names == {*skeleton.MyAlgorithm.step_parameters, *skeleton.MyAlgorithm.readout_parameters}
    algorithm.readout(x, algorithm.step(x, algorithm.init(x))).sum().backward()
    assert all(parameter.grad is not None for parameter in algorithm.parameters())


def test_skeleton_runs_as_a_script(capsys):
    runpy.run_path(str(SKELETON), run_name="__main__")
    assert capsys.readouterr().out == ""


def test_every_method_is_marked_for_filling_in():
    text = SKELETON.read_text()
    methods = ("class MyAlgorithm", "def init", "def step", "def readout", "def example")
    for part in methods:
        assert "FILL IN" in text.partition(part)[2].partition("def ")[0], f"{part} is not marked"
