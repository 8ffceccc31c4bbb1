"""Constants of collective libraries by algorithm: one TOML file a library, each number with source."""
