"""TensorRT-LLM through its LLM API: engine configurations, release features and the life of a request."""
