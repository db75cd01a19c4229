"""`python -m scaffolding_ext` is the command line, where no script of it is on the path."""

from scaffolding_ext.cli.main import main

if __name__ == "__main__":
    main(prog_name="scaffolding-ext")
