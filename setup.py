"""Packaging: metadata, extras, and the mapping of the top-level folders into the package."""

import re
import shutil
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
HOME = ""  # the address of the repository, in this one place; until there is one, metadata and site link to none
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)  # the package says it; nothing is imported to build it
RELEASED = re.compile(r"^RELEASED = True", re.MULTILINE)  # errors.py says it
ROOTS = {
    "scaffolding_ext": "scaffolding_ext",
    "scaffolding_ext.controllers": "controllers",
    "scaffolding_ext.workers": "workers",
    "scaffolding_ext.configs": "configs",
}
LINKED = ("controllers", "workers", "configs")  # symlinks inside scaffolding_ext, for tools that read the source tree

# Sums may be computed in any order; the whole of -ffast-math would also change the number format of the process.
FLAGS = [
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
]
BLOCK_ATTENTION = Extension(
    "scaffolding_ext.workers.huggingface._block_kernel",
    ["workers/huggingface/block_attention.c"],
    extra_compile_args=[] if sys.platform == "win32" else FLAGS,
    define_macros=[("Py_LIMITED_API", "0x030A0000")],  # one wheel of a platform serves Python 3.10 and all after it
    py_limited_api=True,
    optional=True,  # without a compiler the package installs all the same, and torch computes what the kernel would
)

# What each extra is for stands in docs/install.md.
EXTRAS = {
    "hf": ["torch>=2.6", "transformers>=4.57,<6"],
    "openai": ["openai>=1.60"],
    "serve": ["starlette>=0.46", "uvicorn>=0.34", "httptools>=0.6", "prometheus-client>=0.21"],
    "problems": ["reasoning-gym>=0.1.25", "datasets>=3"],
    "plots": ["matplotlib>=3.8"],
    "semantic": ["sentence-transformers>=3"],
    "ray": ["ray[serve]>=2.50"],
    "lm-eval": ["lm-eval>=0.4.9"],
    "inspect": ["inspect-ai>=0.3.200"],
    "otel": ["opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-http>=1.30"],
}
EXTRAS["all"] = sorted({requirement for requirements in EXTRAS.values() for requirement in requirements})
EXTRAS |= {
    "trtllm": ["mcp>=1.9,<2"],  # tensorrt_llm.scaffolding imports it, and 1.2 does not require it
    "train": ["torch>=2.9", "transformers>=4.57,<6"],  # torch.optim.Muon
    "docs": ["mkdocs>=1.6", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.29", "pyyaml>=6"],
    "dev": [
        "pytest>=8",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "mypy>=1.11",
        "ruff>=0.6",
        "jsonschema>=4.20",
        "simpy>=4.1",  # what simulated queues are compared with
        "gguf>=0.17",  # writes embedded models for llama.cpp's servers
        "build>=1.2",
        "twine>=6.1",
        "pyyaml>=6",  # the tests of the workflows
        "nbclient>=0.10",  # runs the notebooks of examples/
        "ipykernel>=6.29",
        *EXTRAS["serve"],
        "opentelemetry-sdk>=1.30",  # the tests of spans
    ],
}

if not HOME and RELEASED.search((HERE / "scaffolding_ext" / "errors.py").read_text(encoding="utf-8")):
    sys.exit("setup.py: HOME is empty, so this cannot be released: set it to the repository's address")

packages = []
for name, folder in ROOTS.items():
    inner = find_packages(folder, exclude=[pattern for link in LINKED for pattern in (link, f"{link}.*")])
    packages += [name, *(f"{name}.{package}" for package in inner)]


class FreshBuild(build_py):
    """Begins with nothing: setuptools only adds to what an earlier build left, and the wheel takes it all."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "scaffolding_ext", ignore_errors=True)
        super().run()


def long_description() -> str:
    """The README as an index shows it: links to files lead to the repository; without an address they are text."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    if not HOME:
        text = re.sub(r"!\[[^]]*]\((?!https?:|#)[^)]*\)", "", text)
        return re.sub(r"\[([^]]*)]\((?!https?:|#)[^)]*\)", r"\1", text)
    text = re.sub(r"(!\[[^]]*]\()(?!https?:|#)", rf"\1{HOME}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*]\()(?!https?:|#)", rf"\1{HOME}/blob/main/", text)


setup(
    name="scaffolding-ext",
    version=VERSION.findall((HERE / "scaffolding_ext" / "__init__.py").read_text(encoding="utf-8"))[0],
    description="Inference-time compute for reasoning models: chains that stop early, votes, searches and budgets, "
    "for TensorRT-LLM Scaffolding, transformers and OpenAI-compatible servers",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="The authors of scaffolding_ext",
    url=HOME or None,
    project_urls={
        "Documentation": f"{HOME}/tree/main/docs",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
    }
    if HOME
    else {},
    keywords="LLM, reasoning, inference-time compute, test-time compute, TensorRT-LLM, early exit, majority vote, "
    "self-consistency, speculative, conformal prediction, tree search, queueing, evaluation",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=packages,
    package_dir=ROOTS,
    ext_modules=[BLOCK_ATTENTION],
    cmdclass={"build_py": FreshBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    package_data={
        "scaffolding_ext": ["py.typed"],
        "scaffolding_ext.configs": ["*.yaml", "*.json", "models/*.yaml", "calibrations/*.yaml"],
        "scaffolding_ext.evaluation.run": ["*.json"],
        "scaffolding_ext.evaluation": ["templates/*"],
        "scaffolding_ext.workers.huggingface": ["*.c", "*.pyi"],
        "scaffolding_ext.tinylm": ["weights/*/*"],
    },
    install_requires=[
        "numpy>=1.26,<3",
        "scipy>=1.12",
        "math-verify>=0.9,<0.10",
        # math-verify reads with each of these three, and omegaconf (TensorRT-LLM, Hydra) with 4.9 alone.
        "antlr4-python3-runtime>=4.9.3,<=4.13.2,!=4.10.*,!=4.12.*,!=4.13.0,!=4.13.1",
        "pydantic>=2.9,<3",
        "ruamel.yaml>=0.18",
        "click>=8.1",
        "jinja2>=3.1",
        "markupsafe>=2.1",
        "rich>=13",
        "sortedcontainers>=2.4",
    ],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["scaffolding-ext = scaffolding_ext.cli.main:main"],
        "lm_eval.models": ["scaffolding_ext = scaffolding_ext.plugins.lm_eval:ScaffoldingExtLM"],
        "inspect_ai": ["scaffolding_ext = scaffolding_ext.plugins.inspect_ai"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Operating System :: MacOS",
        "Programming Language :: C",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
