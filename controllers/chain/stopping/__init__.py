"""When a chain of thought has thought enough: rules over its looks. `base` has their contract."""
