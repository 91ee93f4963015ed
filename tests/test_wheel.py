"""The built wheel, installed into a clean environment and used outside of the repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow

REAL_CALL = """
import torch, deepunfold as du
dictionary = torch.nn.functional.normalize(torch.randn(8, 12), dim=0)
net = du.unfold(du.algorithms.ISTA(dictionary), 5, tie="each")
net(torch.randn(3, 8)).square().sum().backward()
du.save(net, "net.safetensors", note="made outside")
assert torch.equal(du.load("net.safetensors")(torch.ones(1, 8)), net(torch.ones(1, 8)))
print(du.__file__)
"""


def run(*command, cwd):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"deepunfold", "deepunfold-0.1.0.dist-info"}
    assert "deepunfold/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_works_in_a_clean_environment(wheel, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    place = run(python, "-W", "error", "-c", REAL_CALL, cwd=tmp_path).strip()
    assert Path(place).is_relative_to(tmp_path)
    program = tmp_path / "env" / "bin" / "deepunfold"
    assert "info" in run(program, "--help", cwd=tmp_path)
    assert "note: made outside" in run(program, "info", "net.safetensors", cwd=tmp_path)
