"""docs/architecture.md names every module at the top of the package, and no other."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "scaffolding_ext"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = sorted(
    {path.stem for path in PACKAGE.glob("*.py")}
    | {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} - {"configs"}
)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "__init__"])
def test_every_module_is_named(name):
    assert f"`{name}`" in TEXT
