"""Code on the pages is right as it stands: stack files build, Python compiles, commands have the options they use."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator

import click

from scaffolding_ext import ConfigError, plain_yaml
from scaffolding_ext.cli.main import main
from scaffolding_ext.registry import controllers, policies
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from tests.docs.pages import DOCS, ROOT, blocks

TEXTS = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    if not page.is_relative_to(DOCS / "_scripts")
}
STANDIN = {"type": "scaffolding_ext.testing:ScriptedWorker", "args": {"respond": "1"}}
INSIDE_OTHERS = {"RewardController", "ProcessRewardController", "RecordChainController", "ResultRewardController"}
PLAIN = {"NativeGenerationController", "DynasorGenerationController"}  # the latter is upstream's name of DynasorCoT
COMMAND = re.compile(r"^scaffolding-ext (?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def stacks() -> Iterator[tuple[str, dict[str, object]]]:
    """Every stack file on a page, and every part of one that has a controller."""
    for page, text in TEXTS.items():
        for block in blocks(text, "yaml"):
            if block.text.startswith("controller:"):
                yield page, plain_yaml.parse(block.text, page)


def test_stack_files_build() -> None:
    """With stand-ins for workers that need an extra, a server or a model."""
    faults, num = [], 0
    for page, stack in stacks():
        num += 1
        workers = dict.fromkeys(stack.get("workers", ["generation"]), STANDIN)  # type: ignore[call-overload]
        try:
            load_config(stack)
            check_stack(load_config({"controller": stack["controller"], "workers": workers}))
        except ConfigError as error:
            faults.append(f"{page}: {error}")
    assert faults == []
    assert num > 15


def test_every_controller_has_a_stack_on_a_page() -> None:
    shown = {str(stack["controller"]["type"]) for _, stack in stacks()}  # type: ignore[index]
    own = {name for name in controllers.names() if controllers.resolve(name).__module__.startswith("scaffolding_ext.")}
    assert {name for name in own if name.endswith("Controller")} - INSIDE_OTHERS - PLAIN - shown == set()
    assert [name for name in policies.names() if f"| `{name}` |" not in TEXTS["docs/scheduling.md"]] == []


def test_python_compiles() -> None:
    for page, text in TEXTS.items():
        for block in blocks(text, "python"):
            ast.parse(textwrap.dedent(block.text), page)


def unknown(line: str) -> Iterator[str]:
    """Words of a command line that are neither a command, nor an option of it."""
    words = iter(shlex.split(line.partition("|")[0].partition("&&")[0], comments=True)[1:])
    command: click.Command = main
    for word in words:
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                yield word
                return
            command = command.commands[word]
        elif word.startswith("--") and word != "--help" and word.partition("=")[0] not in known:
            yield word


def test_commands_have_the_options_they_use() -> None:
    faults, num = [], 0
    for page, text in TEXTS.items():
        inline = [line for line in re.findall(r"`(scaffolding-ext [^`]+)`", text) if "COMMAND" not in line]
        for line in [*COMMAND.findall(text), *inline]:
            num += 1
            faults += [f"{page}: {word} in {line}" for word in unknown(line.replace("\\\n", " "))]
    assert faults == []
    assert num > 60
