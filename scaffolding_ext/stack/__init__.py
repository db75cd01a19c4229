"""Stack files: YAML to models, models to a running host."""
