"""`python -m fedstrata` is the `fedstrata` command."""

from fedstrata.cli.main import main

main()
