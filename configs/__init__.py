"""Commented stack files, one a stack; load one with `load_stack("configs:dynasor_cot")` or by its path."""
