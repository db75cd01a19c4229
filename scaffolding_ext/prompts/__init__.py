"""How a question becomes a prompt: whose model reads it, which sampling fields are set, where thinking opens."""
