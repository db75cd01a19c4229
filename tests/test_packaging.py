"""The contents of the wheel, the installed metadata, and the packaged stacks."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import scaffolding_ext
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

ROOT = Path(__file__).parents[1]
SOURCES = (
    *("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"),
    *("scaffolding_ext", "controllers", "workers", "configs"),
)
MAPPED = ("controllers", "workers", "configs")  # top-level folders that become subpackages
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
EXTRAS = {"hf", "openai", "serve", "ray", "lm-eval", "inspect", "otel", "all", "docs", "train", "plots", "dev"}
MOST_BYTES = 5_000_000  # of the wheel; the weights of the embedded models are 2.9 million of them


def build_options() -> list[str]:
    """Without an isolated environment, and so offline, where the installed setuptools can build a wheel by itself."""
    if importlib.util.find_spec("setuptools") is None:
        return []
    version = tuple(map(int, importlib.metadata.version("setuptools").split(".")[:2]))
    return ["--no-build-isolation"] if version >= (70, 1) else []


def sources(copy: Path) -> Path:
    """A copy of the sources, with what an earlier build of other sources has left there."""
    copy.mkdir()
    for folder in ("lib", f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"):
        left = copy / "build" / folder / "scaffolding_ext" / "gone.py"
        left.parent.mkdir(parents=True)
        left.write_text("raise SystemError('a module that the sources no longer have')\n", encoding="utf-8")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, copy / name)
    return copy


def build_wheel(folder: Path, **environment: str) -> zipfile.ZipFile:
    """The wheel of a copy of the sources."""
    copy = sources(folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", *build_options(), "--wheel-dir", str(folder), "."]
    process = subprocess.run(
        command,
        cwd=copy,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def files(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile, files: set[str]) -> Message:
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


# ---- the wheel


def test_the_package_is_the_only_top_level_module(files: set[str]) -> None:
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == {"scaffolding_ext"}


def test_every_source_file_is_in_the_wheel_and_nothing_else(files: set[str]) -> None:
    expected = {
        f"scaffolding_ext/{path.relative_to(ROOT / 'scaffolding_ext')}"
        for path in (ROOT / "scaffolding_ext").rglob("*.py")
        if path.relative_to(ROOT / "scaffolding_ext").parts[0] not in MAPPED
    }
    expected |= {f"scaffolding_ext/{path.relative_to(ROOT)}" for name in MAPPED for path in (ROOT / name).rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == expected


def test_data_files_are_in_the_wheel(files: set[str], wheel: zipfile.ZipFile) -> None:
    stacks = {f"configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")}
    of_a_model = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    models = {f"tinylm/weights/{model}/{name}" for model in ("draft", "target") for name in of_a_model}
    others = {"py.typed", "evaluation/run/record.schema.json", "workers/huggingface/block_attention.c"}
    assert "configs/native.yaml" in stacks
    assert not [name for name in stacks | models | others if f"scaffolding_ext/{name}" not in files]
    for model in ("draft", "target"):
        assert wheel.getinfo(f"scaffolding_ext/tinylm/weights/{model}/model.safetensors").file_size > 100_000


def kernels(files: set[str]) -> list[str]:
    folder = "scaffolding_ext/workers/huggingface/_block_kernel"
    return [name for name in files if name.startswith(folder) and name.endswith((".so", ".pyd"))]


@pytest.mark.skipif(shutil.which("cc") is None, reason="this machine has no C compiler")
def test_the_wheels_kernel_loads(files: set[str], wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    (name,) = kernels(files)
    wheel.extractall(tmp_path)
    code = "from scaffolding_ext.workers.huggingface import _block_kernel; print(_block_kernel.__file__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert run.stdout.decode().strip() == str(tmp_path / name)


def test_without_a_compiler_there_is_a_wheel_without_a_kernel(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, CC="no-such-compiler")
    assert not kernels(set(wheel.namelist()))
    assert "scaffolding_ext/workers/huggingface/attention.py" in wheel.namelist()


def test_the_wheel_serves_every_python(wheel: zipfile.ZipFile, files: set[str]) -> None:
    """Its kernel uses Python's stable interface alone."""
    assert "-cp310-abi3-" in Path(str(wheel.filename)).name
    assert all(name.endswith((".abi3.so", "_block_kernel.pyd")) for name in kernels(files))


