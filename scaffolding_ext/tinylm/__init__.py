"""Two small reasoning models that ship with the package: the grammar they learned, their training and their weights."""
