"""`python -m streamjoin`."""

from streamjoin.cli import app

if __name__ == "__main__":
    app()
