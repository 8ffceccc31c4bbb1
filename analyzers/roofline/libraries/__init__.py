"""What collective libraries need for each algorithm: one TOML file a library, each number with source."""
