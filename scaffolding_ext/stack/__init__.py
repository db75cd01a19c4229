"""Stack files: from YAML to validated models to a running host."""
