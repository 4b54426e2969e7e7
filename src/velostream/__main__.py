"""`python -m velostream` is the command line."""

from velostream.cli import main

if __name__ == "__main__":
    main()
