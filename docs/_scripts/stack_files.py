"""Writes docs/stack_files.md from the models and the registries (`make pages`)."""

from __future__ import annotations

import sys

from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.described import description, kinds

_HEAD = """# Stack files

A stack file is YAML 1.2. It names a controller and its workers, and says how they run. `scaffolding-ext run`, `eval`,
`check` and `serve` take a file, one that ships with the package (`configs:majority_vote`), or
[a recipe for a model](models.md). `make pages` writes this page from the code.

| command | prints |
|---|---|
| `scaffolding-ext stacks` | the stacks that ship with the package |
| `scaffolding-ext stacks majority_vote` | the file of one, with its comments, to begin with |
| `scaffolding-ext stacks keys`, `scaffolding-ext stacks evaluation` | every key of a stack file, or a section's |
| `scaffolding-ext stacks MajorityVoteController` | a type, and its arguments |
| `scaffolding-ext stacks "stopping rules"` | the types of a kind |

Every key and argument is checked before a model is loaded; an error names the key. `--set KEY=VALUE` changes any of
them: `--set controller.args.chunk_size=64`.

**A component** (a controller, a worker, a rule, ...) is a `type`, a name of this page or `package.module:Class`, and
its `args`, which may hold components, too. A small part without arguments may be only a name.
`{$ref: NAME}` is a live object that Python gives.
"""


def page() -> str:
    parts = [_HEAD, f"```console\n$ scaffolding-ext stacks native\n{description('native')}\n```\n"]
    parts += ["## Keys\n", "| key | |\n|---|---|"]
    parts += [f"| `{name}` | {field.description} |" for name, field in StackConfig.model_fields.items()]
    for plural, known in kinds().items():
        names = [name for name in known.names() if known.resolve(name).__module__.startswith("scaffolding_ext.")]
        parts += [f"\n## {plural.capitalize()}\n", ", ".join(f"`{name}`" for name in names)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
