"""`python -m shardtoll.cli`, for launchers that start modules, as torchrun's `-m`."""

from shardtoll.cli import main

if __name__ == "__main__":
    main()
