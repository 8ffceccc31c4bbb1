"""What collective libraries need for each algorithm, one TOML file a library; every number with its source."""
