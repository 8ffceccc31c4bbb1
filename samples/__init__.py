"""Programs to try the product on: incidents from public issue trackers, and one strategy of training each."""
