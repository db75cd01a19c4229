"""TensorRT-LLM through its LLM API: what an engine was built for, what a release takes, and how a request runs."""
