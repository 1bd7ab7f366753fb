"""What the documentation shows, runs: the Python blocks of README.md and docs/, on one rank."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if page.exists()]

# A block that is not to be run says so: ```python skip
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)

OPTIONAL = re.compile(r"^\s*(?:import|from)\s+(torch|cupy|horovod)\b", re.MULTILINE)
"""Libraries that an example may use and that the tests do not install."""


def blocks(page: Path) -> list[str]:
    """Return the blocks, each with as many empty lines before it as make its line numbers right."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of one page one after the other, as one program."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for code in blocks(page):
        missing = [name for name in OPTIONAL.findall(code) if not importlib.util.find_spec(name)]
        if missing:
            continue
        if ">>> " in code:
            run_session(code, page, names)
        else:
            exec(compile(code, str(page), "exec"), names)


def run_session(code: str, page: Path, names: dict[str, object]) -> None:
    """Run a block of prompts and answers."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    if said:
        pytest.fail("".join(said), pytrace=False)


def test_blocks_keep_their_line_numbers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n```\n```python skip\nno\n```\n```text\nno\n```\n")
    assert blocks(page) == ["\n\n\nx = 1\n"]
