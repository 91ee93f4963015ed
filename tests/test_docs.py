"""The documentation runs: every block of Python in it, in order; and what a page says is printed is what is printed.

A page is run in a directory of its own, in one namespace, from seeded random numbers. A block ```` ```text ````
directly after a block of Python, or after a call of the program ``deepunfold``, is the exact output of that block.
"""

import contextlib
import importlib
import io
import os
import random
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import deepunfold as du
from deepunfold.cli import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
NOT_RUN: set[str] = set()  # pages that may have a block ```python no-run
NEEDS = {"files.md": ("onnxscript", "onnxruntime")}  # extras without which a page cannot run

# Warnings of torch about itself, when it compiles and exports.
FROM_TORCH: list[tuple[str, type[Warning]]] = [
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
    (r"Guards may run slower on Python 3\.13\.0", RuntimeWarning),
]

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language with what follows it, its text, the line that it begins on, and its output."""

    info: str
    source: str
    line: int
    output: str | None = None

    @property
    def runs(self) -> bool:
        return self.info == "python" or self.is_command

    @property
    def is_command(self) -> bool:
        return self.info == "bash" and self.source.startswith("deepunfold")


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, each with the text that stands directly after it as its output."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        block = Block(match["info"].strip(), textwrap.dedent(match["body"]), text.count("\n", 0, match.start()) + 2)
        if block.info == "text":
            follows = found and found[-1].runs and not text[end : match.start()].strip()
            assert follows, f"{page.name}:{block.line}: the output of no block; put it directly after one that runs"
            last = found.pop()
            block = Block(last.info, last.source, last.line, block.source)
        found.append(block)
        end = match.end()
    return found


def run_block(block: Block, page: Path, namespace: dict[str, object]) -> str:
    """Run a block and give what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.is_command:
            for command in block.source.splitlines():
                with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
                    patch.setattr(sys, "argv", shlex.split(command))
                    main()
        else:
            source = "\n" * (block.line - 1) + block.source  # so that a traceback names the line of the page
            exec(compile(source, str(page), "exec"), namespace)
    return printed.getvalue()


def run_page(page: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Run a page in a folder; an `AssertionError` names the first block that prints something else than it should."""
    random.seed(0)
    torch.manual_seed(0)
    patch.chdir(folder)
    script = types.ModuleType("__main__")  # what the page would be, were it a script
    patch.setitem(sys.modules, "__main__", script)
    for block in [block for block in blocks_of(page) if block.runs]:
        with warnings.catch_warnings():
            for message, kind in FROM_TORCH:
                warnings.filterwarnings("ignore", message, kind)
            printed = run_block(block, page, script.__dict__)
        assert printed == (block.output or ""), f"{page.name}:{block.line} prints something else than the page says"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, tmp_path, monkeypatch):
    for name in NEEDS.get(page.name, ()):
        pytest.importorskip(name)
    run_page(page, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "prints something else"),
        ("```python\nprint(1)\n```\n\nWords between.\n", "prints something else"),
        ("```bash\ndeepunfold --version\n```\n\n```text\nnone\n```\n", "prints something else"),
        ("```python\npass\n```\n\nWords between.\n\n```text\n2\n```\n", "the output of no block"),
    ],
)
def test_a_page_that_is_not_true_is_noticed(text, message, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=message):
        run_page(page, tmp_path, monkeypatch)


def test_all_python_is_run():
    left_out = {page.name for page in PAGES for block in blocks_of(page) if block.info.startswith("python no-run")}
    assert left_out == NOT_RUN
    known = {"python", "python no-run", "bash", "text"}
    for page in PAGES:
        for block in blocks_of(page):
            included = block.info == "{ .python }" and block.source.startswith(
                '--8<-- "docs/skeleton.py"'
            )  # see test_skeleton
            assert block.info in known or included, f"{page.name}:{block.line}: what is a block of {block.info!r}?"


def test_every_public_name_is_in_the_reference():
    listed = set(re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    modules = {"algorithms", "means", "mrf", "nmf", "speech", "testing"}
    names = {f"deepunfold.{name}" for name in du.__all__ if name not in modules}
    names |= {f"deepunfold.algorithms.{name}" for name in du.algorithms.__all__}
    for module in ("means", "mrf", "nmf", "speech"):
        names |= {f"deepunfold.{module}.{name}" for name in getattr(du, module).__all__}
    assert names <= listed
    for name in listed:
        assert _resolve(name) is not None


def _resolve(name: str) -> object:
    """The object of a dotted name below a module of deepunfold."""
    found: object = importlib.import_module("deepunfold")
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def test_every_dependency_is_listed():
    """Each row of the table names a dependency and the extra that it belongs to, or the base."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"base": project["dependencies"], **project["optional-dependencies"]}
    wanted = {(_package(line), extra) for extra, lines in groups.items() for line in lines} - {("deepunfold", "dev")}
    rows = re.findall(r"^\| `([\w-]+)` \| ([\w, ]+?) \|", (DOCS / "dependencies.md").read_text(), re.MULTILINE)
    assert {(name, extra) for name, extras in rows for extra in extras.split(", ")} == wanted


def _package(requirement: str) -> str:
    match = re.match(r"[\w-]+", requirement)
    assert match is not None
    return match.group()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_of_the_front_pages_lead_somewhere(name):
    """The pages of the site are checked when it is built; these are not part of it."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / name).read_text()):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), f"{name} refers to {target}, which is not there"


@pytest.mark.slow
def test_site_builds(tmp_path):
    """Without a warning, and without anything that a page would have to fetch."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name, reason="the documentation tools are not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    fetched = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?https?:|<link[^>]+stylesheet[^>]+https?:""")
    for page in (tmp_path / "site").rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), f"{page.name} loads something from elsewhere"
