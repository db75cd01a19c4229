"""`python -m scaffolding_ext` is the command line, for when its script is not on the path."""

from scaffolding_ext.cli.main import main

if __name__ == "__main__":
    main(prog_name="scaffolding-ext")
