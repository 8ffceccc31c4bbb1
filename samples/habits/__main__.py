"""Run one habit under an audit and print its bill."""

from shardtoll.samples.habits.run import main

main()
