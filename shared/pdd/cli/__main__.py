"""`python -m pdd.cli`: the `pdd` command where its script is not on the path."""

from .main import app

if __name__ == "__main__":
    app(prog_name="pdd")
