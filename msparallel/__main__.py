"""`python -m msparallel`: the same as the `msparallel` command."""

from msparallel.cli.main import main

if __name__ == "__main__":
    main()
