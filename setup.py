"""Packaging: metadata, extras, and the mapping of the top-level folders into the package."""

import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)  # the package says it; nothing is imported to build it
ROOTS = {
    "scaffolding_ext": "scaffolding_ext",
    "scaffolding_ext.controllers": "controllers",
    "scaffolding_ext.workers": "workers",
    "scaffolding_ext.configs": "configs",
}
LINKED = ("controllers", "workers", "configs")  # symlinks inside scaffolding_ext, for tools that read the source tree

# Sums may be computed in any order; the whole of -ffast-math would also change the number format of the process.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"]
BLOCK_ATTENTION = Extension(
    "scaffolding_ext.workers.huggingface._block_attention",
    ["workers/huggingface/block_attention.c"],
    depends=["workers/huggingface/block_attention_loops.h"],
    extra_compile_args=[] if sys.platform == "win32" else FLAGS,
    optional=True,  # without a compiler the package installs all the same, and torch computes what the kernel would
)

packages = []
for name, folder in ROOTS.items():
    inner = find_packages(folder, exclude=[pattern for link in LINKED for pattern in (link, f"{link}.*")])
    packages += [name, *(f"{name}.{package}" for package in inner)]

setup(
    name="scaffolding-ext",
    version=VERSION.findall((HERE / "scaffolding_ext" / "__init__.py").read_text(encoding="utf-8"))[0],
    description="Composable inference-time-compute controllers for TensorRT-LLM Scaffolding",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=packages,
    package_dir=ROOTS,
    ext_modules=[BLOCK_ATTENTION],
    package_data={
        "scaffolding_ext": ["py.typed"],
        "scaffolding_ext.configs": ["*.yaml", "*.json", "models/*.yaml"],
        "scaffolding_ext.evaluation.run": ["*.json"],
        "scaffolding_ext.evaluation.report.html_report": ["templates/*"],
        "scaffolding_ext.workers.huggingface": ["*.c", "*.h", "*.pyi"],
        "scaffolding_ext.tinylm": ["weights/*/*"],
    },
    install_requires=[
        "numpy>=1.26,<3",
        "scipy>=1.12",
        "math-verify[antlr4_13_2]>=0.9,<0.10",
        "pydantic>=2.9,<3",
        "ruamel.yaml>=0.18",
        "click>=8.1",
        "jinja2>=3.1",
        "markupsafe>=2.1",
        "rich>=13",
        "sortedcontainers>=2.4",
    ],
    extras_require={
        "hf": ["torch>=2.6", "transformers>=4.57,<6"],
        "flashinfer": ["flashinfer-python>=0.2"],  # attention in blocks on an NVIDIA GPU
        "train": ["torch>=2.9", "transformers>=4.57,<6"],  # torch.optim.Muon
        "plots": ["matplotlib>=3.8"],
        "semantic": ["sentence-transformers>=3"],
        "openai": ["openai>=1.60"],
        "serve": ["starlette>=0.46", "uvicorn>=0.34", "httptools>=0.6", "prometheus-client>=0.21"],
        "problems": ["reasoning-gym>=0.1.25", "datasets>=3"],
        "ray": ["ray>=2.50"],
        "lm-eval": ["lm-eval>=0.4.9"],
        "inspect": ["inspect-ai>=0.3.200"],
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "crepes>=0.7",
            "scikit-learn>=1.5",  # crepes imports it and does not ask for it
            "hypothesis>=6.100",
            "mypy>=1.11",
            "ruff>=0.6",
            "jsonschema>=4.20",
            "simpy>=4.1",  # what simulated queues are compared with
            "gguf>=0.17",  # writes embedded models for llama.cpp's servers
            "starlette>=0.46",  # the tests of `serve`
            "uvicorn>=0.34",
            "httptools>=0.6",
            "prometheus-client>=0.21",
        ],
    },
    entry_points={
        "console_scripts": ["scaffolding-ext = scaffolding_ext.cli.main:main"],
        "lm_eval.models": ["scaffolding_ext = scaffolding_ext.plugins.lm_eval:ScaffoldingExtLM"],
        "inspect_ai": ["scaffolding_ext = scaffolding_ext.plugins.inspect_ai"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
