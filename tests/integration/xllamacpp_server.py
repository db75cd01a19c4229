"""llama.cpp's own server, from the wheel `xllamacpp` of PyPI: as `llama-server` with the same options.

python xllamacpp_server.py MODEL.gguf ALIAS PORT CONTEXT_LEN NUM_SLOTS [THREADS]
"""

import signal
import sys

import xllamacpp

model, alias, port, context_len, num_slots, *threads = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = model
params.model_alias = {alias}
params.hostnames = ["127.0.0.1"]
params.port = int(port)
params.n_ctx = int(context_len) * int(num_slots)
params.n_parallel = int(num_slots)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads[0]) if threads else 1
params.endpoint_slots = True
server = xllamacpp.Server(params)
sys.stdout.write(f"listening on {server.listening_address}\n")
sys.stdout.flush()
signal.pause()
