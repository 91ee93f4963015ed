"""Two pages of the site are files of the repository's root: the same text, with links that lead to the same places."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_page_markdown(markdown: str, page: Any, **_rest: Any) -> str:
    """Put the file in the place of its page."""
    name = PAGES.get(page.file.src_uri)
    if name is None:
        return markdown
    text = (ROOT / name).read_text(encoding="utf-8")
    for own, original in PAGES.items():
        text = text.replace(f"]({original})", f"]({own})")
    return text.replace("](docs/", "](")
