"""Packaging: metadata, extras, and the mapping of the top-level folders into the package."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
ROOTS = {
    "scaffolding_ext": "scaffolding_ext",
    "scaffolding_ext.controllers": "controllers",
    "scaffolding_ext.workers": "workers",
    "scaffolding_ext.configs": "configs",
}
LINKED = ("controllers", "workers", "configs")  # symlinks inside scaffolding_ext, for tools that read the source tree

packages = []
for name, folder in ROOTS.items():
    inner = find_packages(folder, exclude=[pattern for link in LINKED for pattern in (link, f"{link}.*")])
    packages += [name, *(f"{name}.{package}" for package in inner)]

setup(
    name="scaffolding-ext",
    version="0.1.0",
    description="Composable inference-time-compute controllers for TensorRT-LLM Scaffolding",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=packages,
    package_dir=ROOTS,
    package_data={
        "scaffolding_ext": ["py.typed"],
        "scaffolding_ext.configs": ["*.yaml"],
        "scaffolding_ext.evaluation": ["*.json"],
        "scaffolding_ext.workers.engine": ["*.c"],
        "scaffolding_ext.tinylm": ["weights/*/*"],
    },
    install_requires=[
        "numpy>=1.26,<3",
        "pydantic>=2.9,<3",
        "pyyaml>=6",
        "click>=8.1",
        "rich>=13",
    ],
    extras_require={
        "hf": ["torch>=2.6", "transformers>=4.57,<6"],
        "train": ["torch>=2.9", "transformers>=4.57,<6"],  # torch.optim.Muon
        "plots": ["matplotlib>=3.8"],
        "dev": [
            "pytest>=8",
            "hypothesis>=6.100",
            "mypy>=1.11",
            "ruff>=0.6",
            "jsonschema>=4.20",
            "scipy>=1.11",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["scaffolding-ext = scaffolding_ext.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
