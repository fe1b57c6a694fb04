"""One module per `--auth` mode."""
