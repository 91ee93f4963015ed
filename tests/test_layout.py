"""The house keeps its shape: floors, public names, sizes, and no signs of where it was built."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import deepunfold
import deepunfold.core

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "deepunfold"
FLOORS = {
    "core": set(),
    "means": set(),
    "mrf": {"core", "means"},
    "nmf": {"core"},
    "speech": {"core", "nmf"},
    "testing": {"core"},
    "cli": {"core", "means", "mrf", "nmf", "speech", "testing"},
}
CODE = sorted([*SOURCE.rglob("*.py"), *(ROOT / "recipes").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


def floor_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0] if parts[0] in FLOORS else None


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_floor_imports_only_from_those_above_it(path):
    floor = floor_of(path)
    if floor is None:
        pytest.skip("belongs to no floor")
    below = {name.split(".")[1] for name in imported(path) if name.startswith("deepunfold.")} - {floor}
    assert below <= FLOORS[floor]


def test_core_needs_torch_safetensors_and_little_else():
    allowed = set(sys.stdlib_module_names) | {"deepunfold", "torch", "safetensors", "rich"}
    found = {name.split(".")[0] for path in (SOURCE / "core").rglob("*.py") for name in imported(path)}
    assert found <= allowed


def test_public_names_are_those_of_the_core_and_its_modules():
    assert sorted(deepunfold.__all__) == sorted(
        [*deepunfold.core.__all__, "algorithms", "means", "mrf", "nmf", "speech", "testing"]
    )
    for name in deepunfold.__all__:
        assert getattr(deepunfold, name) is not None
    assert dir(deepunfold) == sorted(deepunfold.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        deepunfold.nothing  # noqa: B018


def test_every_public_thing_is_documented():
    things = {name: getattr(deepunfold, name) for name in deepunfold.core.__all__}
    for module in (deepunfold.means, deepunfold.mrf, deepunfold.nmf, deepunfold.speech):
        things |= {name: getattr(module, name) for name in module.__all__}
    for name, thing in things.items():
        assert (thing.__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_signatures_are_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        # The arguments of a command are the options of the program.
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and path.parent.name != "cli":
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            assert len(arguments) <= 10, f"{path.name}: {node.name} has {len(arguments)} arguments"


def test_importing_the_package_does_not_import_torch():
    script = "import sys, deepunfold, deepunfold.cli; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_constraints_pin_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.match(r"[\w-]+", entry)[0].lower() for entry in wanted} - {"deepunfold"}
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned


def test_nothing_says_where_it_was_made():
    """No path of a machine and no address of a registry in what is committed."""
    signs = re.compile(r"/(?:root|home|Users|work|tmp)/\w|pypi\.org|://[^/\s]*(?:simple|registry)")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".yml", ".json", ".cfg", ""} and path != Path(__file__):
            found = signs.search(path.read_text())
            assert found is None, f"{name}: {found[0]}"
