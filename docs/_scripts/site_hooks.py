"""Hooks of the site: its examples and stack files come along; links to other files lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
HOME = re.findall(r'^HOME = "(.*?)"', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)[0]
TAKEN = ("examples/*", "examples/own_*/*", "configs/*.yaml", "configs/models/*.yaml")
LANGUAGES = {".py": "python", ".sh": "bash"}
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
LONG_NAME = re.compile(r"(?<=<code>)[\w./:-]{20,}(?=</code>)")
INLINE = re.compile(r"(?<=<code>)[^<]+")
OPTION = re.compile(r"(?<![\w-])--?[\w-]+")
BREAK = re.compile(r"(?<=\w)[./](?=\w)|_(?=[a-z]{4})")
EXAMPLE = re.compile(r"^\| \[\w+\.\w+]\(\.\./(examples/[\w.]+)\)", re.MULTILINE)  # a row of the examples
LINK = re.compile(r"(!?\[[^]]*]\()((?:\.\./)+[^)#\s]+)(#[^)\s]+)?\)")
FIGURES = re.compile(r"^Figures?: `\w+\.json`.*$", re.MULTILINE)  # the line at the foot of a page of results


def on_config(config: Any) -> Any:
    """Say where the source is, in the footer: with `repo_url` every reader would ask that server for its stars."""
    config.copyright = f'<a href="{HOME}">Source</a>, licence Apache-2.0' if HOME else "Licence Apache-2.0"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Take along what a reader of the site alone needs of the repository."""
    for path in sorted(path for pattern in TAKEN for path in ROOT.glob(pattern) if path.is_file()):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make links that leave docs/ lead to what came along, or to the repository; show the examples."""
    folder = PurePosixPath(page.file.src_uri).parent

    def mended(found: re.Match[str]) -> str:
        before, target, anchor = found[1], found[2], found[3] or ""
        inside = _within("docs" / folder / target)
        if inside.is_relative_to("docs"):
            return found[0]
        if not (ROOT / inside).exists():
            raise PluginError(f"{page.file.src_uri}: {target} is not in the repository")
        if files.get_file_from_path(str(inside)) is not None:
            return f"{before}{'../' * len(folder.parts)}{inside}{anchor})"
        return f"{before}{HOME}/blob/main/{inside}{anchor})" if HOME else before.strip("![(]")

    if page.file.src_uri == "getting_started.md":
        markdown += "".join(_shown(ROOT / name) for name in EXAMPLE.findall(markdown))
    if "\n## " not in markdown:  # a table of contents would be empty, and take room
        page.meta.setdefault("hide", []).append("toc")
    return FIGURES.sub(r'??? info "Files of the figures on this page"\n\n    \g<0>', LINK.sub(mended, markdown))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Break long names in tables behind dots and slashes, so that the table fits the page; keep options whole."""
    html = CELL.sub(lambda cell: LONG_NAME.sub(lambda name: BREAK.sub(r"\g<0><wbr>", name[0]), cell[0]), html)
    return INLINE.sub(lambda code: OPTION.sub(r'<span class="whole">\g<0></span>', code[0]), html)


def _shown(example: Path) -> str:
    """An example as a block that a reader opens."""
    lines = [f"```{LANGUAGES[example.suffix]}", *example.read_text(encoding="utf-8").splitlines(), "```"]
    return "\n".join([f'\n??? example "{example.name}"\n', *(f"    {line}".rstrip() for line in lines), ""])


def _within(path: PurePosixPath) -> PurePosixPath:
    """The path without its `..`."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
