"""From question to prompt: the model that reads it, its sampling fields, and the marks of its thinking."""
