#!/usr/bin/env bash
# Builds llama-server from a source archive into FOLDER, outside the repository, and prints the variables that its tests
# read. Takes 20 minutes on two cores; only a C++ compiler is required.
#
#   bash tests/integration/build_llama_cpp.sh ../llama
set -euo pipefail
version=0.3.36
mkdir -p "${1:?give the folder to build in}"
cd "$1"
python3 -m venv venv
. venv/bin/activate
pip install --quiet cmake ninja
pip download --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version"
tar xzf "llama_cpp_python-$version.tar.gz"
cmake -G Ninja -S "llama_cpp_python-$version/vendor/llama.cpp" -B build -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
cmake --build build --target llama-server
echo "export LLAMA_CPP_LIB_PATH=$PWD/build/bin"
echo "export SCAFFOLDING_LLAMA_SERVER=$PWD/build/bin/llama-server"