def test_neither_scratch_nor_tests_nor_benchmarks_are_in_the_wheel(wheel: zipfile.ZipFile, files: set[str]) -> None:
    assert not [name for name in files if name.endswith((".pt", ".pyc", ".log", ".tmp"))]
    assert not [name for name in files if "/tests/" in name or "benchmark" in name or "test_" in name.split("/")[-1]]
    assert Path(str(wheel.filename)).stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_the_source_archive_makes_the_same_wheel(tmp_path: Path, files: set[str]) -> None:
    copy = sources(tmp_path / "source")
    run = [sys.executable, "-m", "build", *([] if not build_options() else ["--no-isolation"]), "--outdir"]
    subprocess.run([*run, str(tmp_path / "dist"), str(copy)], check=True, capture_output=True, timeout=600)
    made = sorted((tmp_path / "dist").iterdir())
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, made)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (wheel,) = (path for path in made if path.suffix == ".whl")  # made from the archive
    assert {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")} == files


def test_an_index_can_follow_the_readmes_links(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert "# scaffolding_ext" in text
    assert not [target for target in re.findall(r"]\(([^)]+)\)", text) if not target.startswith(("https://", "#"))]


def test_the_wheels_metadata(metadata: Message, wheel: zipfile.ZipFile, files: set[str]) -> None:
    assert metadata["Name"] == "scaffolding-ext"
    assert metadata["Version"] == scaffolding_ext.__version__
    assert metadata["Requires-Python"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Keywords"]
    addresses = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    (home,) = re.findall(r'^HOME = "(.*?)"', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert metadata["Home-page"] == (home or None)
    assert {"Documentation", "Changelog", "Issues"} & addresses.keys() == ({*addresses} if home else set())
    assert [address for address in addresses.values() if not (home and address.startswith(home))] == []
    pythons = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if "Python :: 3." in line]
    assert pythons == ["3.10", "3.11", "3.12", "3.13"]
    assert set(metadata.get_all("Provides-Extra", [])) >= EXTRAS
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in core if line.startswith(("torch", "transformers", "tensorrt"))]
    (name,) = (name for name in files if name.endswith("entry_points.txt"))
    assert "scaffolding-ext = scaffolding_ext.cli.main:main" in wheel.read(name).decode()
    assert [name for name in files if name.endswith("LICENSE") and ".dist-info/" in name]


# ---- what is installed


def test_the_mapped_folders_are_no_top_level_modules(tmp_path: Path) -> None:
    """Asked from elsewhere than the repository's root, whose folders of those names Python would take for packages."""
    code = f"import importlib.util; print([name for name in {MAPPED} if importlib.util.find_spec(name)])"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert run.stdout.strip() == b"[]"
    assert all(importlib.util.find_spec(f"scaffolding_ext.{name}") for name in MAPPED)


def test_a_stack_file_is_found_through_importlib_resources() -> None:
    text = (importlib.resources.files("scaffolding_ext.configs") / "native.yaml").read_text(encoding="utf-8")
    assert "NativeGenerationController" in text
    assert load_config("configs:native").controller.type == "NativeGenerationController"


def test_omegaconf_and_math_verify_can_both_have_the_runtime_that_they_read_with() -> None:
    """TensorRT-LLM needs omegaconf, which reads with ANTLR 4.9 alone; with 4.13 its import raises."""
    (asked,) = re.findall(r'"(antlr4-python3-runtime.*)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
    ours = Requirement(asked)
    taken = ["4.9.2", "4.9.3", "4.10", "4.11.0", "4.11.1", "4.12.0", "4.13.0", "4.13.1", "4.13.2", "4.14.0"]
    assert list(ours.specifier.filter(taken)) == ["4.9.3", "4.11.0", "4.11.1", "4.13.2"]
    assert list((ours.specifier & SpecifierSet("==4.9.*")).filter(taken)) == ["4.9.3"]


# ---- the packaged stacks


def test_every_packaged_stack_is_right_commented_and_can_be_evaluated() -> None:
    wrong = []
    for name in CONFIGS:
        text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
        try:
            check_stack(load_config(f"configs:{name}"))
        except ConfigError as error:
            wrong.append(f"{name}: {error}")
        if not text.startswith("# ") or f"--config configs:{name}" not in text:
            wrong.append(f"{name}: no comment with the command that evaluates it")
        if load_config(f"configs:{name}").dataset is None:
            wrong.append(f"{name}: no dataset")
    assert {"native", "dynasor_cot", "budget_forcing"} <= set(CONFIGS)
    assert not wrong
